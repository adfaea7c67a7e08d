"""Writers beside maintainers and other writers, readers of the ancestor, and broken protocols."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit import operations as op
from archiver.commit.commit import FinishedChunk, Held, commit_chunk, commit_progress, try_swap
from archiver.commit.operations import CompareAndSwap, Driver, PutIfAbsent
from archiver.commit.recovery import claim_and_fold, reclaim, take_over
from archiver.errors import Fenced
from archiver.ingest.chunk_builder import BufferFolder, ChunkBuilder, ChunkSettings, RollLimits
from blockgz.errors import AccessDenied, StoreError, StoreUnavailable
from blockgz.store import writer as writer_store
from blockgz.store.local import LocalStore
from blockgz.store.writer import StoredObject
from index_format import marker as markers
from index_format.blocks import ZlibCompressor
from index_format.errors import BlockgzError
from index_format.marker import Maintenance, Marker, decode_catalog, decode_marker
from index_format.objects import EMPTY, Gap
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.golden.test_ancestor import GOLDEN, same_zlib
from tests.index_format.builders import record
from tests.support.archives import records
from tests.support.broken_protocols import BROKEN, breaking, untouched
from tests.support.campaign import first_violation
from tests.support.chain import check_history, read_chain
from tests.support.chunks import POLICY, archive_all, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore, content_of
from tests.support.scenarios import COLLECTED, CROWD, IDENTITY, PAIR, Company, run_schedule, short_partition
from tests.support.simulator import Actor, Fate, Run, Scenario, collector, result_of, simulate

IDENTITY_OF_WRITER = identity_of()
KEYS = IDENTITY_OF_WRITER.keys
ROWS = records(range(30), value_bytes=0)
LOG = MemoryLog(ROWS)
TOKENS = random.Random(1)


def run(store: MemoryStore, protocol: Run, log: MemoryLog = LOG) -> Any:
    return result_of(protocol, store, log, TOKENS)


def maintained(store: MemoryStore, **fields: Any) -> Held:
    """A maintainer changes its part of the marker."""
    found = store.get(KEYS.marker)
    assert found is not None
    marker = decode_marker(found.body)
    body = replace(marker.maintenance or Maintenance(), **fields)
    held: Held = run(store, try_swap(KEYS.marker, replace(marker, version=2, maintenance=body), found.etag))
    return held


def chunk(start: int, end: int) -> Any:
    return finished_chunk("json", tuple(ROWS[start:end]), start, end)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def held(store: MemoryStore) -> Held:
    held = run(store, take_over(IDENTITY_OF_WRITER, "writer", POLICY)).held
    return run(store, commit_chunk(IDENTITY_OF_WRITER, held, chunk(0, 3)))  # type: ignore[no-any-return]


def body_of(marker: Marker) -> Maintenance:
    assert isinstance(marker.maintenance, Maintenance)
    return marker.maintenance


WAYS: dict[str, Callable[[Held], Run]] = {
    "append": lambda held: commit_chunk(IDENTITY_OF_WRITER, held, chunk(3, 5)),
    "progress": lambda held: commit_progress(IDENTITY_OF_WRITER, held, 5),
    "reclaim": lambda _: reclaim(IDENTITY_OF_WRITER, "writer"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fate", [Fate.NORMAL, Fate.ANSWER_LOST, Fate.NOT_APPLIED, Fate.LATE])
def test_a_swap_goes_on_from_what_maintainers_wrote(way: str, fate: Fate, store: MemoryStore, held: Held) -> None:
    actor = Actor("writer", WAYS[way](held), store, LOG, TOKENS)
    while not isinstance(actor.operation, CompareAndSwap):
        actor.step()
    if fate is Fate.ANSWER_LOST:
        actor.step(fate)
        maintained(store, fold_before=1)
    else:
        maintained(store, fold_before=1)
        actor.step(fate)
    actor.run_to_end()
    assert actor.failure is None
    for request in list(actor.late):
        actor.deliver(request)
    now = decode_marker(store.bodies()[KEYS.marker])
    assert actor.result.marker == now and body_of(now).fold_before == 1
    assert (now.next_offset, now.epoch) == ((3, 2) if way == "reclaim" else (5, 1))
    assert body_of(now).revision == (1 if fate is Fate.ANSWER_LOST else 2)


@pytest.mark.parametrize("way", ["append", "progress"])
def test_a_fenced_writer_does_not(way: str, store: MemoryStore, held: Held) -> None:
    run(store, take_over(IDENTITY_OF_WRITER, "other", POLICY))
    maintained(store)
    with pytest.raises(Fenced):
        run(store, WAYS[way](held))


def test_what_maintainers_ask_for_is_folded_with_its_gaps(store: MemoryStore, held: Held) -> None:
    held = run(store, commit_progress(IDENTITY_OF_WRITER, held, 10, (Gap(4, 10, "skipped"),)))
    held = run(store, commit_chunk(IDENTITY_OF_WRITER, held, chunk(10, 12)))
    maintained(store, fold_before=12)
    now = run(store, commit_progress(IDENTITY_OF_WRITER, held, 15)).marker
    assert (now.tail, now.gaps, now.newest_offset) == ((), (Gap(12, 15, EMPTY, at=0),), 11)
    (reference,) = now.catalogs[0]
    assert (reference.start_offset, reference.next_offset, now.chain_end, now.cover(1)) == (0, 12, 15, 12)
    assert decode_catalog(store.bodies()[KEYS.home + reference.name], reference, 1).gaps == (Gap(4, 10, "skipped"),)
    now = run(store, commit_progress(IDENTITY_OF_WRITER, run(store, reclaim(IDENTITY_OF_WRITER, "writer")), 18)).marker
    assert now.gaps == (Gap(12, 18, EMPTY, at=0),)
    maintained(store, fold_before=20)
    now = run(
        store, commit_chunk(IDENTITY_OF_WRITER, run(store, reclaim(IDENTITY_OF_WRITER, "writer")), chunk(18, 20))
    ).marker
    now = run(store, claim_and_fold(KEYS, "maintainer")).marker
    assert (now.gaps, now.catalogs[0][1].start_offset, now.chain_end) == ((), 12, 20)
    again = run(store, take_over(IDENTITY_OF_WRITER, "next", POLICY), MemoryLog(ROWS[:25]))
    assert (again.position, again.tail_was_compacted) == (20, False)


def test_a_gap_tells_when_it_was_recorded(store: MemoryStore, held: Held) -> None:
    maintained(store)
    store.now = 7.0
    log = MemoryLog(ROWS, low=6)
    again = run(store, take_over(IDENTITY_OF_WRITER, "next", POLICY), log)
    assert again.held.marker.gaps == (Gap(3, 6, "retention", at=7_000),)
    assert markers.encode(again.held.marker) == store.bodies()[KEYS.marker]


MARKER = GOLDEN["marker"]
PREFIX = MARKER["prefix"]
LIMITS = RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
IDENTITY_OF_SEED = identity_of("seed", topic=MARKER["topic"], partition=MARKER["partition"], key_prefix=PREFIX)
STEM = "2016-02-24/bar-00000-000000000000"
TEXT_MARKER = "last_chunk_index.bar-00000.txt"
NEXT_STEM = "2016-02-24/bar-00000-000000000100"


def golden_records(start: int, end: int) -> list[Record]:
    return [record(n, (GOLDEN["value"] % n).encode(), timestamp=MARKER["first_timestamp"]) for n in range(start, end)]


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[BufferFolder]:
    folder = BufferFolder(tmp_path / "buffer")
    yield folder
    folder.close()


def built(buffer: BufferFolder, start: int = 0, end: int = 100) -> FinishedChunk:
    settings = ChunkSettings(record_format("text"), ZlibCompressor(6), 64 * 1024**2, LIMITS)
    chunk = ChunkBuilder(settings, buffer.new_file(), start)
    chunk.add(batch_from_records(golden_records(start, end)), 0, 0.0)
    return chunk.finish(end)


def run_seed(protocol: op.Protocol[Any], store: Any) -> Any:
    return Driver(store, MemoryLog([], high=1000), lambda attempt, cause: None, lambda: True).run(protocol)


def claim(store: Any) -> Held:
    held: Held = run_seed(take_over(IDENTITY_OF_SEED, "me", POLICY), store).held
    return held


def files(root: Path) -> dict[str, bytes]:
    """Everything in the archive, dot files left out."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def archive(tmp_path: Path, buffer: BufferFolder) -> dict[str, bytes]:
    """The golden topic, committed into a folder."""
    store = LocalStore(tmp_path / "archive")
    run_seed(commit_chunk(IDENTITY_OF_SEED, claim(store), built(buffer)), store)
    return files(tmp_path / "archive")


def test_the_objects_of_one_chunk(archive: dict[str, bytes]) -> None:
    assert set(archive) == {
        f"{STEM}.gz",
        f"{STEM}.index.json",
        f"{STEM}.meta.json",
        TEXT_MARKER,
        "_blockgz/topic=bar/partition=00000/last_chunk_index.json",
    }


@same_zlib
def test_the_ancestors_index_text(archive: dict[str, bytes]) -> None:
    assert archive[f"{STEM}.index.json"].decode() == GOLDEN["index_of_the_first"]


@same_zlib
def test_the_ancestors_data_bytes(archive: dict[str, bytes]) -> None:
    raw = "".join(GOLDEN["value"] % counter + "\n" for counter in range(100)).encode()
    data = archive[f"{STEM}.gz"]
    assert len(data) == GOLDEN["chunks"][0]["blocks"][0][2]
    assert data[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert data == ZlibCompressor(6).compress(raw) and gzip.decompress(data) == raw


def test_the_ancestors_marker(archive: dict[str, bytes]) -> None:
    assert MARKER["key"] == PREFIX + TEXT_MARKER
    assert archive[TEXT_MARKER].decode() == MARKER["body"]


def test_our_own_chain_holds_the_same(archive: dict[str, bytes]) -> None:
    chain = read_chain(archive, IDENTITY_OF_SEED.keys.home, IDENTITY_OF_SEED.keys.chunks)
    assert chain is not None
    assert [tuple(line) for line in chain.lines] == [(row.offset, row.value) for row in golden_records(0, 100)]


@pytest.mark.parametrize("orphan", [f"{STEM}.gz", f"{STEM}.index.json"])
def test_an_orphan_of_either_moves_data_and_sidecar_together(buffer: BufferFolder, orphan: str) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(orphan, b"of a dead writer", "dead")
    run_seed(commit_chunk(IDENTITY_OF_SEED, held, built(buffer)), store)
    stored = store.bodies()
    (folder,) = {key.partition("/")[0] for key in stored if key.startswith("2016-02-24~")}
    assert folder.startswith("2016-02-24~e1-") and len(folder) == len("2016-02-24~e1-ab12cd34")
    moved = f"{folder}/bar-00000-000000000000"
    assert stored[orphan] == b"of a dead writer"
    assert gzip.decompress(stored[f"{moved}.gz"]).count(b"\n") == 100
    assert json.loads(stored[f"{moved}.index.json"])["chunks"][0]["num_records"] == 100
    assert stored[TEXT_MARKER].decode() == f"{PREFIX}{moved}.index.json"
    assert read_chain(stored, IDENTITY_OF_SEED.keys.home, IDENTITY_OF_SEED.keys.chunks) is not None


def test_an_orphan_of_our_own_index_moves_that_alone(buffer: BufferFolder) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(f"{STEM}.meta.json", b"of a dead writer", "dead")
    run_seed(commit_chunk(IDENTITY_OF_SEED, held, built(buffer)), store)
    assert {f"{STEM}.gz", f"{STEM}.index.json"} < set(store.objects)
    assert store.bodies()[TEXT_MARKER].decode() == MARKER["body"]
    assert read_chain(store.bodies(), IDENTITY_OF_SEED.keys.home, IDENTITY_OF_SEED.keys.chunks) is not None


def test_the_courtesy_marker_follows_each_commit(buffer: BufferFolder) -> None:
    store = MemoryStore(PREFIX)
    held = run_seed(commit_chunk(IDENTITY_OF_SEED, claim(store), built(buffer)), store)
    run_seed(commit_chunk(IDENTITY_OF_SEED, held, built(buffer, 100, 200)), store)
    assert [body.decode() for body in store.versions[TEXT_MARKER]] == [
        MARKER["body"],
        f"{PREFIX}{NEXT_STEM}.index.json",
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (f"{PREFIX}2016-02-25/bar-00000-000000000500.index.json", None),
        (f"{PREFIX}2016-02-25/bar-00000-000000000500.index.json\n", None),
        (MARKER["body"], None),
        ("", MARKER["body"]),
        ("nonsense", MARKER["body"]),
    ],
    ids=["newer", "newer with a newline", "the same", "empty", "nonsense"],
)
def test_the_courtesy_marker_only_moves_forward(buffer: BufferFolder, found: str, expected: str | None) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(TEXT_MARKER, found.encode(), "before")
    run_seed(commit_chunk(IDENTITY_OF_SEED, held, built(buffer)), store)
    assert store.bodies()[TEXT_MARKER].decode() == (found if expected is None else expected)


def test_a_courtesy_that_fails_leaves_the_commit_standing(buffer: BufferFolder) -> None:
    for fate in (Fate.NOT_APPLIED, Fate.ANSWER_LOST):
        store = MemoryStore(PREFIX)
        held = claim(store)
        actor = Actor("a", commit_chunk(IDENTITY_OF_SEED, held, built(buffer)), store, MemoryLog([]), random.Random(1))
        while getattr(actor.operation, "key", None) != TEXT_MARKER:
            actor.step()
        actor.step(fate if isinstance(actor.operation, op.CompareAndSwap) else Fate.NOT_APPLIED)
        actor.run_to_end()
        assert actor.failure is None and actor.result.marker.next_offset == 100
        run_seed(commit_chunk(IDENTITY_OF_SEED, actor.result, built(buffer, 100, 200)), store)
        assert store.bodies()[TEXT_MARKER].decode() == f"{PREFIX}{NEXT_STEM}.index.json"


class RefusesTheCourtesy(MemoryStore):
    """The ancestor's marker may not be touched."""

    error: BlockgzError

    def get(self, key: str) -> StoredObject | None:
        if key == TEXT_MARKER:
            raise self.error
        return super().get(key)


@pytest.mark.parametrize("error", [AccessDenied("denied"), StoreError("a folder is in the way"), StoreUnavailable("?")])
def test_a_courtesy_that_is_refused_for_good_fails_no_commit(
    buffer: BufferFolder, caplog: pytest.LogCaptureFixture, error: BlockgzError
) -> None:
    store = RefusesTheCourtesy(PREFIX)
    store.error = error
    held = run_seed(commit_chunk(IDENTITY_OF_SEED, claim(store), built(buffer)), store)
    assert held.marker.next_offset == 100
    (logged,) = caplog.records
    assert logged.levelname == "WARNING" and error.what in str(logged.msg)


def test_a_record_without_a_timestamp_goes_into_the_first_of_january_1970(buffer: BufferFolder) -> None:
    settings = ChunkSettings(record_format("text"), ZlibCompressor(6), 100, LIMITS)
    chunk = ChunkBuilder(settings, buffer.new_file(), 0)
    chunk.add(batch_from_records([record(3, b"x", timestamp=-1, timestamp_type=-1)]), None, 0.0)
    store = MemoryStore(PREFIX)
    finished = chunk.finish(4)
    assert content_of(finished.body)
    run_seed(commit_chunk(IDENTITY_OF_SEED, claim(store), finished), store)
    assert "1970-01-01/bar-00000-000000000003.gz" in store.objects


FIRST_SEED = 20_260_700
SCHEDULES_TO_BREAK = 5_000


@pytest.mark.slow
@pytest.mark.parametrize("company", [PAIR, CROWD, COLLECTED], ids=["pair", "crowd", "collected"])
def test_no_schedule_loses_or_doubles_a_record_of_chunks_that_go_up_in_parts(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_store, "PART_BYTES", 0)
    scenario = short_partition()
    for seed in range(FIRST_SEED, FIRST_SEED + 100):
        run_schedule(scenario, seed, company)


def test_the_collector_finds_orphans_to_delete() -> None:
    scenario = short_partition()
    store = scenario.store.copy()

    def writer(name: str) -> Actor:
        return Actor(name, scenario.writer(name, random.Random(name)), store, scenario.log, random.Random(name))

    dies = writer("dies")
    while not isinstance(dies.operation, PutIfAbsent):
        dies.step()
    orphan = dies.operation.key
    dies.step(Fate.CRASH_AFTER)
    writer("lives").run_to_end()
    assert orphan in store.objects
    Actor("collector", collector(), store, scenario.log, random.Random(1)).run_to_end()
    assert orphan not in store.objects
    scenario.check_complete(store)


@pytest.mark.slow
def test_nor_a_schedule_in_which_the_tail_folds() -> None:
    full = MemoryStore()
    long_log = MemoryLog(records(range(64), value_bytes=0))
    filler = Actor("filler", archive_all(IDENTITY, long_log, "filler", lambda: 1), full, long_log, random.Random(1))
    filler.run_to_end()
    log = MemoryLog(records(range(70), value_bytes=0))

    def check_beginning(store: MemoryStore) -> None:
        check_history(store.versions, IDENTITY.keys.home)
        chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
        assert chain is not None
        assert [line.offset for line in chain.lines] == list(range(chain.next_offset))

    def check_all(store: MemoryStore) -> None:
        check_beginning(store)
        chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
        assert chain is not None and chain.next_offset == 70 and chain.marker["catalogs"]

    def writer(name: str, rng: random.Random) -> Run:
        return archive_all(IDENTITY, log, name, lambda: rng.randint(1, 3), takeovers=3)

    for seed in range(FIRST_SEED, FIRST_SEED + 60):
        simulate(Scenario(full, log, writer, check_beginning, check_all), seed)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_protocol_is_found_out_by_the_harm_it_does(name: str) -> None:
    assert first_violation("protocols", name, range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK))


@pytest.mark.slow
def test_the_machinery_that_breaks_protocols_breaks_none_by_itself() -> None:
    with breaking(untouched):
        assert first_violation("protocols", None, range(FIRST_SEED, FIRST_SEED + 100)) is None


def test_a_seed_gives_the_same_schedule_again() -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK)
    first, again = (str(first_violation("protocols", "A", seeds)) for _ in range(2))
    assert first == again
