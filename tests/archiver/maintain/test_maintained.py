"""Garbage collection where chunks are rewritten: book-keeping, what is spared, and the floor."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from archiver.cli import main as archiver
from archiver.maintain import garbage
from archiver.maintain.gc import plan_sweep
from archiver.maintain.prune import prune
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.tree import StoredChain, read_current
from archiver.maintain.throttle import Throttle
from blockgz.errors import ShuttingDown, StoreUnavailable
from blockgz.store.local import LocalStore
from blockgz.store.writer import Body, ListedObject
from index_format import groups, keys, objects
from index_format import marker as markers
from index_format.groups import LogEnd, LogEnds
from index_format.marker import CatalogReference, Floor, Maintenance, Marker, Retired, Rewriting
from index_format.objects import EMPTY, ERASED, Gap
from replayer.cli import main as replayer
from tests.archiver.maintain.fourteen_chunks import KEYS, filled, run
from tests.index_format.builders import group, groups_of
from tests.support.archives import ArchiveWriter, records
from tests.support.format_objects import marker_of
from tests.support.memory_store import MemoryStore
from tests.support.sampling import seeded_random

GRACE = 3600.0
GRACE_MS = 3_600_000
OTHER = "0" * 32


class RefusingStore(MemoryStore):
    """Stores no floor."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        """See Store."""
        if "/_pruned/" in key:
            raise StoreUnavailable("not now")
        return super().put_if_absent(key, body, attempt)


def current(store: MemoryStore) -> markers.Marker | None:
    held = read_current(store, KEYS)  # type: ignore[arg-type]
    return held and held.marker


def body_of(store: MemoryStore) -> Maintenance:
    marker = current(store)
    assert marker is not None
    assert marker.maintenance
    return marker.maintenance


def collect(store: MemoryStore, **options: Any) -> int:
    plan = plan_sweep(store, (), GRACE, **options)
    assert not plan.problems
    plan.carry_out()
    assert not plan.problems
    return plan.deleted or 0


def retired(at: int | None) -> Retired:
    reference = CatalogReference(
        name=keys.catalog_name(1, 0), start_offset=0, next_offset=1, min_timestamp=0, max_timestamp=0, num_records=1,
        num_chunks=1, bytes=1, sha256="0" * 64,
    )  # fmt: skip
    return Retired(references=(reference,), token=OTHER, at=at)


def test_the_grace_counts_from_the_first_look(store: MemoryStore) -> None:
    body = Maintenance(retired=(retired(None), retired(5)))
    assert garbage.update_books(body, now=10, grace_ms=5).retired == (retired(10), retired(5))
    assert garbage.update_books(body, now=11, grace_ms=5).retired == (retired(11),)
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=0, end=2, since=5)
    for now, left in ((10, intent), (11, None)):
        assert garbage.update_books(Maintenance(rewriting=intent), now=now, grace_ms=5).rewriting == left


def test_a_time_further_in_the_future_than_a_grace_is_none() -> None:
    body = Maintenance(retired=(retired(20), retired(21)))
    assert garbage.update_books(body, now=15, grace_ms=5).retired == (retired(20), retired(15))
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=0, end=2, since=20)
    for now, left in ((15, intent), (14, None)):
        assert garbage.update_books(Maintenance(rewriting=intent), now=now, grace_ms=5).rewriting == left


def test_what_was_pruned_goes_a_grace_after_it_was_seen(store: MemoryStore) -> None:
    store.now = 1e6
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.COMMITTED
    before = set(store.bodies())
    assert collect(store) == 0
    (seen,) = body_of(store).retired
    assert seen.at == 1e9
    store.now += GRACE
    assert (collect(store), set(store.bodies())) == (0, before)
    store.now += 1
    deleted = collect(store)
    gone = before - set(store.bodies())
    assert deleted == len(gone) > 12
    assert {f"{KEYS.home}{offset:020d}.gz" for offset in range(6)} < gone
    floor = store.bodies()[KEYS.home + keys.floor_name(6)]
    assert floor == b'{"format":"block-gzip-floor","version":1,"pruned_before":6}'
    assert objects.decode(floor, Floor, "floor").pruned_before == 6
    assert body_of(store).retired == ()
    run(store, prune(KEYS, 12))
    for _ in range(3):
        store.now += GRACE + 1
        collect(store)
    assert [key for key in store.bodies() if "_pruned" in key] == [KEYS.home + keys.floor_name(12)]
    assert collect(store) == 0


def test_a_dry_run_shows_the_same_and_writes_nothing(store: MemoryStore) -> None:
    run(store, prune(KEYS, 6))
    collect(store)
    store.now += GRACE + 1
    before = store.bodies()
    shown = plan_sweep(store, (), GRACE, keeps_books=False)
    assert store.bodies() == before
    assert plan_sweep(store, (), GRACE).garbage == shown.garbage != ()


def test_nothing_is_deleted_where_the_floor_was_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    store = filled(RefusingStore())
    run(store, prune(KEYS, 6))
    collect(store)
    store.now += GRACE + 1
    plan, before = plan_sweep(store, (), GRACE), store.bodies()
    assert plan.garbage
    plan.carry_out()
    assert ([each.where for each in plan.problems], plan.deleted) == ([KEYS.home + keys.floor_name(6)], 0)
    assert store.bodies() == before


def test_a_token_is_spared_while_its_intent_is_in_force(store: MemoryStore) -> None:
    run(store, prune(KEYS, 4))
    names = [f"_catalog/1-{0:020d}~r{OTHER}-0.json", f"{0:020d}~r{OTHER}-1.gz", f"{0:020d}~r{OTHER}-1.index.json"]
    for name in names:
        store.put_if_absent(KEYS.home + name, b"{}", "-")
    marker = current(store)
    assert marker is not None
    store.now = 1e6
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=4, end=6, since=round(store.now * 1000))
    body = markers.encode(replace(marker, maintenance=replace(body_of(store), rewriting=intent)))
    store.objects[KEYS.marker] = store.objects[KEYS.marker]._replace(body=body)
    collect(store)
    assert all(KEYS.home + name in store.bodies() for name in names)
    store.now += GRACE + 1
    collect(store)
    assert body_of(store).rewriting is None
    assert not any(KEYS.home + name in store.bodies() for name in names)


@pytest.mark.parametrize(
    ("gap", "is_guarded"),
    [
        (Gap(12, 14, "retention"), True),
        (Gap(12, 14, "retention", at=0), True),
        (Gap(12, 14, EMPTY), False),
        (Gap(12, 14, ERASED), False),
        (Gap(5, 7, "retention"), True),
        (Gap(5, 7, "retention", at=1), False),
        (Gap(5, 7, "retention", at=9_000), True),
        (Gap(2, 4, "retention"), False),
    ],
)
def test_a_gap_guards_what_may_hold_its_records(gap: Gap, is_guarded: bool, store: MemoryStore) -> None:
    run(store, prune(KEYS, 4))
    marker = current(store)
    assert marker is not None
    chain = StoredChain(KEYS, marker, (), frozenset(), [gap])
    assert garbage.find_guarded_gaps(chain, now=10.0, grace=5.0) == ([gap] if is_guarded else [])


def test_a_chunk_may_start_where_an_empty_gap_does(store: MemoryStore) -> None:
    marker = current(store)
    assert marker is not None
    assert garbage.next_start(marker) == 14
    longer = replace(marker, next_offset=20, gaps=(Gap(14, 20, EMPTY),))
    assert (longer.chain_end, garbage.next_start(longer)) == (20, 14)
    assert garbage.next_start(replace(longer, gaps=(Gap(14, 20, "retention"),))) == 20


class Ending(threading.Event):
    """Waits no time, and keeps for how long it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return self.is_set()


def test_each_part_waits_until_the_one_before_is_paid_for() -> None:
    ending = Ending()
    throttle = Throttle(10, ending, lambda: ending.now)
    begun = []
    for num_bytes in (50, 5, 10):
        throttle.take(num_bytes)
        begun.append(ending.now)
    assert begun == [100, 105, 105.5]
    ending.now = 200
    throttle.take(1)
    assert ending.now == 200, "what was not used before is not saved"
    assert throttle.taken == 66
    ending.set()
    with pytest.raises(ShuttingDown):
        throttle.take(1)
    assert throttle.taken == 66


PROGRAMS = {"archiver": archiver, "replayer": replayer}
NOW_MS = 400 * garbage.DAY_MS


def table(slot: int, topic: str = "orders", modified_ms: int | None = None) -> garbage.DatedObject:
    folder = keys.TopicFolder(topic)
    modified = (slot if modified_ms is None else modified_ms) / 1000
    key = keys.dated_key(keys.groups_home("topic", folder), slot)
    return garbage.DatedObject(folder, slot, ListedObject(key, 10, modified))


def kept(slots: list[int], now_ms: int = NOW_MS) -> list[int]:
    gone = {
        each.at
        for each in garbage.find_superfluous([table(slot) for slot in slots], {}, now=now_ms / 1000, grace=GRACE)
    }
    return sorted(set(slots) - gone)


def test_old_tables_are_thinned() -> None:
    last_day = list(range(NOW_MS - garbage.DAY_MS + 60_000, NOW_MS, 60_000))
    hourly = [NOW_MS - 2 * garbage.DAY_MS + minute * 60_000 for minute in range(120)]
    daily = [NOW_MS - garbage.MONTH_MS - 2 * garbage.DAY_MS + hour * garbage.HOUR_MS for hour in range(48)]
    assert kept([*last_day, *hourly, *daily]) == [daily[23], daily[47], hourly[59], hourly[119], *last_day]


def test_the_newest_stays_however_old_it_is() -> None:
    assert kept([5]) == [5]
    assert kept([5, 6, 7]) == [7]
    assert kept([NOW_MS + 60_000, NOW_MS]) == [NOW_MS, NOW_MS + 60_000]


def test_what_is_thinned_once_is_what_would_be_thinned_later() -> None:
    rng = seeded_random()
    slots = sorted(rng.sample(range(NOW_MS - 60 * garbage.DAY_MS, NOW_MS), 500))
    left = slots
    for now_ms in range(NOW_MS, NOW_MS + 90 * garbage.DAY_MS, 7 * garbage.HOUR_MS):
        left = kept(left, now_ms)
        assert left[-1] == slots[-1]
    assert left == kept(slots, NOW_MS + 90 * garbage.DAY_MS)


def test_topics_have_tables_of_their_own_and_the_grace_counts() -> None:
    tables = [table(5), table(6), table(5, "bills"), table(7, modified_ms=NOW_MS - 1000), table(8)]
    found = garbage.find_superfluous(tables, {}, now=NOW_MS / 1000, grace=GRACE)
    assert [(each.folder.topic, each.at) for each in found] == [("orders", 5), ("orders", 6)]


ERASED_OFFSETS = -2
"""A catalog of which every record was erased."""


def reference(start: int, time: int) -> CatalogReference:
    return CatalogReference(
        name=f"_catalog/1-{start:020d}.json",
        start_offset=start,
        next_offset=start + 10,
        min_timestamp=max(time, -1),
        max_timestamp=99,
        num_records=int(time != ERASED_OFFSETS),
        num_chunks=1,
        bytes=10,
        sha256="0" * 64,
    )


def pruned(*times: int, deep: int = 0, retired: int | None = None, floor: int = 5) -> Marker:
    """Catalogs whose oldest records are of these times; the first ones `deep` in the tree."""
    references = tuple(reference(10 * number, time) for number, time in enumerate(times, 1))
    gone = () if retired is None else (Retired(references=(reference(0, retired),), token="0" * 32),)
    body = Maintenance(pruned_before=floor, retired=gone)
    catalogs = (references[deep:], references[:deep]) if deep else (references,)
    return marker_of(version=2, maintenance=body, catalogs=catalogs, start_offset=0, next_offset=1000)


@pytest.mark.parametrize(
    ("markers", "oldest"),
    [
        ([pruned(30, 20)], 20),
        ([pruned(10, 30, deep=1)], 10),
        ([pruned(30), pruned(8, floor=0)], 8),
        ([pruned(30, retired=7)], 7),
        ([pruned(30, ERASED_OFFSETS)], 30),
        ([pruned(30, -1)], None),
        ([pruned(30, floor=0)], None),
        ([pruned()], None),
        ([], None),
    ],
)
def test_the_oldest_record_is_that_of_all_partitions_once_one_was_pruned(
    markers: list[Marker], oldest: int | None
) -> None:
    assert garbage.oldest_record(markers) == oldest


@pytest.mark.parametrize(
    ("oldest", "gone"), [(None, []), (4, []), (5, []), (6, [5]), (100, [5, 6]), (NOW_MS, [5, 6, 7])]
)
def test_what_is_of_a_time_before_the_oldest_record_goes_but_the_last(oldest: int | None, gone: list[int]) -> None:
    times = {keys.TopicFolder("orders"): oldest, keys.TopicFolder("bills"): 10}
    known = {folder: at for folder, at in times.items() if at is not None}
    recent = NOW_MS - 2 * garbage.HOUR_MS
    dated = [table(at) for at in (recent, 5, 7, 6)]
    assert [each.at for each in garbage.find_pruned(dated, known, now=NOW_MS / 1000, grace=GRACE)] == gone
    within_a_day = [table(NOW_MS - garbage.DAY_MS + 10_000 + at) for at in (1, 2, 3)]
    known = {keys.TopicFolder("orders"): within_a_day[1].at}
    found = garbage.find_superfluous(within_a_day, known, now=NOW_MS / 1000, grace=GRACE)
    assert found == within_a_day[:1]


def told(root: Path, *command: str) -> tuple[str, str, int]:
    result = CliRunner().invoke(PROGRAMS[command[0]], [*command[1:], "-a", str(root)])
    return re.sub(r"[0-9.]+ (m?s)\b", r"\1", result.stdout), result.stderr, result.exit_code


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_other_tools_pass_over_tables_and_configurations(layout: str, tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path, layout)
    writer.partition("orders", 0, record_format="text").commit(records(range(3)))
    commands = [
        ("replayer", "ls"),
        ("replayer", "describe", "orders"),
        ("replayer", "verify", "--deep"),
        ("replayer", "coverage"),
        ("archiver", "status"),
        ("archiver", "repair", "index", "orders", "--dry-run"),
        ("archiver", "repair", "marker", "orders", "--dry-run"),
        ("archiver", "repair", "salvage", "orders:0", "--dry-run"),
        ("archiver", "repair", "inventory", "--dry-run"),
        ("archiver", "gc", "--dry-run"),
    ]
    before = [told(tmp_path, *command) for command in commands]
    assert {code for _, _, code in before} <= {0, 4}, before
    writer.put(keys.dated_key(keys.groups_home(layout, keys.TopicFolder("orders")), 5), b"table")
    writer.put(keys.dated_key(keys.configs_home(layout, keys.TopicFolder("orders")), 5), b"config")
    assert [told(tmp_path, *command) for command in commands] == before


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_a_sweep_thins_tables_and_leaves_configurations(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArchiveWriter(tmp_path, layout)
    for topic in ("orders", "bills"):
        writer.partition(topic, 0, record_format="text").commit(records(range(3)))
        for at_ms in (5, 6, 7):
            body = groups.encode(groups_of()) if at_ms == 7 else b"table"
            writer.put(keys.dated_key(keys.groups_home(layout, keys.TopicFolder(topic)), at_ms), body)
            writer.put(keys.dated_key(keys.configs_home(layout, keys.TopicFolder(topic)), at_ms), b"config")
    store = LocalStore(tmp_path)
    later = store.clock() + 2 * GRACE
    monkeypatch.setattr(store, "clock", lambda: later)
    before = {listed.key for listed in store.list("")}
    plan = plan_sweep(store, ["orders"], GRACE)
    assert (plan.count, plan.bytes, plan.problems) == (2, 10, [])
    (tmp_path / keys.dated_key(keys.groups_home(layout, keys.TopicFolder("bills")), 7)).write_bytes(b"damaged")
    assert plan_sweep(store, ["bills"], GRACE).count == 0, "which tables it needs is unknown"
    plan.carry_out()
    assert plan.deleted == 2
    gone = {keys.dated_key(keys.groups_home(layout, keys.TopicFolder("orders")), at_ms) for at_ms in (5, 6)}
    assert {listed.key for listed in store.list("")} == before - gone
    assert plan_sweep(store, [], 3 * GRACE).count == 0
    assert plan_sweep(store, [], GRACE).count == 0


def test_the_newest_table_with_groups_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups cannot be read any more, all newer tables have only the ends of logs."""
    writer, home = ArchiveWriter(tmp_path), keys.groups_home("topic", keys.TopicFolder("orders"))
    writer.partition("orders", 0).commit(records(range(3)))
    ends = LogEnds(1, 2, (LogEnd(0, 3),))
    for at_ms in (5, 6):
        writer.put(keys.dated_key(home, at_ms), groups.encode(groups_of(group("billing", 0, asked_at=at_ms))))
    for at_ms in (7, 8, 9):
        writer.put(keys.dated_key(home, at_ms), groups.encode(groups_of(groups_asked=False, groups_slot=6, ends=ends)))
    store = LocalStore(tmp_path)
    later = store.clock() + 2 * GRACE
    monkeypatch.setattr(store, "clock", lambda: later)
    plan = plan_sweep(store, [], GRACE)
    plan.carry_out()
    assert plan.deleted == 3
    assert [listed.key for listed in store.list(home)] == [keys.dated_key(home, 6), keys.dated_key(home, 9)]
