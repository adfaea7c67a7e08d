"""Comparisons with topics on librdkafka's mock cluster."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from blockgz.archive.positions import OffsetRange
from blockgz.errors import Verdict
from blockgz.kafka import LogBounds
from index_format.objects import Gap
from index_format.records import Record, batch_from_records
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts, parse_config
from replayer.verify.comparison import compare_copy, compare_source, relation_of
from replayer.verify.report import ComparisonReport, PartitionComparison, RecordDifference, Relation
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
from tests.support.sampling import seeded_random
from tests.support.selections import selections_of

names = map("topic-{}".format, itertools.count())
ARCHIVED = records(range(200))


class FakeReader:
    """A topic's partition as it was made up, in batches of a size of its own."""

    def __init__(self, made: Sequence[Record], rows: int = 37) -> None:
        self._records = made
        self._rows = rows

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        inside = [record for record in self._records if start <= record.offset < end]
        for first in range(0, len(inside), self._rows):
            yield batch_from_records(inside[first : first + self._rows])


def archive_of(root: Path, made: Sequence[Record], gaps: Sequence[Gap] = ()) -> None:
    writer = ArchiveWriter(root).partition("orders", 0)
    half = len(made) // 2
    writer.commit(made[:half], block_bytes=700)
    writer.commit(made[half:], block_bytes=1500, gaps=gaps)


def copied(
    root: Path, cluster: MockCluster, found: Sequence[Record], start: int = 0, end: int = 2**62
) -> PartitionComparison:
    """Compares the archive's partition with a topic that holds `found`."""
    topic = next(names)
    cluster.create_topic(topic)
    cluster.produce(topic, 0, found)
    properties = {"bootstrap.servers": cluster.bootstrap_servers}
    bounds = KafkaAdmin(properties).watermarks(topic, [0])[0]
    reader = KafkaReader(properties)
    try:
        (selection,) = selections_of(root, "orders", start, end)
        return asyncio.run(compare_copy(selection, topic, bounds, reader, lambda *_: None))
    finally:
        reader.close()


def source_compared(
    root: Path, found: Sequence[Record], low: int = 0, policy: str = "delete", start: int = 0, end: int = 2**62
) -> PartitionComparison:
    facts = TopicFacts("orders", 1, None, parse_config({"cleanup.policy": policy}))
    (selection,) = selections_of(root, "orders", start, end)
    log_end = found[-1].offset + 1 if found else low
    return asyncio.run(compare_source(selection, facts, LogBounds(low, log_end), FakeReader(found), lambda *_: None))


def counts(result: PartitionComparison) -> tuple[int, int, int, int]:
    return result.records, result.differing, result.missing, result.extra


def test_a_true_copy_is_ok(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    result = copied(tmp_path, cluster, ARCHIVED)
    assert result.archived_digests is not None
    assert result.found_digests == result.archived_digests
    assert replace(result, archived_digests=None, found_digests=None) == PartitionComparison(
        0, records=200, archived=200, found=200
    )
    assert result.verdict is Verdict.OK


def test_a_copy_of_a_part_is_ok_for_that_part(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    assert copied(tmp_path, cluster, ARCHIVED[33:120], 33, 120).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"value": b"other"}, "value"),
        ({"value": b""}, "value"),
        ({"key": None}, "key"),
        ({"timestamp": 1_760_000_000_999}, "timestamp"),
        ({"headers": (("h", b"v"),)}, "headers"),
        ({"headers": (("h", None), ("h", b"v"))}, "headers"),
        ({"headers": ()}, "headers"),
    ],
)
def test_one_changed_record_is_found(
    tmp_path: Path, cluster: MockCluster, changes: dict[str, object], field: str
) -> None:
    made = [*ARCHIVED]
    made[110] = Record(110, 1_760_000_000_110, 0, b"k", None, (("h", b"v"), ("h", None)))
    archive_of(tmp_path, made)
    found = [*made]
    found[110] = made[110]._replace(**changes)  # type: ignore[arg-type]
    result = copied(tmp_path, cluster, found)
    assert counts(result) == (199, 1, 0, 0)
    assert result.first_difference is not None
    assert result.first_difference.fields == (field,)
    assert result.first_difference.archived == made[110]
    assert getattr(result.first_difference.found, field) == changes[field]
    assert result.verdict is Verdict.FAILURE


def test_a_missing_last_record_is_found(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    result = copied(tmp_path, cluster, ARCHIVED[:-1])
    assert counts(result) == (199, 0, 1, 0)
    assert result.first_difference == RecordDifference(_plain(ARCHIVED[-1]), None, ())
    assert result.verdict is Verdict.FAILURE


def test_an_extra_record_is_found(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    result = copied(tmp_path, cluster, [*ARCHIVED, ARCHIVED[5]])
    assert counts(result) == (200, 0, 0, 1)
    assert result.first_difference is not None
    assert result.first_difference.archived is None
    assert result.verdict is Verdict.FAILURE


def test_swapped_records_are_found(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    found = [*ARCHIVED]
    found[60], found[61] = found[61], found[60]
    result = copied(tmp_path, cluster, found)
    assert counts(result) == (198, 2, 0, 0)
    assert result.verdict is Verdict.FAILURE


def test_an_empty_copy_misses_all(tmp_path: Path, cluster: MockCluster) -> None:
    archive_of(tmp_path, ARCHIVED)
    assert counts(copied(tmp_path, cluster, [])) == (0, 0, 200, 0)


def test_timestamp_zero_sent_as_one_is_excused_and_nothing_else(tmp_path: Path, cluster: MockCluster) -> None:
    made = records(range(6), timestamps=[0, 1, 0, 5, 6, 7])
    archive_of(tmp_path, made)
    ones = [record._replace(timestamp=record.timestamp or 1) for record in made]
    result = copied(tmp_path, cluster, ones)
    assert (result.records, result.zero_timestamps, result.verdict) == (6, 2, Verdict.OK)
    ones[3] = ones[3]._replace(timestamp=1)
    ones[0] = ones[0]._replace(timestamp=2)
    assert counts(copied(tmp_path, cluster, ones)) == (4, 2, 0, 0)


def test_the_source_is_compared_by_offset(tmp_path: Path) -> None:
    made = [*ARCHIVED[:50], *ARCHIVED[70:]]
    archive_of(tmp_path, made)
    later = [*made, *records(range(200, 230))]
    result = source_compared(tmp_path, later)
    assert (counts(result), result.archived, result.found) == ((180, 0, 0, 0), 180, 180)
    assert (result.verdict, result.not_archived_yet) == (Verdict.OK, OffsetRange(200, 230))
    assert result.found_digests == result.archived_digests
    assert source_compared(tmp_path, later, start=20, end=60).records == 30
    without = [record for record in made if record.offset not in (30, 199)]
    result = source_compared(tmp_path, [*without, *later[180:]])
    assert counts(result) == (178, 0, 2, 0)
    assert result.first_difference == RecordDifference(_plain(ARCHIVED[30]), None, ())
    result = source_compared(tmp_path, [*made[:50], ARCHIVED[55], *made[50:]])
    assert (counts(result), result.extra_offsets) == ((180, 0, 0, 1), [OffsetRange(55, 56)])
    typed = [*made]
    typed[3] = typed[3]._replace(timestamp_type=1)
    assert source_compared(tmp_path, typed).first_difference == RecordDifference(
        _plain(made[3]), _plain(typed[3]), ("timestamp_type",)
    )
    zero = records(range(6), timestamps=[0, 1, 2, 3, 4, 5])
    archive_of(tmp_path / "zero", zero)
    ones = [record._replace(timestamp=record.timestamp or 1) for record in zero]
    assert counts(source_compared(tmp_path / "zero", ones)) == (5, 1, 0, 0)


def test_below_the_sources_low_watermark_is_excused(tmp_path: Path) -> None:
    archive_of(tmp_path, ARCHIVED)
    result = source_compared(tmp_path, ARCHIVED[120:], low=120)
    assert counts(result) == (80, 0, 0, 0)
    assert [(each.start, each.end) for each in result.excused] == [(0, 120)]
    assert result.verdict is Verdict.WARNING
    gone = source_compared(tmp_path, [], low=1000)
    assert (counts(gone), gone.verdict) == ((0, 0, 0, 0), Verdict.WARNING)
    assert source_compared(tmp_path, ARCHIVED[:150]).missing == 50


def test_compaction_since_is_excused_where_the_source_is_compacted(tmp_path: Path) -> None:
    archive_of(tmp_path, ARCHIVED)
    left = [record for record in ARCHIVED if record.offset % 3]
    assert source_compared(tmp_path, left).verdict is Verdict.FAILURE
    result = source_compared(tmp_path, left, policy="compact")
    assert (result.records, result.missing, result.verdict) == (len(left), 0, Verdict.WARNING)
    assert result.excused == [Gap(0, 199, "compaction has removed some source records since")]


def test_recorded_gaps_of_the_archive_are_excused(tmp_path: Path) -> None:
    gap = Gap(150, 160, "skipped")
    made = [record for record in ARCHIVED if record.offset not in gap]
    archive_of(tmp_path, made, [gap])
    result = source_compared(tmp_path, ARCHIVED)
    assert counts(result) == (190, 0, 0, 0)
    assert [(each.start, each.end) for each in result.excused] == [(150, 160)]


@pytest.mark.slow
def test_random_damage_is_counted_exactly(tmp_path: Path) -> None:
    archive_of(tmp_path, ARCHIVED)
    generator = seeded_random()
    for _ in range(20):
        lost = set(generator.sample(range(200), generator.randrange(20)))
        changed = set(generator.sample(sorted(set(range(200)) - lost), generator.randrange(20)))
        found = [
            record._replace(value=b"changed") if record.offset in changed else record
            for record in ARCHIVED
            if record.offset not in lost
        ]
        result = source_compared(tmp_path, found)
        assert counts(result) == (200 - len(lost) - len(changed), len(changed), len(lost), 0)
        assert {offset for run in result.missing_offsets for offset in range(*run)} == lost
        assert (result.found_digests == result.archived_digests) == (not lost and not changed)


def break_blocks(root: Path, *numbers: int) -> list[tuple[int, int]]:
    """Damages blocks of the first chunk; the offsets [start, end) that this costs."""
    (selection,) = selections_of(root, "orders")
    index = asyncio.run(selection.partition.chunk(selection.partition.marker.tail[0])).index
    data = next(root.glob(f"topic=orders/partition=00000/{index.data.name}"))
    stored = bytearray(data.read_bytes())
    for number in numbers:
        stored[index.blocks[number].byte_offset + 20] ^= 1
    data.write_bytes(stored)
    return [(index.blocks[n].first_record_offset, index.blocks[n].last_record_offset + 1) for n in numbers]


def test_what_a_source_holds_where_the_archive_is_damaged_is_lost_not_extra(tmp_path: Path) -> None:
    archive_of(tmp_path, ARCHIVED)
    lost = break_blocks(tmp_path, 1, 3)
    found = [record._replace(value=b"changed") if record.offset == 180 else record for record in ARCHIVED]
    result = source_compared(tmp_path, found)
    gone = sum(end - start for start, end in lost)
    assert [(each.start, each.end) for each in result.lost] == lost
    assert counts(result) == (199 - gone, 1, 0, 0)
    assert source_compared(tmp_path, ARCHIVED).verdict is Verdict.FAILURE


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "made without them"])
@pytest.mark.parametrize("broken", [(0,), (1, 2, 4), (-1,)], ids=["first", "some", "last"])
def test_a_copy_is_compared_after_what_the_archive_lost(
    tmp_path: Path, cluster: MockCluster, whole: bool, broken: tuple[int, ...]
) -> None:
    archive_of(tmp_path, ARCHIVED[:150])
    lost = break_blocks(tmp_path, *broken)
    readable = [r for r in ARCHIVED[:150] if not any(start <= r.offset < end for start, end in lost)]
    result = copied(tmp_path, cluster, ARCHIVED[:150] if whole else readable)
    assert counts(result) == (len(readable), 0, 0, 0)
    assert [(each.start, each.end) for each in result.lost] == lost
    assert result.verdict is Verdict.FAILURE


def test_no_more_ranges_are_named_than_fit_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.verify.comparison.MAX_RUNS", 3)
    archive_of(tmp_path, ARCHIVED)
    result = source_compared(tmp_path, [record for record in ARCHIVED if record.offset % 5])
    assert (result.missing, result.missing_offsets) == (40, [OffsetRange(n, n + 1) for n in (0, 5, 10)])


def test_what_a_topic_is_to_the_archive() -> None:
    assert relation_of("a", None, TopicFacts("a", 1, "id", None)) is Relation.SOURCE
    assert relation_of("a", "id", TopicFacts("a", 1, "id", None)) is Relation.SOURCE
    assert relation_of("a", "old", TopicFacts("a", 1, "new", None)) is Relation.COPY
    assert relation_of("a", None, TopicFacts("b", 1, None, None)) is Relation.COPY


def test_the_verdict_is_the_worst() -> None:
    report = ComparisonReport(Relation.COPY, [PartitionComparison(0, records=3)])
    assert report.verdict is Verdict.OK
    report.warnings.append("one")
    assert report.verdict is Verdict.WARNING
    report.partitions.append(PartitionComparison(1, extra=1))
    assert report.verdict is Verdict.FAILURE


def _plain(record: Record) -> Record:
    return record._replace(headers=tuple(record.headers))
