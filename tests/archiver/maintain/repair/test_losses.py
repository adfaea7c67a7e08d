"""What is lost: found, brought back from Kafka, or accepted; nothing that can be read goes with it."""

import asyncio
import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.commit.recovery import close_folder
from archiver.errors import Fenced, RefetchRefused
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.compact import Compaction, PlannedCompaction, compact
from archiver.maintain.gc import plan_sweep
from archiver.maintain.planned import Problem
from archiver.maintain.repair import refetch
from archiver.maintain.repair.losses import SECOND_LOOK_SECONDS, PlannedLossRepair, loss_target
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairPlan, RepairTarget
from archiver.maintain.repair.refetch import RefetchSource
from archiver.maintain.repair.salvage import plan_salvage
from archiver.maintain.rewrite.chunks import OffsetRanges
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import fold_tail
from archiver.maintain.rewrite.tree import read_chain
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import Absent, look_up_all
from blockgz.errors import (
    AccessDenied,
    BlockgzError,
    KeyMissing,
    MalformedObject,
    NotInArchive,
    StoreUnavailable,
    UsageError,
    Verdict,
)
from index_format import marker as markers
from index_format.objects import LOST
from index_format.records import Record, batch_from_records
from replayer.spark.planning import DataLost, PartitionRange, refuse_gaps
from replayer.verify.report import Depth, PartitionFindings
from replayer.verify.verifying import verify_partition
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in, log_of, ranges
from tests.archiver.maintain.repair.world import MAX, Died, MortalStore
from tests.support.memory_reader import MemoryReader
from tests.support.repairs import carry_out

GRACE = 3600.0


@dataclasses.dataclass
class LossWorld(EraseWorld):
    """A partition whose objects are lost, and the cluster that it was archived from."""

    waited: list[float] = dataclasses.field(default_factory=list)
    topic_id: str | None = "id-1"
    cluster_id: str | None = "cluster-1"

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = self.store.objects["_archive.json"]
        body = json.dumps(json.loads(kept.body) | {"cluster_id": "cluster-1"}).encode()
        self.store.objects["_archive.json"] = kept._replace(body=body)

    @property
    def source(self) -> RefetchSource:
        def read(topic: str, partition: int, level: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
            assert (topic, partition, level) == ("orders", 3, "read_committed")
            found = [each for each in self.log.records if max(start, self.log.low) <= each.offset < end]
            if found:
                yield batch_from_records(found)

        return RefetchSource(lambda: self.cluster_id, lambda topic: self.topic_id, read)

    @property
    def target(self) -> RepairTarget:
        return RepairTarget(self.store, self.keys, MAX)

    def plan(self, kind: Any, folder: Path, **more: Any) -> PlannedLossRepair:
        """What would be done, by a clock that stands still but for waiting."""

        def wait(seconds: float) -> None:
            self.waited.append(seconds)

        more = {"rewrite_keys": self.rewrite_keys, "driver": self.maintainer(), "clock": lambda: 0.0, **more}
        return PlannedLossRepair(self.target, "memory:", folder, kind=kind, wait=wait, **more)

    def accept(self, folder: Path, **more: Any) -> PlannedLossRepair:
        """Accept all that is lost."""
        plan = self.plan("accept-loss", folder, **more)
        plan.carry_out()
        return plan

    def refetch(self, folder: Path, **more: Any) -> PlannedLossRepair:
        plan = self.plan("refetch", folder, source=self.source, **more)
        plan.carry_out()
        return plan

    def data_of(self, number: int) -> str:
        """The key of a chunk's data, by its place."""
        chain = read_chain(self.store, self.keys)
        assert chain is not None
        entry = sorted(chain.entries, key=lambda each: each.start_offset)[number]
        index = json.loads(self.store.objects[self.keys.chunks + entry.name].body)
        return str(self.keys.chunks + index["data"]["name"])

    def index_of(self, number: int) -> dict[str, Any]:
        chain = read_chain(self.store, self.keys)
        assert chain is not None
        entry = sorted(chain.entries, key=lambda each: each.start_offset)[number]
        found: dict[str, Any] = json.loads(self.store.objects[self.keys.chunks + entry.name].body)
        return found | {"key": self.keys.chunks + entry.name}

    def damage(self, number: int, block: int) -> set[int]:
        """Change a byte in a block; the offsets that are lost by that."""
        key, found = self.data_of(number), self.index_of(number)["chunks"][block]
        kept = self.store.objects[key]
        at = found["byte_offset"] + found["byte_length"] // 2
        body = kept.body[:at] + bytes([kept.body[at] ^ 0xFF]) + kept.body[at + 1 :]
        self.store.objects[key] = kept._replace(body=body)
        return set(range(found["first_record_offset"], found["last_record_offset"] + 1)) & self.stored

    def stored_in(self, number: int) -> set[int]:
        """The offsets of a chunk's records."""
        index = self.index_of(number)
        return set(range(index["first_offset"], index["last_offset"] + 1)) & self.stored

    def remove(self, number: int, *, with_index: bool = False) -> set[int]:
        """Delete a chunk's data, or both of its objects."""
        index, key, lost = self.index_of(number), self.data_of(number), self.stored_in(number)
        del self.store.objects[key]
        if with_index:
            del self.store.objects[index["key"]]
        return lost

    def append_rows(self, count: int) -> None:
        start = self.marker.next_offset or 0 if self.held else 0
        self._append([each.offset for each in self.log.records if each.offset >= start][:count])

    def findings(self) -> PartitionFindings:
        archive = ArchiveReader(MemoryReader(self.store.bodies()))

        async def verified() -> PartitionFindings:
            return await verify_partition(archive, "orders", 3, Depth.RECORDS, lambda *_: None)

        return asyncio.run(verified())

    def read(self) -> dict[int, bytes | None]:
        """All records that a reader gets who stops at damage."""
        return {offset: record.value for offset, record in self.archived_records().items()}

    def archived_records(self) -> dict[int, Record]:
        async def found() -> dict[int, Record]:
            archive = ArchiveReader(MemoryReader(self.store.bodies()))
            partition = await archive.open_partition("orders", 3)
            outcomes = await look_up_all(partition, range(partition.next_offset))
            return {at: each.record for at, each in outcomes.items() if not isinstance(each, Absent)}  # type: ignore[union-attr]

        return asyncio.run(found())

    def check_lost(self, lost: set[int]) -> None:
        """Everything is there but these offsets, whose loss is recorded."""
        found = self.findings()
        assert not found.damage and not found.lost, (found.damage, found.lost)
        expected = {each.offset: each.value for each in self.log.records if each.offset in self.stored - lost}
        expected = {at: value for at, value in expected.items() if at not in self.erased}
        assert self.read() == expected
        gaps = [gap for gap in found.gaps if gap.reason == LOST]
        assert lost <= {at for gap in gaps for at in range(gap.start, gap.end)}
        assert not {at for gap in gaps for at in range(gap.start, gap.end)} & set(expected)
        assert found.verdict is (Verdict.WARNING if found.gaps else Verdict.OK)


def world_of(chunks: int = 5, rows: int = 20, **fields: Any) -> LossWorld:
    """Chunks of some blocks each; the older ones are in a catalog, the newest is in the tail."""
    world = LossWorld(log=log_of(random.Random(1), 700), **fields)
    for _ in range(chunks):
        world.append_rows(rows)
    return world


def reasons(problems: list[Problem]) -> str:
    return "; ".join(f"{each.error.reason}: {each.error.remedy}" for each in problems)


def test_a_block_is_accepted_as_lost_and_all_others_stay(tmp_path: Path) -> None:
    world = world_of()
    assert len(world.index_of(1)["chunks"]) > 3
    lost = world.damage(1, 1)
    assert world.findings().verdict is Verdict.FAILURE
    plan = world.accept(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert plan.typed == "orders:3" and plan.summary()
    assert world.waited == [], "bytes that are there and wrong are not asked for again"
    world.check_lost(lost)
    (row,) = plan.as_json(dry_run=False)["lost"]
    assert (row["from"], row["records"], row["why"]) == (min(lost), len(lost), "damaged")
    chain = read_chain(world.store, world.keys)
    assert chain is not None and [gap.at for gap in chain.gaps if gap.reason == LOST] != []
    assert not world.plan("accept-loss", tmp_path).rows()


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_chunk_without_data_is_asked_for_twice_and_becomes_a_gap(number: int, tmp_path: Path) -> None:
    world = world_of()
    lost = world.remove(number)
    before = world.marker
    plan = world.accept(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert world.waited == [SECOND_LOOK_SECONDS]
    world.check_lost(lost)
    assert world.marker.next_offset == before.next_offset
    with pytest.raises(Fenced):
        world.append_rows(3)
    world.claim()
    world.append_rows(3)
    world.check_lost(lost)


def test_what_is_there_again_at_the_second_look_stays(tmp_path: Path) -> None:
    world = world_of()
    key = world.data_of(1)
    kept = world.store.objects[key]
    world.remove(1)
    plan = world.plan("accept-loss", tmp_path)
    plan._wait = lambda seconds: world.store.objects.update({key: kept})  # type: ignore[method-assign]
    plan.carry_out()
    assert "can be read by now" in reasons(plan.problems)
    world.check_lost(set())


def test_both_objects_of_a_chunk_are_gone(tmp_path: Path) -> None:
    world = world_of()
    lost = world.remove(1, with_index=True)
    world.accept(tmp_path)
    world.check_lost(lost)


def test_a_lost_index_beside_its_data_is_rebuilt_instead(tmp_path: Path) -> None:
    world = world_of()
    del world.store.objects[world.index_of(1)["key"]]
    plan = world.plan("accept-loss", tmp_path)
    assert plan.question is None
    assert "archiver repair index orders:3" in reasons(plan.problems)


@pytest.mark.parametrize("damaged", [[0], [1], [0, 1, 3], [-1]])
def test_data_without_its_index_is_kept_as_far_as_it_can_be_read(tmp_path: Path, damaged: list[int]) -> None:
    world = world_of()
    count = len(world.index_of(1)["chunks"])
    lost = set[int]().union(*(world.damage(1, block % count) for block in damaged))
    left = len(world.stored_in(1) - lost)
    del world.store.objects[world.index_of(1)["key"]]
    plan = world.accept(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert f"is lost and cannot be rebuilt: {left} records that its data holds are kept" in "; ".join(plan.notes)
    assert sum(row["records"] for row in plan.as_json(dry_run=False)["lost"]) == len(lost)
    world.check_lost(lost)


def test_whole_data_is_kept_without_an_index_that_told_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archiver.maintain.repair.losses.plan_indexes", lambda _: RepairPlan())
    world = world_of()
    del world.store.objects[world.index_of(1)["key"]]
    plan = world.accept(tmp_path)
    assert not plan.problems and plan.typed is None and plan.question == "Store 0 records of orders:3 again? "
    world.check_lost(set())


def test_kafka_brings_a_chunk_back_whose_index_is_lost_and_whose_data_is_damaged(tmp_path: Path) -> None:
    """What Kafka still has is not accepted as lost."""
    world = world_of()
    world.damage(1, 1)
    del world.store.objects[world.index_of(1)["key"]]
    refused = world.plan("accept-loss", tmp_path, source=world.source)
    assert refused.question is None and "archiver repair refetch orders:3" in reasons(refused.problems)
    plan = world.refetch(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    world.check_lost(set())


def test_kafka_brings_no_chunk_back_whose_data_holds_other_records(tmp_path: Path) -> None:
    """Without an index, the data is the only witness of what the log held."""
    world = world_of()
    lost = world.damage(1, 1)
    kept = min(world.stored_in(1) - lost)
    del world.store.objects[world.index_of(1)["key"]]
    records = world.log.records
    world.log.records = [each._replace(value=b"another") if each.offset == kept else each for each in records]
    plan = world.plan("refetch", tmp_path, source=world.source)
    assert plan.question is None and "the log holds other records at these offsets" in reasons(plan.problems)
    plan = world.accept(tmp_path, source=world.source)
    assert not plan.problems, reasons(plan.problems)
    world.log.records = records
    world.check_lost(lost)


def test_data_of_another_chunk_is_not_kept(tmp_path: Path) -> None:
    world = world_of()
    (first, second), index = map(world.data_of, (0, 1)), world.index_of(1)
    lost = world.stored_in(1)
    kept = world.store.objects[first]
    padded = kept.body[: index["data"]["bytes"]].ljust(index["data"]["bytes"], b"-")
    world.store.objects[second] = kept._replace(body=padded)
    del world.store.objects[index["key"]]
    plan = world.accept(tmp_path)
    assert not plan.problems and "the whole chunk counts as lost" in "; ".join(plan.notes)
    world.check_lost(lost)


@pytest.mark.parametrize("has_index", [False, True])
def test_only_data_that_no_other_index_names_may_be_the_lost_chunk(has_index: bool, tmp_path: Path) -> None:
    world = world_of()
    objects, data, index = world.store.objects, world.data_of(1), world.index_of(1)["key"]
    lost, body, kept = world.stored_in(1), objects.pop(data), objects.pop(index)
    name = data.rpartition("/")[2]
    orphan = name.replace(".gz", "~e1-0badc0de.gz")
    objects[data.replace(name, orphan)] = body
    if has_index:
        left = kept.body.replace(name.encode(), orphan.encode())
        objects[index.replace(".index", "~e1-0badc0de.index")] = kept._replace(body=left)
    plan = world.accept(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert (f"{len(lost)} records that its data holds are kept" in "; ".join(plan.notes)) != has_index
    world.check_lost(lost if has_index else set())


@pytest.mark.parametrize(
    "error", [AccessDenied("403"), StoreUnavailable("no answer"), BlockgzError("it has to be restored first")]
)
def test_no_answer_is_no_loss(error: BlockgzError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    world.remove(1)

    def refused(store: MortalStore, key: str) -> Any:
        raise error

    monkeypatch.setattr(MortalStore, "head", refused)
    with pytest.raises(type(error)):
        world.plan("accept-loss", tmp_path)


def test_damage_of_an_encrypted_chunk_needs_its_key(tmp_path: Path) -> None:
    keys = keys_in(tmp_path, 1)
    plain = encrypted_world(random.Random(1), 0, keys)
    world = world_of(identity=plain.identity, rewrite_keys=plain.rewrite_keys)
    lost = world.damage(1, 0)
    with pytest.raises(KeyMissing):
        world.plan("accept-loss", tmp_path, rewrite_keys=type(world.rewrite_keys)())
    plan = world.accept(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert lost and world.findings().verdict is Verdict.WARNING


def test_ranges_have_to_hold_all_that_is_lost_in_a_chunk(tmp_path: Path) -> None:
    world = world_of()
    lost = world.damage(1, 1) | world.damage(1, 3)
    other = world.damage(3, 0)
    plan = world.plan("accept-loss", tmp_path, within=OffsetRanges([range(min(lost), min(lost) + 1)]))
    assert plan.question is None and "lost too" in reasons(plan.problems)
    world.accept(tmp_path, within=OffsetRanges([range(min(lost), max(lost) + 1)]))
    found = world.findings()
    assert [each.start for each in found.lost] == [min(other)]
    world.accept(tmp_path)
    world.check_lost(lost | other)


def test_what_kafka_has_comes_back_as_it_was(tmp_path: Path) -> None:
    world = world_of()
    before = world.read()
    world.damage(1, 1)
    world.remove(2)
    world.damage(4, 0)
    refused = world.plan("accept-loss", tmp_path, source=world.source)
    assert refused.question is None and "archiver repair refetch orders:3" in reasons(refused.problems)
    plan = world.refetch(tmp_path)
    assert not plan.problems, reasons(plan.problems)
    assert {row["result"] for row in plan.as_json(dry_run=False)["lost"]} == {"comes back"}
    assert plan.typed is None
    world.check_lost(set())
    assert world.read() == before


def test_a_chunk_without_objects_comes_back_not_proved(tmp_path: Path) -> None:
    world = world_of()
    world.remove(1, with_index=True)
    plan = world.refetch(tmp_path)
    assert [row["result"] for row in plan.as_json(dry_run=False)["lost"]] == ["comes back, not proved"]
    world.check_lost(set())


def test_what_compaction_removed_stays_lost(tmp_path: Path) -> None:
    world = world_of()
    kept, gone = world.damage(1, 1), world.damage(1, 2)
    records = world.log.records
    world.log.records = [each for each in records if each.offset != min(gone)]
    with pytest.raises(UsageError, match="of orders:3 do not come back"):
        world.plan("refetch", tmp_path, source=world.source).check_unattended()
    plan = world.refetch(tmp_path)
    world.log.records = records
    assert plan.typed == "orders:3" and kept
    assert not plan.problems, reasons(plan.problems)
    world.check_lost(gone)


@pytest.mark.parametrize("with_index", [False, True])
def test_other_records_of_the_log_do_not_come_back(with_index: bool, tmp_path: Path) -> None:
    world = world_of()
    lost = world.remove(1, with_index=with_index)
    first, *rest = sorted(lost)
    records = world.log.records
    change = {"timestamp": 7} if with_index else {"value": b"another"}
    world.log.records = [each._replace(**change) if each.offset == first else each for each in records]
    plan = world.plan("refetch", tmp_path, source=world.source)
    rows = {row["from"]: row["result"] for row in plan.as_json(dry_run=True)["lost"]}
    assert rows[first].startswith("becomes a gap" if rest and not with_index else "stays lost")


@pytest.mark.parametrize("is_proved", [False, True])
def test_nothing_comes_back_unproved_after_the_log_was_truncated(
    is_proved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of encrypted blocks, and those in Arrow."""
    world = world_of()
    world.damage(1, 0)
    world.run(close_folder(world.keys, world.claim(), "orders~2", "repair"))
    monkeypatch.setattr(refetch, "is_provable", lambda index, **_: is_proved)
    plan = world.plan("refetch", tmp_path, source=world.source)
    assert (len(plan.planned), "the log was truncated" in reasons(plan.problems)) == (is_proved, not is_proved)


def test_erased_records_do_not_come_back(tmp_path: Path) -> None:
    world = world_of()
    offset = world.index_of(1)["chunks"][1]["first_record_offset"]
    world.erase(ranges(offset), tmp_path)
    world.damage(1, 1)
    world.refetch(tmp_path)
    world.check_lost(set())
    lost = world.remove(1, with_index=True)
    plan = world.plan("refetch", tmp_path, source=world.source)
    assert plan.question is None and "must not bring back" in reasons(plan.problems)
    world.accept(tmp_path)
    world.check_lost(lost - {offset})


@pytest.mark.parametrize(("cluster", "topic"), [("another", "id-1"), (None, "id-1")])
def test_another_cluster_is_refused(cluster: str | None, topic: str, tmp_path: Path) -> None:
    world = world_of(cluster_id=cluster, topic_id=topic)
    world.remove(1)
    with pytest.raises(RefetchRefused):
        world.plan("refetch", tmp_path, source=world.source)
    with pytest.raises(RefetchRefused):
        world.plan("accept-loss", tmp_path, source=world.source)


def test_of_a_topic_that_was_created_again_nothing_comes_back(tmp_path: Path) -> None:
    world = world_of(topic_id="id-2")
    lost = world.remove(1)
    assert world.plan("refetch", tmp_path, source=world.source).question is None
    world.accept(tmp_path, source=world.source)
    world.check_lost(lost)


def test_places_are_refused_with_the_reason(tmp_path: Path) -> None:
    world = world_of(1)
    target, offsets = loss_target(world.store, ["orders:3:4-7", "orders:3:9-10"], MAX)
    assert (str(target), list(offsets)) == ("orders:3", [range(4, 7), range(9, 10)])
    for places in (["orders"], ["orders:3", "orders:4"], ["orders:3:7-4"], ["orders:3:x"]):
        with pytest.raises(UsageError):
            loss_target(world.store, places, MAX)
    with pytest.raises(NotInArchive):
        PlannedLossRepair(loss_target(world.store, ["orders:4"], MAX)[0], "memory:", tmp_path, kind="refetch")
    del world.store.objects[world.keys.marker]
    with pytest.raises(MalformedObject, match="is missing"):
        world.plan("accept-loss", tmp_path)


@pytest.mark.parametrize("kind", ["accept-loss", "refetch"])
@pytest.mark.parametrize("half", [0.0, 0.5])
def test_a_repair_that_dies_at_any_request_can_be_run_again(kind: str, half: float, tmp_path: Path) -> None:
    start = world_of(3, 12)
    start.run(fold_tail(start.keys, ranges(0), "folder"))
    lost = start.damage(0, 1) | start.remove(1) | start.damage(2, 0)
    if kind == "refetch":
        lost = set()
    for died in range(1, 300):
        world: LossWorld = start.copy()  # type: ignore[assignment]
        world.store.dies_at = died + half
        again = {"source": world.source} if kind == "refetch" else {}
        try:
            world.plan(kind, tmp_path, **again).carry_out()
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        plan = world.plan(kind, tmp_path, **again)
        plan.carry_out()
        assert not plan.problems, reasons(plan.problems)
        world.check_lost(lost)
        if died % 8 == 0:
            collected(world)
            world.check_lost(lost)
    else:
        raise AssertionError("it never came to its end")
    assert died > 25


def collected(world: LossWorld) -> None:
    """Garbage is collected twice, a grace apart."""
    for _ in range(3):
        world.store.now += GRACE + 1
        plan = plan_sweep(world.store, (), GRACE, wait=lambda *_: None)
        assert not plan.problems, plan.problems
        plan.carry_out()


def test_gc_deletes_what_was_damaged_and_salvage_does_not_ask_for_it(tmp_path: Path) -> None:
    world = world_of()
    lost = world.damage(1, 1)
    damaged = world.data_of(1)
    world.accept(tmp_path)
    assert not plan_salvage(world.target).problems
    collected(world)
    assert damaged not in world.store.objects
    world.check_lost(lost)


def test_what_was_erased_stays_erased_in_a_lost_chunk(tmp_path: Path) -> None:
    world = world_of()
    offset = world.index_of(1)["chunks"][1]["first_record_offset"]
    world.erase(ranges(offset), tmp_path)
    lost = world.remove(1) - {offset}
    world.accept(tmp_path)
    world.check_lost(lost)
    assert offset in {n for each in world.findings().erased for n in range(each.start, each.end)}


def test_compaction_and_erasing_go_on_and_spark_stops_at_the_gap(tmp_path: Path) -> None:
    world = world_of()
    lost = world.damage(1, 1)
    world.accept(tmp_path)
    world.claim()
    world.run(fold_tail(world.keys, OffsetRanges([range(10_000)]), "folder"))
    buffers = BufferFolder(tmp_path)
    compaction = Compaction(MergeLimits(1 << 20, 1 << 20))
    tools = RewriteTools(world.maintainer(), world.store, buffers, 1 << 20, MAX)
    plan = PlannedCompaction(
        world.store,
        None,
        compaction,
        world.maintainer(),
        1 << 20,
        lambda plans: [compact(p, compaction, tools) for p in plans],
    )
    plan.carry_out()
    buffers.close()
    assert not plan.problems and plan.partitions
    world.check_lost(lost)
    world.erase(ranges(world.index_of(0)["first_offset"]), tmp_path)
    world.check_lost(lost)

    async def spark() -> None:
        partition = await ArchiveReader(MemoryReader(world.store.bodies())).open_partition("orders", 3)
        await refuse_gaps(partition, PartitionRange("orders", 3, min(lost), max(lost) + 1))

    with pytest.raises(DataLost, match=f"{min(lost)}"):
        asyncio.run(spark())


def test_a_lost_marker_is_rebuilt_after_an_accepted_loss(tmp_path: Path) -> None:
    world = world_of()
    lost = world.remove(1) | world.damage(3, 1)
    world.accept(tmp_path)
    collected(world)
    del world.store.objects[world.keys.marker]
    assert not carry_out(plan_marker(world.target, world.identity.group_id))
    world.check_lost(lost)


def test_progress_behind_the_newest_chunk_does_not_hide_it(tmp_path: Path) -> None:
    world = world_of()
    lost = world.remove(4)
    plan = world.plan("accept-loss", tmp_path)
    held = world.held
    assert held is not None
    marker = markers.advanced(held.marker, (held.marker.next_offset or 0) + 3, nonce="n", leader_epoch=None)
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), world.store.get(world.keys.marker).etag)
    plan.carry_out()
    assert not plan.problems, reasons(plan.problems)
    world.check_lost(lost)
