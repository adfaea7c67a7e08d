"""What a plan counts of a selection, and the times that it names."""

import asyncio
import random
from pathlib import Path

import pytest

from blockgz.archive.positions import Budget
from blockgz.archive.request import SKIPS, DamagePolicies
from blockgz.archive.selection import Reading
from blockgz.record_filter import KeyIn, RecordFilter
from index_format.errors import CorruptBlock
from replayer.replay.plan import TimeBounds, describe_source
from tests.support.archives import ArchiveWriter, records
from tests.support.selections import selections_of


@pytest.mark.slow
def test_records_and_times_are_those_of_the_selection(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(12):
        writer = ArchiveWriter(tmp_path).partition(
            f"chosen-{number}", 0, record_format=chance.choice(["json", "arrow"])
        )
        skew = chance.choice([0, 3, 40])
        for first in range(0, 120, 40):
            times = [1000 + each + chance.randint(-skew, skew) for each in range(first, first + 40)]
            times = [-1 if skew and chance.random() < 0.1 else time for time in times]
            writer.commit(records(range(first, first + 40), timestamps=times), block_bytes=chance.choice([300, 900]))
        for _ in range(8):
            start, end = sorted(chance.choices(range(121), k=2))
            since, until = sorted(chance.choices(range(960, 1160), k=2))
            asked = RecordFilter(chance.choice([None, since]), chance.choice([None, until]))
            (selection,) = selections_of(tmp_path, f"chosen-{number}", start, end)
            source = asyncio.run(describe_source(selection, Reading(asked)))
            kept = [
                record.timestamp
                for record in writer.records[start:end]
                if (asked.since is None or record.timestamp >= asked.since)
                and (asked.until is None or record.timestamp < asked.until)
            ]
            assert (source.records, source.is_exact) == (len(kept), True)
            assert source.timestamps == (TimeBounds(min(kept), max(kept)) if kept else None)
            keyed = RecordFilter(since, until, (KeyIn([b"1"]),))
            assert not asyncio.run(describe_source(selection, Reading(keyed))).is_exact


def test_blocks_beyond_the_budget_count_whole(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("budget", 0)
    index = writer.commit(records(range(100), timestamps=[1000, 2000] * 50), block_bytes=900)
    (selection,) = selections_of(tmp_path, "budget", 0, 99)
    later = Reading(RecordFilter(since=1500))
    source = asyncio.run(describe_source(selection, later, Budget()))
    assert (source.records, source.timestamps, source.is_exact) == (49, TimeBounds(2000, 2000), True)
    one = Budget(index.blocks[0].byte_length)
    source = asyncio.run(describe_source(selection, later, one))
    first, last = index.blocks[0].num_records // 2, (index.blocks[-1].num_records - 1) // 2
    between = sum(block.num_records for block in index.blocks[1:-1])
    assert (source.records, source.timestamps, source.is_exact) == (
        first + between + last,
        TimeBounds(1500, 2000),
        False,
    )


def test_a_damaged_block_at_the_edge_is_skipped_or_ends_the_plan(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("edge", 0)
    index = writer.commit(records(range(60)), block_bytes=500)
    data = tmp_path / (writer.keys.chunks + index.data.name)
    stored = bytearray(data.read_bytes())
    stored[index.blocks[1].byte_offset + 20] ^= 1
    data.write_bytes(stored)
    (selection,) = selections_of(tmp_path, "edge", index.blocks[1].first_record_offset + 1)
    with pytest.raises(CorruptBlock):
        asyncio.run(describe_source(selection))
    skipping = DamagePolicies(SKIPS)
    source = asyncio.run(describe_source(selection, Reading(on_damage=skipping.of)))
    assert source.records == 60 - index.blocks[2].first_record_offset
    assert [lost[:2] for _, lost in skipping.skipped] == [
        (selection.offsets.start, index.blocks[2].first_record_offset)
    ]
