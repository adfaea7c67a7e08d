"""Replays into librdkafka's mock cluster, and what goes wrong on the way."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection
from blockgz.kafka.fetching import KERNEL
from blockgz.record_filter import RecordFilter
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import CountingReader
from index_format.errors import CorruptBlock
from index_format.records import Record, iter_records
from replayer.errors import DeliveryFailed, ReplayRefused
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import NewTopic, parse_config
from replayer.replay.plan import RecordPlace, TimeBounds, describe_source, find_refusable, largest_block
from replayer.replay.replaying import lifted_settings
from replayer.replay.run import LaneResult, ReplayResult
from replayer.replay.sinks.producer import KafkaSink
from replayer.replay.target_topic import ROOM
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
from tests.support.replays import NoStore, replay_into
from tests.support.selections import selections_of

EVERY_BYTE = bytes(range(256))
ODDITIES = [
    Record(3, 1_760_000_000_000, 0, b"k", b"v", ()),
    Record(4, 1_760_000_000_001, 0, None, None, ()),
    Record(5, 1_760_000_000_000, 0, b"", b"", (("h", b"1"), ("h", b"2"), ("h", None), ("", b""))),
    Record(9, 5, 0, EVERY_BYTE, EVERY_BYTE, (("ü", EVERY_BYTE),)),
    Record(10, -1, 0, b"\xff", b"line\nbreak\0", ()),
    Record(11, 1, 0, b"tombstone", None, ()),
]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture(autouse=True, params=[True, False], ids=["kernel", "python"])
def _producers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr("blockgz.kafka.batch_producer.kernel_takes", lambda _: False)
    elif not KERNEL:
        pytest.skip(KERNEL.why_not)


def replay(
    cluster: MockCluster, selections: list[Selection], target: str, properties: dict[str, str] | None = None
) -> ReplayResult:
    cluster.create_topic(target)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **(properties or {})}
    return replay_into(KafkaSink(settings, target, NoStore()), selections)


def held(cluster: MockCluster, topic: str, partition: int) -> list[Record]:
    properties = {"bootstrap.servers": cluster.bootstrap_servers}
    bounds = KafkaAdmin(properties).watermarks(topic, [partition])[partition]
    reader = KafkaReader(properties)
    try:
        return [record for batch in reader.read(topic, partition, *bounds) for record in iter_records(batch)]
    finally:
        reader.close()


def without_offsets(made: list[Record]) -> list[tuple[object, ...]]:
    return [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in made]


def test_records_arrive_as_they_are_and_in_order(tmp_path: Path, cluster: MockCluster) -> None:
    archive = ArchiveWriter(tmp_path)
    first, second = archive.partition("odd", 0), archive.partition("odd", 2)
    first.commit(ODDITIES)
    second.commit(records(range(100, 400)), block_bytes=2000)
    second.commit(records(range(400, 450)))
    result = replay(cluster, selections_of(tmp_path, "odd"), "odd-copy")
    assert without_offsets(held(cluster, "odd-copy", 0)) == without_offsets(first.records)
    assert without_offsets(held(cluster, "odd-copy", 2)) == without_offsets(second.records)
    assert held(cluster, "odd-copy", 1) == []
    assert result.partitions == (LaneResult(0, 0, 6, (3, 12), (0, 6)), LaneResult(2, 2, 350, (100, 450), (0, 350)))
    assert (result.records, result.zero_timestamps) == (356, 0)
    assert result.bytes == sum(len(r.key or b"") + len(r.value or b"") for r in first.records + second.records)


def test_a_range_goes_after_what_the_target_holds(tmp_path: Path, cluster: MockCluster) -> None:
    writer = ArchiveWriter(tmp_path).partition("ranged", 0)
    writer.commit(records(range(50)), block_bytes=300)
    replay(cluster, selections_of(tmp_path, "ranged", 0, 5), "ranged-copy")
    result = replay(cluster, selections_of(tmp_path, "ranged", 17, 31), "ranged-copy")
    assert result.partitions == (LaneResult(0, 0, 14, (17, 31), (5, 19)),)
    expected = without_offsets([*writer.records[:5], *writer.records[17:31]])
    assert without_offsets(held(cluster, "ranged-copy", 0)) == expected


def test_timestamp_zero_is_sent_as_one_and_counted(tmp_path: Path, cluster: MockCluster) -> None:
    writer = ArchiveWriter(tmp_path).partition("zero", 0)
    writer.commit(records(range(4), timestamps=[0, 1, 0, 7]))
    result = replay(cluster, selections_of(tmp_path, "zero"), "zero-copy")
    assert result.zero_timestamps == 2
    assert [record.timestamp for record in held(cluster, "zero-copy", 0)] == [1, 1, 1, 7]


def test_an_empty_selection_writes_nothing(tmp_path: Path, cluster: MockCluster) -> None:
    ArchiveWriter(tmp_path).partition("nothing", 0).commit(records(range(5)))
    result = replay(cluster, selections_of(tmp_path, "nothing", 2, 2), "nothing-copy")
    assert result.partitions == (LaneResult(0, 0, 0, None, None),)
    assert held(cluster, "nothing-copy", 0) == []


def test_a_full_queue_makes_the_sender_wait(tmp_path: Path, cluster: MockCluster) -> None:
    writer = ArchiveWriter(tmp_path).partition("narrow", 0)
    writer.commit(records(range(500), value_bytes=200), block_bytes=10_000)
    properties = {"queue.buffering.max.messages": "50", "linger.ms": "1"}
    result = replay(cluster, selections_of(tmp_path, "narrow"), "narrow-copy", properties)
    assert result.partitions == (LaneResult(0, 0, 500, (0, 500), (0, 500)),)
    assert without_offsets(held(cluster, "narrow-copy", 0)) == without_offsets(writer.records)


def test_a_record_larger_than_the_queue_is_named(tmp_path: Path, cluster: MockCluster) -> None:
    writer = ArchiveWriter(tmp_path).partition("huge", 0)
    writer.commit(records(range(1), value_bytes=5000))
    properties = {"queue.buffering.max.kbytes": "1"}
    with pytest.raises(DeliveryFailed, match="does not fit") as caught:
        replay(cluster, selections_of(tmp_path, "huge"), "huge-copy", properties)
    assert "nothing was written" in caught.value.why


def test_what_the_cluster_does_not_take_ends_the_replay(tmp_path: Path, cluster: MockCluster) -> None:
    archive = ArchiveWriter(tmp_path)
    archive.partition("apart", 0).commit(records(range(20)))
    archive.partition("apart", 7).commit(records(range(20)))
    with pytest.raises(DeliveryFailed, match="did not accept a record for apart-copy:7") as caught:
        replay(cluster, selections_of(tmp_path, "apart"), "apart-copy")
    written = len(held(cluster, "apart-copy", 0))
    told = f"partition 0 [0..{written})" if written else "nothing was written"
    assert told in caught.value.why


def test_damage_ends_the_replay_and_says_what_was_written(tmp_path: Path, cluster: MockCluster) -> None:
    writer = ArchiveWriter(tmp_path).partition("damaged", 0)
    index = writer.commit(records(range(60)), block_bytes=500)
    data = tmp_path / (writer.keys.chunks + index.data.name)
    stored = bytearray(data.read_bytes())
    stored[index.blocks[3].byte_offset + 20] ^= 1
    data.write_bytes(stored)
    intact = index.blocks[3].first_record_offset
    with pytest.raises(CorruptBlock) as caught:
        replay(cluster, selections_of(tmp_path, "damaged"), "damaged-copy")
    assert f"written to the target: partition 0 [0..{intact})" in caught.value.why
    assert without_offsets(held(cluster, "damaged-copy", 0)) == without_offsets(writer.records[:intact])


def test_sources_are_summed_over_blocks(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("summed", 0)
    first = writer.commit(records(range(100)), block_bytes=300)
    writer.lose(120)
    second = writer.commit(records(range(120, 200)), block_bytes=300)
    (selection,) = selections_of(tmp_path, "summed")
    whole = asyncio.run(describe_source(selection))
    assert (whole.records, whole.bytes) == (180, first.raw_bytes + second.raw_bytes)
    assert whole.timestamps == TimeBounds(1_760_000_000_000, 1_760_000_000_199)
    assert [(gap.start, gap.end) for gap in whole.gaps] == [(100, 120)]
    assert whole.record_formats == {"json"}
    part = asyncio.run(describe_source(selections_of(tmp_path, "summed", 51, 53)[0]))
    cut = [block for block in first.blocks if block.first_record_offset <= 52 and block.last_record_offset >= 51]
    assert sum(block.num_records for block in cut) > part.records == 2
    assert (part.requests, part.stored_bytes) == (2, sum(block.byte_length for block in cut))
    assert (whole.requests, whole.stored_bytes) == (4, first.data.bytes + second.data.bytes)
    assert part.gaps == ()
    empty = asyncio.run(describe_source(selections_of(tmp_path, "summed", 100, 120)[0]))
    assert (empty.records, empty.bytes, empty.timestamps) == (0, 0, None)


def test_records_that_a_target_would_refuse_are_found(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("refusable", 3)
    keyed = [record._replace(key=b"k") for record in records(range(40))]
    keyed[30] = keyed[30]._replace(key=None)
    keyed[20] = keyed[20]._replace(value=b"x" * 1000)
    index = writer.commit(keyed, block_bytes=400)
    config = parse_config({"cleanup.policy": "compact", "max.message.bytes": "1000"})
    selections = selections_of(tmp_path, "refusable")
    without_key, too_large = asyncio.run(find_refusable(selections, config))
    assert without_key == RecordPlace(3, 30)
    assert too_large is None, "compressed it is smaller"
    too_large = asyncio.run(find_refusable(selections, config, codec="none"))[1]
    assert too_large is not None
    assert (too_large[0], too_large[1] > 1000) == (RecordPlace(3, 20), True)
    larger = replace(config, max_message_bytes=1100)
    assert asyncio.run(find_refusable(selections, larger, codec="none"))[1] is None
    others = Reading(RecordFilter(until=records([20])[0].timestamp))
    assert asyncio.run(find_refusable(selections, config, others, "none"))[1] is None
    assert asyncio.run(find_refusable(selections, None)) == (None, None)
    largest = max(block.byte_length_uncompressed for block in index.blocks)
    assert asyncio.run(largest_block(selections, 100)) == largest > 1000
    assert asyncio.run(largest_block(selections, 10_000)) == 10_000


@pytest.mark.parametrize("refuses", [False, True])
def test_a_new_topic_takes_every_record_at_first_unless_the_cluster_refuses(tmp_path: Path, refuses: bool) -> None:
    index = ArchiveWriter(tmp_path).partition("limited", 0).commit(records(range(40)))
    asked: list[NewTopic] = []

    def refuse_uncreatable(topic: NewTopic) -> None:
        asked.append(topic)
        if refuses:
            raise ReplayRefused("topic cannot be created", why="a policy", remedy="")

    creates = NewTopic("copy", 1, {"max.message.bytes": "100"})
    target: Any = SimpleNamespace(creates=creates, admin=SimpleNamespace(refuse_uncreatable=refuse_uncreatable))
    lifted, (note,) = asyncio.run(lifted_settings(target, selections_of(tmp_path, "limited"), Reading()))
    size = str(2 * max(block.byte_length_uncompressed for block in index.blocks) + ROOM)
    assert [topic.config for topic in asked] == [{"max.message.bytes": size}]
    assert lifted == ({} if refuses else {"max.message.bytes": size})
    assert ("refuses" in note and "(a policy): records above 100 are refused" in note) is refuses


@pytest.mark.parametrize("config", [{"max.message.bytes": "1048588"}, {}])
def test_a_limit_that_all_blocks_fit_is_not_raised(tmp_path: Path, config: dict[str, str]) -> None:
    ArchiveWriter(tmp_path).partition("limited", 0).commit(records(range(40)))
    target: Any = SimpleNamespace(creates=NewTopic("copy", 1, config))
    assert asyncio.run(lifted_settings(target, selections_of(tmp_path, "limited"), Reading())) == ({}, ())


def test_only_blocks_above_the_limit_are_read_for_sizes(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("sized", 0)
    writer.commit(records(range(40)), block_bytes=400)
    rows = records(range(40, 80))
    rows[20] = rows[20]._replace(value=b"x" * 1000)
    index = writer.commit(rows, block_bytes=400)
    reader = CountingReader(LocalReader(LocalAddress(str(tmp_path))))
    (partition,) = asyncio.run(ArchiveReader(reader).open_topic("sized"))
    selections = [Selection(partition, OffsetRange(0, 80))]
    before = reader.data_bytes_fetched
    config = parse_config({"max.message.bytes": "1000"})
    found = asyncio.run(find_refusable(selections, config, codec="none"))[1]
    assert found is not None and found[0] == RecordPlace(0, 60)
    (solo,) = (block for block in index.blocks if block.byte_length_uncompressed > 1000)
    assert reader.data_bytes_fetched - before == solo.byte_length
