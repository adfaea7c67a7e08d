"""Lost and damaged indexes and markers: what is made again is what was there, and never more than the log's records."""

import dataclasses
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from archiver.cli import main
from archiver.cli import main as archiver_main
from archiver.commit.commit import commit_chunk
from archiver.commit.operations import Driver
from archiver.commit.recovery import take_over
from archiver.errors import Fenced
from archiver.maintain.repair.catalogs import plan_catalogs
from archiver.maintain.repair.chunk_indexes import BEING_WRITTEN_SECONDS, plan_indexes
from archiver.maintain.repair.inventory import plan_inventory
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairPlan, RepairStep, RepairTarget
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.errors import StoreError
from blockgz.store.local import LocalStore
from index_format import marker as markers
from index_format.blocks import BlockBuilder
from index_format.keys import Conflict, inventory_key
from index_format.objects import BlockEntry, block_crc32, parse_inventory
from index_format.record_formats import record_format
from index_format.records import batch_from_records
from index_format.zstd_frames import ZstdCompressor
from replayer.cli import main as replayer
from replayer.cli import main as replayer_main
from tests.index_format.builders import record
from tests.support.ancestor_archives import OldChunk, OldWriter, rows_of, two_blocks
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, PartitionWriter, records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryBody, MemoryLog, MemoryStore
from tests.support.repairs import carry_out
from tests.support.sampling import mostly_long
from tests.support.simulator import Actor

MARKER = "last_chunk_index.json"
MAX = 1 << 20


def repair(what: str, root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(archiver_main, ["repair", what, *arguments, "-a", str(root)], prog_name="archiver")


def repaired(what: str, root: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The result of a repair that may not change or remove anything that was whole."""
    before = contents(root)
    done = repair(what, root, *arguments, "--yes", "--json")
    assert done.exit_code == code, done.output + done.stderr
    assert {key: body for key, body in before.items() if key.endswith((".gz", ".zst"))} == {
        key: body for key, body in contents(root).items() if key.endswith((".gz", ".zst"))
    }
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def contents(root: Path) -> dict[str, bytes]:
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def verified(root: Path) -> dict[str, Any]:
    done = CliRunner().invoke(replayer_main, ["verify", "--deep", "--records", "--json", "-a", str(root)])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def partition_of(root: Path, key_filter_bits: int | None = None, **settings: Any) -> PartitionWriter:
    """Chunks with all that a chain may have: gaps before and inside, progress, conflict names."""
    partition = ArchiveWriter(root).partition("orders", 3, **settings)
    partition.key_filter_bits = key_filter_bits
    partition.commit(records(range(10, 40)))
    partition.advance(45)
    partition.commit(records([*range(45, 60), *range(62, 70)]), next_offset=75)
    partition.lose(100)
    partition.commit(records(range(100, 130)), conflict=Conflict(2, "ab12cd34"))
    partition.commit(records(range(130, 140)))
    return partition


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize("damage", ["lost", "changed", "emptied"])
def test_an_index_is_rebuilt_byte_for_byte(tmp_path: Path, form: str, damage: str) -> None:
    partition_of(tmp_path, record_format=form)
    whole = contents(tmp_path)
    for path in tmp_path.rglob("*.index.json"):
        if damage == "lost":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-5] if damage == "changed" else b"")
    assert verified(tmp_path)["verdict"] == "FAILURE"
    result = repaired("index", tmp_path, "orders")
    assert [step["done"] for step in result["steps"]] == [True] * 4
    assert contents(tmp_path) == whole
    assert repaired("index", tmp_path, "orders")["steps"] == []


@pytest.mark.parametrize(("bits", "lost"), [(10, 4), (7, 1)])
def test_key_filters_are_rebuilt_too(tmp_path: Path, bits: int, lost: int) -> None:
    """By those of the chunks beside it; where none is left, those that the documentation names."""
    partition_of(tmp_path, bits)
    whole = contents(tmp_path)
    for path in sorted(tmp_path.rglob("*.index.json"))[:lost]:
        path.unlink()
    assert len(repaired("index", tmp_path, "orders")["steps"]) == lost
    assert contents(tmp_path) == whole


def test_one_chunk_by_its_key(tmp_path: Path) -> None:
    partition_of(tmp_path)
    whole = contents(tmp_path)
    for path in tmp_path.rglob("*.index.json"):
        path.unlink()
    key = "topic=orders/partition=00003/00000000000000000045.gz"
    (step,) = repaired("index", tmp_path, key)["steps"]
    assert step["key"] == key.replace(".gz", ".index.json")
    assert contents(tmp_path)[step["key"]] == whole[step["key"]]


def test_an_index_of_damaged_data_is_not_made(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    data = tmp_path / partition.keys.chunks / partition.indexes[1].data.name
    data.write_bytes(data.read_bytes()[:50] + b"\0" + data.read_bytes()[51:])
    (tmp_path / partition.keys.chunks / partition.marker.tail[1].name).unlink()
    result = repaired("index", tmp_path, "orders:3", code=3)
    assert result["steps"] == [] and "damaged" in result["problems"][0]["error"]


def test_an_index_that_said_something_else_is_not_made(tmp_path: Path) -> None:
    """A field that the data does not tell: what is made would not be what was committed."""
    partition = partition_of(tmp_path)
    marker = json.loads((tmp_path / partition.keys.marker).read_bytes())
    del marker["crc32"]
    marker["tail"][1]["sha256"] = hashlib.sha256(b"?").hexdigest()
    (tmp_path / partition.keys.marker).write_text(json.dumps(marker))
    result = repaired("index", tmp_path, "orders:3", code=3)
    assert "byte for byte" in result["problems"][0]["error"]


@pytest.mark.parametrize("state", ["lost", "damaged", "emptied"])
@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_marker_is_rebuilt(tmp_path: Path, state: str, form: str) -> None:
    partition = partition_of(tmp_path, record_format=form)
    path = tmp_path / partition.keys.marker
    before = verified(tmp_path)
    path.unlink() if state == "lost" else path.write_bytes(path.read_bytes()[:100] if state == "damaged" else b"")
    plan = repaired("marker", tmp_path, "orders")
    assert plan["steps"][0]["done"] and "nothing is lost below offset 140, only the marker" in plan["notes"][-1]
    after = verified(tmp_path)
    assert after == before and after["verdict"] == "WARNING"
    marker = markers.decode_marker(path.read_bytes())
    assert marker.tail == partition.marker.tail and marker.gaps == partition.marker.gaps
    assert (marker.next_offset, marker.tail_hash, marker.epoch) == (140, partition.marker.tail_hash, 3)
    assert repaired("marker", tmp_path, "orders")["steps"] == []


@pytest.mark.slow
def test_many_chunks_fold_into_catalogs(tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("orders", 3)
    for start in range(66):
        partition.commit(records([start]))
    (tmp_path / partition.keys.marker).unlink()
    before = contents(tmp_path)
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    repaired("marker", tmp_path, "orders:3")
    marker = markers.decode_marker((tmp_path / partition.keys.marker).read_bytes())
    assert (marker.tail, marker.catalogs) == (partition.marker.tail, partition.marker.catalogs)
    (tmp_path / partition.keys.marker).unlink()
    assert contents(tmp_path) == before
    repaired("marker", tmp_path, "orders:3")
    assert before.items() <= contents(tmp_path).items(), "a catalog that was there was replaced"
    assert verified(tmp_path)["partitions"][0]["records"] == 66


def test_everything_but_the_data_lost(tmp_path: Path) -> None:
    """Marker and all indexes: two steps, and the gap that nobody knows any more is one of unknown offsets."""
    partition = partition_of(tmp_path)
    whole = contents(tmp_path)
    for key in whole:
        if "partition=" in key and not key.endswith(".gz"):
            (tmp_path / key).unlink()
    assert "repair index" in repair("marker", tmp_path, "orders", "--dry-run").stderr
    assert len(repaired("index", tmp_path, "orders")["steps"]) == 4
    repaired("marker", tmp_path, "orders")
    report = verified(tmp_path)
    assert report["verdict"] == "WARNING"
    (found,) = report["partitions"]
    assert found["records"] == len(partition.records) and found["lost"] == []
    assert {gap["reason"] for gap in found["gaps"]} <= {"unverified"}


def test_a_marker_does_not_leave_out_data_that_can_be_indexed(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    (tmp_path / partition.keys.marker).unlink()
    (tmp_path / partition.keys.chunks / partition.marker.tail[1].name).unlink()
    result = repaired("marker", tmp_path, "orders", code=3)
    assert result["steps"] == [] and "has no index" in result["problems"][0]["error"]
    repaired("index", tmp_path, "orders")
    repaired("marker", tmp_path, "orders")
    assert verified(tmp_path)["partitions"][0]["records"] == len(partition.records)


def test_a_newest_chunk_that_lost_its_index_too_is_named(tmp_path: Path) -> None:
    """It may be an orphan as well; but where it is not, the next archiver would go on below it, or note a gap."""
    partition = partition_of(tmp_path)
    (tmp_path / partition.keys.marker).unlink()
    (tmp_path / partition.keys.chunks / partition.marker.tail[-1].name).unlink()
    result = json.loads(repair("marker", tmp_path, "orders", "--dry-run", "--json").stdout)
    data = partition.keys.chunks + partition.indexes[-1].data.name
    assert [note for note in result["notes"] if data in note and "repair index" in note]
    repaired("index", tmp_path, "orders")
    repaired("marker", tmp_path, "orders")
    assert verified(tmp_path)["partitions"][0]["records"] == len(partition.records)


def test_a_chunk_that_is_wholly_gone_is_a_gap(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    (tmp_path / partition.keys.marker).unlink()
    (tmp_path / partition.keys.chunks / partition.marker.tail[1].name).unlink()
    (tmp_path / partition.keys.chunks / partition.indexes[1].data.name).unlink()
    repaired("marker", tmp_path, "orders")
    (found,) = verified(tmp_path)["partitions"]
    assert found["lost"] == [] and {"from": 40, "to": 75, "reason": "unverified"} in found["gaps"]


IDENTITY = identity_of("topic", archive_id=ARCHIVE_ID)


def run(protocol: Any, store: Any, log: MemoryLog) -> Any:
    return Driver(store, log, lambda attempt, cause: None, lambda: True).run(protocol)


def with_identity(store: MemoryStore) -> MemoryStore:
    body = {
        "format": "block-gzip-archive",
        "version": 1,
        "archive_id": ARCHIVE_ID,
        "cluster_id": None,
        "layout": "topic",
    }
    store.put_if_absent("_archive.json", json.dumps(body).encode(), "test")
    return store


def rebuild(store: MemoryStore) -> None:
    plan = plan_marker(RepairTarget(store, IDENTITY.keys, MAX), IDENTITY.group_id)
    assert not plan.problems, [problem.error.why for problem in plan.problems]
    assert not carry_out(plan)


LOG = MemoryLog([record(n, b"%d" % n) for n in range(100)])


def chunk(start: int, end: int) -> Any:
    return finished_chunk("json", tuple(LOG.records[start:end]), start, end)


def marker_of(store: MemoryStore) -> markers.Marker:
    return markers.decode_marker(store.bodies()[IDENTITY.keys.marker])


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_an_index_of_zstd_frames(form: str) -> None:
    identity = dataclasses.replace(IDENTITY, codec="zstd", record_format=form)
    store = with_identity(MemoryStore())
    blocks, data = list[BlockEntry](), b""
    for start in (0, 10):
        builder = BlockBuilder(record_format(form), 0, MAX)
        raw = [*builder.add(batch_from_records(LOG.records[start : start + 10])), builder.finish()][-1]
        assert raw is not None
        frame = ZstdCompressor(3).compress(raw.raw)
        times = (raw.min_timestamp, raw.max_timestamp)
        entry = BlockEntry(
            len(raw.raw), 10, len(frame), len(data), start, start + 9, *times, crc32=block_crc32(raw.raw)
        )
        blocks, data = [*blocks, entry], data + frame
    plain = chunk(0, 20)
    held = run(take_over(identity, "a", POLICY), store, LOG).held
    run(commit_chunk(identity, held, plain._replace(body=MemoryBody.of(data), blocks=tuple(blocks))), store, LOG)
    (key,) = [key for key in store.objects if key.endswith(".index.json") and "partition=" in key and MARKER not in key]
    body = store.bodies()[key]
    store.delete(key)
    assert not carry_out(plan_indexes(RepairTarget(store, IDENTITY.keys, MAX)))
    assert store.bodies()[key] == body


def test_an_archiver_that_still_works_is_fenced_and_loses_nothing() -> None:
    store = with_identity(MemoryStore())
    claimed = run(take_over(IDENTITY, "a", POLICY), store, LOG)
    held = run(commit_chunk(IDENTITY, claimed.held, chunk(0, 10)), store, LOG)
    store.delete(IDENTITY.keys.marker)
    rebuild(store)
    with pytest.raises(Fenced):
        run(commit_chunk(IDENTITY, held, chunk(10, 20)), store, LOG)
    again = run(take_over(IDENTITY, "a", POLICY), store, LOG)
    assert again.position == 10
    run(commit_chunk(IDENTITY, again.held, chunk(10, 30)), store, LOG)
    assert marker_of(store).next_offset == 30


class WrittenMeanwhile(MemoryStore):
    """A store in which a writer goes on before the request with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.requests, self.at = 0, -1
        self.go_on: Callable[[], None] = lambda: None

    def _request(self) -> None:
        self.requests += 1
        if self.requests == self.at:
            self.at = -1
            self.go_on()

    def get(self, key: str) -> Any:
        self._request()
        return super().get(key)

    def list(self, prefix: str) -> Any:
        self._request()
        return super().list(prefix)


def plan_of(what: str, store: MemoryStore) -> RepairPlan:
    target = RepairTarget(store, IDENTITY.keys, MAX)  # type: ignore[arg-type]
    if what == "index":
        return plan_indexes(target)
    if what == "salvage":
        return plan_salvage(target)
    return plan_marker(target, "blockgz-archiver")


@pytest.mark.parametrize("what", ["index", "marker", "salvage"])
@pytest.mark.parametrize("chunks_before", [0, 1, 2])
def test_a_chunk_that_is_being_written_is_neither_lost_nor_repaired(what: str, chunks_before: int) -> None:
    """The writer has taken any number of its steps before, and takes the rest before any request of the repair."""
    steps, at = 0, 1
    while True:
        store = WrittenMeanwhile()
        with_identity(store)
        log = MemoryLog(LOG.records)
        held = run(take_over(IDENTITY, "a", POLICY), store, log).held
        for number in range(chunks_before):
            held = run(commit_chunk(IDENTITY, held, chunk(10 * number, 10 * number + 10)), store, log)
        store.now += BEING_WRITTEN_SECONDS
        start = 10 * chunks_before
        protocol = commit_chunk(IDENTITY, held, chunk(start, start + 10))
        writer = Actor("writer", protocol, store, log, random.Random(1))
        for _ in range(steps):
            if writer.is_alive:
                writer.step()
        was_alive = writer.is_alive
        store.requests, store.at, store.go_on = 0, at, writer.run_to_end
        plan = plan_of(what, store)
        assert not plan.problems and not plan.steps, (steps, at, plan)
        if store.at == -1:
            at += 1
        elif was_alive:
            steps, at = steps + 1, 1
        else:
            break


def test_a_chain_started_anew_gives_way_while_it_is_empty() -> None:
    store = with_identity(MemoryStore())
    claimed = run(take_over(IDENTITY, "a", POLICY), store, LOG)
    run(commit_chunk(IDENTITY, claimed.held, chunk(0, 10)), store, LOG)
    chain = marker_of(store).tail
    store.delete(IDENTITY.keys.marker)
    anew = run(take_over(IDENTITY, "b", POLICY), store, LOG)
    assert anew.position == 0
    store.now += BEING_WRITTEN_SECONDS
    rebuild(store)
    assert marker_of(store).tail == chain
    with pytest.raises(Fenced):
        run(commit_chunk(IDENTITY, anew.held, chunk(0, 10)), store, LOG)


def test_orphans_are_told_from_the_chain() -> None:
    """Two writers from one marker: one commits; the other one's chunk stays behind, longer, and is never taken."""
    store = with_identity(MemoryStore())
    first = run(take_over(IDENTITY, "a", POLICY), store, LOG)
    held = run(commit_chunk(IDENTITY, first.held, chunk(0, 10)), store, LOG)
    second = run(take_over(IDENTITY, "b", POLICY), store, LOG)
    with pytest.raises(Fenced):
        run(commit_chunk(IDENTITY, held, chunk(10, 60)), store, LOG)
    newer = run(commit_chunk(IDENTITY, second.held, chunk(10, 20)), store, LOG)
    store.delete(IDENTITY.keys.marker)
    rebuild(store)
    assert marker_of(store).tail == newer.marker.tail
    third = run(take_over(IDENTITY, "c", POLICY), store, LOG)
    run(commit_chunk(IDENTITY, third.held, chunk(20, 30)), store, LOG)
    chain = marker_of(store).tail
    store.delete(IDENTITY.keys.marker)
    rebuild(store)
    assert marker_of(store).tail == chain


def random_history(number: int) -> MemoryStore:
    """Claims, commits and orphans at random."""
    seed = f"{random.randrange(2**32)}/{number}"
    print(f"seed {seed}")
    rng = random.Random(seed)
    store = with_identity(MemoryStore())
    stale = []
    held = None
    for _ in range(rng.randrange(2, 25)):
        if held is None or rng.random() < 0.3:
            if held is not None:
                stale.append(held)
            held = run(take_over(IDENTITY, str(rng.random()), POLICY), store, LOG).held
        zombie = rng.choice([*stale, held])
        start = zombie.marker.next_offset or 0
        end = min(100, start + rng.randrange(1, 8))
        if end == start:
            break
        try:
            done = run(commit_chunk(IDENTITY, zombie, chunk(start, end)), store, LOG)
        except Fenced:
            continue
        held = done
    assert held is not None
    return store


@pytest.mark.parametrize("number", mostly_long(range(40), 10))
def test_catalogs_of_random_histories(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever orphans are beside the chunks, what is stored is what was there."""
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    store = random_history(number)
    for key in [key for key in store.bodies() if "_catalog/" in key]:
        whole = store.bodies()
        store.delete(key)
        plan = plan_catalogs(RepairTarget(store, IDENTITY.keys, MAX))
        assert not plan.problems and not carry_out(plan)
        # Fenced writers leave catalogs that no marker leads to.
        assert store.bodies() == (whole if plan.steps else {each: whole[each] for each in whole if each != key})


@pytest.mark.parametrize("number", mostly_long(range(20), 6))
def test_random_histories(number: int) -> None:
    """The new marker extends what was committed, by one orphan at most."""
    store = random_history(number)
    committed = marker_of(store)
    if not committed.tail:
        return
    store.delete(IDENTITY.keys.marker)
    rebuild(store)
    rebuilt = marker_of(store)
    assert rebuilt.epoch > max(json.loads(body)["epoch"] for key, body in store.bodies().items() if ".index." in key)
    assert rebuilt.tail[: len(committed.tail)] == committed.tail
    assert len(rebuilt.tail) <= len(committed.tail) + 1


def test_an_older_incarnation_leads_to_the_next(tmp_path: Path) -> None:
    archive = ArchiveWriter(tmp_path)
    old = archive.partition("orders", 0)
    old.commit(records(range(5)))
    old.hand_over("orders~2")
    archive.partition("orders", 0, incarnation=2).commit(records(range(9)))
    body = (tmp_path / old.keys.marker).read_bytes()
    (tmp_path / old.keys.marker).unlink()
    repaired("marker", tmp_path, "orders~1")
    again = markers.decode_marker((tmp_path / old.keys.marker).read_bytes())
    assert again.successor == markers.decode_marker(body).successor == "orders~2"


def test_a_chain_whose_catalog_is_lost_is_left_alone(tmp_path: Path) -> None:
    """What its entries said is not known then: an index made without them would not be the committed one."""
    partition = ArchiveWriter(tmp_path).partition("orders", 3)
    for start in range(65):
        partition.commit(records([start]))
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    (tmp_path / partition.keys.chunks / partition.marker.tail[-1].name).unlink()
    done = repair("index", tmp_path, "orders", "--yes")
    assert done.exit_code == 3 and "rebuild it: archiver repair catalog orders:3" in done.stderr
    (step,) = repaired("marker", tmp_path, "orders:3")["steps"]
    assert step["done"] and step["what"] == "catalog", "the marker itself stays"
    assert repaired("index", tmp_path, "orders")["steps"][0]["done"]
    assert verified(tmp_path)["verdict"] == "OK"


def folded(root: Path, monkeypatch: pytest.MonkeyPatch, chunks: int = 19) -> PartitionWriter:
    """Chunks in three levels of catalogs of two, with progress, and orphans of a dead writer beside them."""
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    partition = ArchiveWriter(root).partition("orders", 3)
    for start in range(0, chunks * 10, 10):
        partition.commit(records([start, start + 1]), next_offset=start + 2)
        if start % 30:
            partition.advance(start + 10)
        elif start:
            partition.lose(start + 10)
        else:
            partition.advance(10)
    return partition


@pytest.mark.parametrize("damage", ["lost", "changed", "emptied"])
def test_a_catalog_is_rebuilt_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Of each level; verify, readers and repairs name the command."""
    partition = folded(tmp_path, monkeypatch)
    whole = contents(tmp_path)
    catalogs = sorted(key for key in whole if "_catalog/" in key)
    assert {key.partition("_catalog/")[2][0] for key in catalogs} == {"1", "2", "3"}
    for key in catalogs:
        path, body = tmp_path / key, whole[key]
        path.unlink() if damage == "lost" else path.write_bytes(body[:-9] + b" " if damage == "changed" else b"")
        remedy = "rebuild it: archiver repair catalog orders:3"
        (found,) = verified(tmp_path)["partitions"]
        assert found["verdict"] == "FAILURE" and remedy in found["damage"][0]["reason"]
        for words in (["cat", "orders"], ["verify", "orders"]):
            read = CliRunner().invoke(replayer_main, [*words, "-a", str(tmp_path)])
            assert read.exit_code == 3 and remedy in read.output + read.stderr
        (step,) = repaired("catalog", tmp_path, "orders:3")["steps"]
        assert (step["key"], step["done"]) == (key, True)
        assert contents(tmp_path) == whole
    assert repaired("catalog", tmp_path, "orders:3")["steps"] == []
    assert partition.records


def test_catalogs_of_one_level_are_rebuilt_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded(tmp_path, monkeypatch)
    whole = contents(tmp_path)
    for path in [*tmp_path.rglob("_catalog/1-*"), *tmp_path.rglob("_catalog/3-*")]:
        path.unlink()
    assert len(repaired("catalog", tmp_path, "orders")["steps"]) > 3
    assert contents(tmp_path) == whole


def test_a_catalog_that_cannot_be_rebuilt_leads_to_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two levels are lost, as nobody may know how the lower ones were cut: the chain is rebuilt from the indexes."""
    partition = folded(tmp_path, monkeypatch)
    before = verified(tmp_path)["partitions"][0]
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    told = repaired("catalog", tmp_path, "orders:3", code=3)
    assert "archiver repair marker orders:3" in told["problems"][0]["do"]
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    (step,) = repaired("marker", tmp_path, "orders:3")["steps"]
    assert "its catalogs are lost" in step["detail"]
    after = verified(tmp_path)["partitions"][0]
    same = ("verdict", "records", "chunks", "digests", "lost")
    assert [after[name] for name in same] == [before[name] for name in same]


@pytest.mark.parametrize(
    "gone", ["00000000000000000045.gz", "~e2-ab12cd34.index.json", "00000000000000000010.index.json"]
)
def test_a_plan_does_not_call_whole_what_lacks_an_object(tmp_path: Path, gone: str) -> None:
    partition = partition_of(tmp_path)
    (tmp_path / partition.keys.marker).unlink()
    (lost,) = tmp_path.rglob(f"*{gone}")
    lost.unlink()
    for data in tmp_path.rglob(f"*{gone.replace('.index.json', '.gz')}"):
        data.unlink()
    done = repair("marker", tmp_path, "orders", "--dry-run")
    assert done.exit_code == 0 and "nothing is lost" not in done.output, done.output


def test_a_chain_that_ends_below_a_catalog_is_not_called_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = folded(tmp_path, monkeypatch)
    (tmp_path / partition.keys.marker).unlink()
    for whole in (True, False):
        plan = repair("marker", tmp_path, "orders", "--dry-run", "--json")
        assert ("nothing is lost below offset 182" in plan.output) == whole, plan.output
        for path in [*tmp_path.rglob("*170.gz"), *tmp_path.rglob("*170.index.json"), *tmp_path.rglob("*18?.*")]:
            path.unlink()


@pytest.mark.parametrize("number", ["00000000000000000040", "00000000000000000190"])
def test_a_lost_catalog_and_a_lost_index_have_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """Each command names the next one; the marker itself lists the last chunk."""
    partition = folded(tmp_path, monkeypatch, 20)
    before = verified(tmp_path)["partitions"][0]
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    (index,) = tmp_path.rglob(f"{number}.index.json")
    index.unlink()
    monkeypatch.setattr("archiver.maintain.repair.chunk_indexes.BEING_WRITTEN_SECONDS", -9.0)
    assert "repair catalog orders:3" in repair("index", tmp_path, "orders:3", "--yes").stderr
    assert "repair marker orders:3" in repair("catalog", tmp_path, "orders:3", "--dry-run").stderr
    told = repair("marker", tmp_path, "orders:3", "--dry-run").stderr
    key = f"{partition.keys.chunks}{number}.gz"
    assert f"archiver repair index {key}" in told
    assert repaired("index", tmp_path, key)["steps"][0]["done"]
    assert repaired("marker", tmp_path, "orders:3")["steps"][0]["done"]
    after = verified(tmp_path)["partitions"][0]
    assert after["lost"] == after["damage"] == []
    assert [after[name] for name in ("records", "digests")] == [before[name] for name in ("records", "digests")]


def test_a_chain_that_would_bring_records_back_is_not_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = folded(tmp_path, monkeypatch)
    path = tmp_path / partition.keys.marker
    marker = markers.decode_marker(path.read_bytes())
    (reference, *others) = marker.catalogs[-1]
    catalogs = (*marker.catalogs[:-1], (replace(reference, num_records=1), *others))
    path.write_bytes(markers.encode(replace(marker, catalogs=catalogs)))
    shutil.rmtree(tmp_path / partition.keys.home / "_catalog")
    told = repaired("marker", tmp_path, "orders:3", code=3)
    assert told["steps"] == [] and "erased ones may return" in told["problems"][0]["why"]


def test_a_partition_without_a_commit_needs_no_repair(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 3)
    done = repaired("marker", tmp_path, "orders:3")
    assert not done["steps"] and "nothing was committed yet" in done["notes"][0]


def test_an_archive_that_lost_its_identity_is_not_an_old_one(tmp_path: Path) -> None:
    partition_of(tmp_path)
    (tmp_path / "_archive.json").unlink()
    done = repair("marker", tmp_path, "orders", "--yes")
    assert done.exit_code == 10 and "_archive.json" in done.stderr


class TestSeedLayout:
    @pytest.fixture
    def partition(self, tmp_path: Path) -> PartitionWriter:
        partition = ArchiveWriter(tmp_path, "seed").partition("bar", 0, record_format="text")
        for start in (0, 30, 60):
            rows = [record(n, b"v%d" % n, timestamp=1_456_000_000_000 + n) for n in range(start, start + 30)]
            partition.commit(rows, block_bytes=10_000)
        return partition

    @pytest.mark.parametrize("lost", [".index.json", ".meta.json"])
    def test_either_index_from_the_other(self, tmp_path: Path, partition: PartitionWriter, lost: str) -> None:
        whole = contents(tmp_path)
        for path in tmp_path.rglob(f"*{lost}"):
            path.unlink()
        assert len(repaired("index", tmp_path, "bar")["steps"]) == 3
        assert contents(tmp_path) == whole

    def test_a_marker(self, tmp_path: Path, partition: PartitionWriter) -> None:
        (tmp_path / partition.keys.marker).unlink()
        repaired("marker", tmp_path, "bar:0")
        assert verified(tmp_path)["verdict"] == "OK"


class TestOldArchives:
    def test_an_index(self, tmp_path: Path) -> None:
        old = OldWriter(tmp_path)
        path = old.write(OldChunk(7, [rows_of(7, 50), ((b""), 0), rows_of(50, 70)]))
        index = path.with_suffix("").with_suffix("").with_name(path.stem + ".index.json")
        expected = index.read_bytes()
        index.unlink()
        (step,) = repaired("index", tmp_path, "2016-02-24/" + path.name)["steps"]
        assert index.read_bytes() == expected and "counted" in step["detail"]
        index.write_bytes(b"{")
        repaired("index", tmp_path, "bar")
        assert index.read_bytes() == expected
        assert repaired("index", tmp_path, "bar:0")["steps"] == []

    def test_damaged_data_gets_no_index(self, tmp_path: Path) -> None:
        OldWriter(tmp_path).write(two_blocks(has_index=False, damage=lambda data: data.__delitem__(slice(-3, None))))
        assert repaired("index", tmp_path, "bar", code=3)["steps"] == []

    @pytest.mark.parametrize("body", [None, "nonsense", "pfx/2016-02-24/bar-00000-000000000900.index.json"])
    def test_a_marker(self, tmp_path: Path, body: str | None) -> None:
        old = OldWriter(tmp_path)
        old.write(two_blocks())
        old.write(two_blocks(100, date="2016-02-25"))
        if body is not None:
            old.mark(body)
        repaired("marker", tmp_path, "bar")
        path = tmp_path / "last_chunk_index.bar-00000.txt"
        assert path.read_text() == "2016-02-25/bar-00000-000000000100.index.json"
        path.write_text(path.read_text() + "\n")
        assert repaired("marker", tmp_path, "bar")["steps"] == []


@pytest.mark.parametrize(
    ("what", "place", "code"),
    [
        ("index", "gone", 4),
        ("index", "orders:9", 4),
        ("index", "orders:x", 2),
        ("index", "a/b", 2),
        ("marker", "gone", 4),
        ("marker", "topic=orders/partition=00003/00000000000000000045.gz", 2),
    ],
)
def test_what_is_not_there(tmp_path: Path, what: str, place: str, code: int) -> None:
    partition_of(tmp_path)
    assert repair(what, tmp_path, place, "--yes").exit_code == code


def test_a_plan_first(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    (tmp_path / partition.keys.marker).unlink()
    before = contents(tmp_path)
    dry = repair("marker", tmp_path, "orders", "--dry-run")
    assert dry.exit_code == 0 and "4 chunks, offsets [10..140)" in dry.stdout
    refused = repair("marker", tmp_path, "orders")
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert contents(tmp_path) == before


def test_the_json_tells_steps_apart_that_store_the_same_object() -> None:
    """As two gaps of a partition are filled by two swaps of its marker."""

    def refused() -> None:
        raise StoreError("marker.json has changed")

    steps = [RepairStep("orders:0", "gap", "marker.json", "10 records", what) for what in (lambda: None, refused)]
    plan = RepairPlan(steps)
    plan.carry_out()
    assert [step["done"] for step in plan.as_json(dry_run=False)["steps"]] == [True, False]
    assert [problem.where for problem in plan.problems] == ["marker.json"]


def run_repair(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def verify_inventory(root: Path, *args: str) -> dict[str, Any]:
    result = CliRunner().invoke(replayer, ["verify", *args, "--json", "-a", str(root)])
    report: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (3 if report["verdict"] == "FAILURE" else 0)
    return report


def listed(root: Path, layout: str = "topic") -> dict[str, tuple[int, ...]]:
    inventory = parse_inventory((root / inventory_key(layout)).read_bytes(), "it")
    return {str(each.folder): each.partitions for each in inventory.incarnations}


def archive(root: Path, layout: str = "topic", *, has_inventory: bool = True) -> ArchiveWriter:
    writer = ArchiveWriter(root, layout, has_inventory=has_inventory)
    places = [("orders", 1, 0), ("orders", 1, 1), ("users", 1, 4)]
    for topic, incarnation, number in [*places, ("orders", 2, 0)] if layout == "topic" else places:
        writer.partition(topic, number, incarnation=incarnation).commit(records(range(5)))
    return writer


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_an_older_archive_gets_one_of_what_is_there(tmp_path: Path, layout: str) -> None:
    archive(tmp_path, layout, has_inventory=False)
    report = verify_inventory(tmp_path)
    assert report["verdict"] == "WARNING" and "archiver repair inventory" in report["warnings"][0]
    assert run_repair("repair", "inventory", "-a", str(tmp_path), "--dry-run").exit_code == 0
    assert not (tmp_path / inventory_key(layout)).exists()
    assert run_repair("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    second = {"orders~2": (0,)} if layout == "topic" else {}
    assert listed(tmp_path, layout) == {"orders": (0, 1), "users": (4,)} | second
    report = verify_inventory(tmp_path)
    assert report["verdict"] == "OK" and report["inventory_rebuilt_ms"] is not None
    assert "nothing to store" in run_repair("repair", "inventory", "-a", str(tmp_path)).stdout


def test_a_damaged_one_is_rebuilt(tmp_path: Path) -> None:
    archive(tmp_path)
    (tmp_path / "_inventory.json").write_bytes(b"{}")
    assert verify_inventory(tmp_path)["verdict"] == "FAILURE"
    assert run_repair("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0, 1), "orders~2": (0,), "users": (4,)}


def test_what_is_lost_is_not_taken_out_by_a_repair(tmp_path: Path) -> None:
    writer = archive(tmp_path)
    shutil.rmtree(tmp_path / "topic=orders" / "partition=00001")
    writer.has_inventory = False
    writer.partition("users", 5)
    assert run_repair("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0, 1), "orders~2": (0,), "users": (4, 5)}
    assert parse_inventory((tmp_path / "_inventory.json").read_bytes(), "it").rebuilt_at is None


def test_a_partition_that_is_claimed_meanwhile_is_listed(tmp_path: Path) -> None:
    """Its writer found no inventory before the first listing was stored."""
    writer = archive(tmp_path, has_inventory=False)

    class Store(LocalStore):
        def compare_and_swap(self, key: str, body: bytes, expected: Any) -> Any:
            if not (tmp_path / "topic=late").exists():
                writer.partition("late", 0)
            return super().compare_and_swap(key, body, expected)

    plan = plan_inventory(Store(tmp_path), "topic")
    assert not carry_out(plan) and listed(tmp_path)["late"] == (0,)


def test_only_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    archive(tmp_path)
    refused = run_repair("forget", "orders", "-a", str(tmp_path), "--yes")
    assert refused.exit_code != 0 and "nothing of orders is missing" in refused.output
    for unknown in ("nowhere", "orders:77", "orders~9"):
        refused = run_repair("forget", unknown, "-a", str(tmp_path), "--yes")
        assert refused.exit_code == 4 and f"{unknown} is not in the inventory" in refused.output
    shutil.rmtree(tmp_path / "topic=orders" / "partition=00001")
    shutil.rmtree(tmp_path / "topic=orders~2")
    shutil.rmtree(tmp_path / "topic=users")
    report = verify_inventory(tmp_path)
    assert report["verdict"] == "FAILURE" and report["missing"] == [
        {"topic": "orders", "incarnation": 1, "partition": 1},
        {"topic": "orders", "incarnation": 2, "partition": 0},
        {"topic": "users", "incarnation": 1, "partition": 4},
    ]
    assert run_repair("forget", "orders~1:1", "-a", str(tmp_path), "--dry-run").exit_code == 0
    assert listed(tmp_path)["orders"] == (0, 1)
    assert run_repair("forget", "orders~1:1", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0,), "orders~2": (0,), "users": (4,)}
    assert run_repair("forget", "orders", "users:4", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0,)} and verify_inventory(tmp_path)["verdict"] == "OK"


def test_an_archive_whose_topics_are_gone_is_not_ok(tmp_path: Path) -> None:
    archive(tmp_path)
    for folder in tmp_path.glob("topic=*"):
        shutil.rmtree(folder)
    report = verify_inventory(tmp_path)
    assert report["verdict"] == "FAILURE" and len(report["missing"]) == 4
    report = verify_inventory(tmp_path, "users")
    assert [each["topic"] for each in report["missing"]] == ["users"]
    text = CliRunner().invoke(replayer, ["verify", "-a", str(tmp_path)]).stdout
    assert "FAILURE orders~2:0 is missing" in text


def test_an_archive_of_nothing_is_a_warning_unless_a_topic_is_expected(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path)
    assert verify_inventory(tmp_path)["verdict"] == "WARNING"
    report = verify_inventory(tmp_path, "--expect", "orders")
    assert report["verdict"] == "FAILURE" and report["unmet"] == ["orders"]


def test_an_expected_topic_that_is_there(tmp_path: Path) -> None:
    archive(tmp_path)
    assert verify_inventory(tmp_path, "--expect", "orders", "--expect", "orders~2")["verdict"] == "OK"
    assert verify_inventory(tmp_path, "users", "--expect", "order")["unmet"] == ["order"]
    (tmp_path / "_inventory.json").unlink()
    assert verify_inventory(tmp_path)["verdict"] == "FAILURE"


def test_a_named_partition_that_is_lost_is_a_failure(tmp_path: Path) -> None:
    archive(tmp_path)
    shutil.rmtree(tmp_path / "topic=users" / "partition=00004")
    report = verify_inventory(tmp_path, "users:4")
    assert report["verdict"] == "FAILURE" and report["missing"][0]["partition"] == 4
