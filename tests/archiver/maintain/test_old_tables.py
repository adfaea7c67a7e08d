import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from archiver.maintain.garbage import (
    DAY_MS,
    HOUR_MS,
    MONTH_MS,
    DatedObject,
    find_pruned,
    find_superfluous,
    group_table,
    oldest_record,
)
from archiver.maintain.gc import plan_sweep
from blockgz.store.local import LocalStore
from blockgz.store.writer import ListedObject
from index_format import groups
from index_format.groups import LogEnd, LogEnds
from index_format.keys import TopicFolder, configs_home, dated_key, groups_home
from index_format.marker import CatalogReference, Maintenance, Marker, Retired
from replayer.cli import main as replayer
from tests.index_format.builders import group, groups_of, marker_of
from tests.support.archives import ArchiveWriter, records

PROGRAMS = {"archiver": archiver, "replayer": replayer}
NOW_MS = 400 * DAY_MS
GRACE = 3600.0


def table(slot: int, topic: str = "orders", modified_ms: int | None = None) -> DatedObject:
    folder = TopicFolder(topic)
    modified = (slot if modified_ms is None else modified_ms) / 1000
    found = group_table("topic", ListedObject(dated_key(groups_home("topic", folder), slot), 10, modified))
    assert found == (folder, slot, found.listed if found else None)
    return found


def kept(slots: list[int], now_ms: int = NOW_MS) -> list[int]:
    gone = {each.at for each in find_superfluous([table(slot) for slot in slots], {}, now=now_ms / 1000, grace=GRACE)}
    return sorted(set(slots) - gone)


def test_old_tables_are_thinned() -> None:
    last_day = list(range(NOW_MS - DAY_MS + 60_000, NOW_MS, 60_000))
    hourly = [NOW_MS - 2 * DAY_MS + minute * 60_000 for minute in range(120)]
    daily = [NOW_MS - MONTH_MS - 2 * DAY_MS + hour * HOUR_MS for hour in range(48)]
    assert kept([*last_day, *hourly, *daily]) == [
        daily[23],
        daily[47],
        hourly[59],
        hourly[119],
        *last_day,
    ]


def test_the_newest_stays_however_old_it_is() -> None:
    assert kept([5]) == [5]
    assert kept([5, 6, 7]) == [7]
    assert kept([NOW_MS + 60_000, NOW_MS]) == [NOW_MS, NOW_MS + 60_000]


def test_what_is_thinned_once_is_what_would_be_thinned_later() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    slots = sorted(rng.sample(range(NOW_MS - 60 * DAY_MS, NOW_MS), 500))
    left = slots
    for now_ms in range(NOW_MS, NOW_MS + 90 * DAY_MS, 7 * HOUR_MS):
        left = kept(left, now_ms)
        assert left[-1] == slots[-1]
    assert left == kept(slots, NOW_MS + 90 * DAY_MS)


def test_topics_have_tables_of_their_own_and_the_grace_counts() -> None:
    tables = [table(5), table(6), table(5, "bills"), table(7, modified_ms=NOW_MS - 1000), table(8)]
    found = find_superfluous(tables, {}, now=NOW_MS / 1000, grace=GRACE)
    assert [(each.folder.topic, each.at) for each in found] == [("orders", 5), ("orders", 6)]


ERASED = -2
"""A catalog of which every record was erased."""


def reference(start: int, time: int) -> CatalogReference:
    return CatalogReference(
        name=f"_catalog/1-{start:020d}.json",
        start_offset=start,
        next_offset=start + 10,
        min_timestamp=max(time, -1),
        max_timestamp=99,
        num_records=int(time != ERASED),
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
        ([pruned(30, ERASED)], 30),
        ([pruned(30, -1)], None),
        ([pruned(30, floor=0)], None),
        ([pruned()], None),
        ([], None),
    ],
)
def test_the_oldest_record_is_that_of_all_partitions_once_one_was_pruned(
    markers: list[Marker], oldest: int | None
) -> None:
    assert oldest_record(markers) == oldest


@pytest.mark.parametrize(
    ("oldest", "gone"), [(None, []), (4, []), (5, []), (6, [5]), (100, [5, 6]), (NOW_MS, [5, 6, 7])]
)
def test_what_is_of_a_time_before_the_oldest_record_goes_but_the_last(oldest: int | None, gone: list[int]) -> None:
    times = {TopicFolder("orders"): oldest, TopicFolder("bills"): 10}
    known = {folder: at for folder, at in times.items() if at is not None}
    recent = NOW_MS - 2 * HOUR_MS
    dated = [table(at) for at in (recent, 5, 7, 6)]
    assert [each.at for each in find_pruned(dated, known, now=NOW_MS / 1000, grace=GRACE)] == gone
    within_a_day = [table(NOW_MS - DAY_MS + 10_000 + at) for at in (1, 2, 3)]
    known = {TopicFolder("orders"): within_a_day[1].at}
    found = find_superfluous(within_a_day, known, now=NOW_MS / 1000, grace=GRACE)
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
    writer.put(dated_key(groups_home(layout, TopicFolder("orders")), 5), b"table")
    writer.put(dated_key(configs_home(layout, TopicFolder("orders")), 5), b"config")
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
            writer.put(dated_key(groups_home(layout, TopicFolder(topic)), at_ms), body)
            writer.put(dated_key(configs_home(layout, TopicFolder(topic)), at_ms), b"config")
    store = LocalStore(tmp_path)
    later = store.clock() + 2 * GRACE
    monkeypatch.setattr(store, "clock", lambda: later)
    before = {listed.key for listed in store.list("")}
    plan = plan_sweep(store, ["orders"], GRACE)
    assert (plan.count, plan.bytes, plan.problems) == (2, 10, [])
    (tmp_path / dated_key(groups_home(layout, TopicFolder("bills")), 7)).write_bytes(b"damaged")
    assert plan_sweep(store, ["bills"], GRACE).count == 0, "which tables it needs is unknown"
    plan.carry_out()
    assert plan.deleted == 2
    gone = {dated_key(groups_home(layout, TopicFolder("orders")), at_ms) for at_ms in (5, 6)}
    assert {listed.key for listed in store.list("")} == before - gone
    assert plan_sweep(store, [], 3 * GRACE).count == 0
    assert plan_sweep(store, [], GRACE).count == 0


def test_the_newest_table_with_groups_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups cannot be read any more, all newer tables have only the ends of logs."""
    writer, home = ArchiveWriter(tmp_path), groups_home("topic", TopicFolder("orders"))
    writer.partition("orders", 0).commit(records(range(3)))
    ends = LogEnds(1, 2, (LogEnd(0, 3),))
    for at_ms in (5, 6):
        writer.put(dated_key(home, at_ms), groups.encode(groups_of(group("billing", 0, asked_at=at_ms))))
    for at_ms in (7, 8, 9):
        writer.put(dated_key(home, at_ms), groups.encode(groups_of(groups_asked=False, groups_slot=6, ends=ends)))
    store = LocalStore(tmp_path)
    later = store.clock() + 2 * GRACE
    monkeypatch.setattr(store, "clock", lambda: later)
    plan = plan_sweep(store, [], GRACE)
    plan.carry_out()
    assert plan.deleted == 3
    assert [listed.key for listed in store.list(home)] == [dated_key(home, 6), dated_key(home, 9)]
