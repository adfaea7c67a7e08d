"""What a prune would take from each partition of an archive, shown before it is carried out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archiver.commit.driver import Driver, NoLog, Wait
from archiver.commit.lost_markers import lost_marker
from archiver.commit.objects import read_marker
from archiver.commit.operations import Protocol
from archiver.maintain.partitions import Problem, plan_each, rewritable_partitions
from archiver.maintain.rewrite.intent import Outcome
from archiver.maintain.rewrite.pruning import Keep, PrunePlan, has_no_age, prune, prune_plan
from archiver.maintain.rewrite.tree import level_1_lists
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format.errors import BlockgzError
from index_format.keys import LAYOUTS, PartitionKeys, parse_topic_folder
from index_format.marker import Marker


class PartitionPlan(NamedTuple):
    """What goes of one partition, and what stays."""

    keys: PartitionKeys
    going: PrunePlan
    left_chunks: int
    left_records: int
    left_bytes: int
    next_offset: int
    retired: int
    """Rewrites that the marker lists as retired already."""

    @property
    def name(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"


@dataclass(frozen=True)
class PrunePlans:
    """What goes of an archive."""

    partitions: tuple[PartitionPlan, ...]
    untouched: int
    """Partitions of which everything stays."""
    problems: tuple[Problem, ...]

    @property
    def num_bytes(self) -> int:
        """Of the data that goes, as stored."""
        return sum(each.going.num_bytes for each in self.partitions)

    @property
    def num_chunks(self) -> int:
        return sum(each.going.num_chunks for each in self.partitions)


class Pruned(NamedTuple):
    """How the prune of one partition ended."""

    plan: PartitionPlan
    outcome: Outcome | None
    error: BlockgzError | None = None


def plan_pruning(store: ToolStore, selection: TopicSelection | None, keep: Keep, wait: Wait) -> PrunePlans:
    """What goes of the selected topics, or of all, as the markers are now; trouble with one partition is a problem.

    Raises NoArchiveThere, NotInArchive, UsageError for layout seed, and what keeps the archive from being listed.
    """
    partitions = rewritable_partitions(store, selection, "pruned", "let a rule of the store delete what is old")
    driver = Driver(store, NoLog(), wait, lambda: True)
    plans, problems = plan_each(partitions, lambda keys: driver.run(partition_plan(keys, keep)))
    return PrunePlans(tuple(plans), len(partitions) - len(plans) - len(problems), tuple(problems))


def carry_out(store: ToolStore, plans: Sequence[PartitionPlan], wait: Wait, on_done: Callable[[Pruned], None]) -> None:
    """Prune each partition as planned; `on_done` gets how each ended. Trouble with one does not keep others back."""
    driver = Driver(store, NoLog(), wait, lambda: True)
    for plan in plans:
        try:
            pruned = Pruned(plan, driver.run(prune(plan.keys, plan.going.pruned_before)))
        except BlockgzError as error:
            pruned = Pruned(plan, None, error)
        on_done(pruned)


def partition_plan(keys: PartitionKeys, keep: Keep) -> Protocol[PartitionPlan | None]:
    """What goes of one partition as its marker is now; None where all of it stays.

    Raises what keeps it from being read.
    """
    held = yield from read_marker(keys.marker)
    if held is None:
        raise lost_marker(keys)
    if held.marker.next_offset is None:
        return None
    marker: Marker = held.marker
    lists = yield from level_1_lists(keys, marker, 0, held.marker.next_offset)
    if keep.since_ms is not None and (yield from _older_stays(keys, marker, keep.since_ms)):
        return None
    going = prune_plan([each for references in lists for each in references], marker.num_bytes, keep)
    if going is None:
        return None
    return PartitionPlan(
        keys,
        going,
        left_chunks=marker.num_chunks - going.num_chunks,
        left_records=marker.num_records - going.num_records,
        left_bytes=marker.num_bytes - going.num_bytes,
        next_offset=held.marker.next_offset,
        retired=len(marker.retired),
    )


def _older_stays(keys: PartitionKeys, marker: Marker, since_ms: int) -> Protocol[bool]:
    """Return whether a folder that the partition continues holds a record that is to stay.

    The floor of a folder hides all that lies below it, in older folders as well; late records and clocks that are ahead
    may be in any of them.
    """
    while marker.continues:
        offset = marker.continues.offset
        keys = LAYOUTS[keys.layout](parse_topic_folder(marker.continues.folder), keys.partition)
        held = yield from read_marker(keys.marker)
        if held is None:
            raise lost_marker(keys)
        marker = held.marker
        for span in marker.spans:
            if span.start_offset < offset and (span.max_timestamp >= since_ms or has_no_age(span)):
                return True
    return False
