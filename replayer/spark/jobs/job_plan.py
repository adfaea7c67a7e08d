"""What a job reads, known before Spark is asked for anything: tasks, chunks, bytes, recorded gaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from index_format.chunk_index import Gap
from replayer.read.record_filter import RecordFilter
from replayer.read.selection import Selection
from replayer.spark.source.planning import Portion, Run, run_of, shared_out


class GapRead(NamedTuple):
    """A recorded gap inside what is read."""

    topic: str
    partition: int
    gap: Gap


@dataclass(frozen=True)
class JobPlan:
    """`bytes` are those of whole chunks as stored, `records` all of theirs: what is read is at most as much."""

    topics: tuple[str, ...]
    tasks: tuple[Run, ...]
    chunks: int
    records: int
    bytes: int
    gaps: tuple[GapRead, ...]


async def planned(
    selections: Sequence[Selection], record_filter: RecordFilter, task_bytes: int, min_tasks: int = 1
) -> JobPlan:
    """A plan for the selected records; chunks that the filter's times leave out are not in it."""
    wanted = record_filter.may_match if record_filter.by_time else None
    portions, gaps = [], []
    for partition, (start, end) in selections:
        if end <= start:
            continue
        run = run_of(partition, start, end)
        entries = [entry async for entry in partition.entries(start, end, wanted)]
        portions.append(Portion(partition, run, entries))
        found = [gap for gap in await partition.gaps() if gap.start < end and gap.end > start]
        gaps += [GapRead(run.topic, run.partition, gap) for gap in found]
    return JobPlan(
        tuple(dict.fromkeys(selection.partition.topic for selection in selections)),
        tuple(await shared_out(portions, task_bytes, min_tasks)),
        sum(len(portion.entries) for portion in portions),
        sum(entry.num_records for portion in portions for entry in portion.entries),
        sum(entry.bytes for portion in portions for entry in portion.entries),
        tuple(gaps),
    )
