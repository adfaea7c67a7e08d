"""What a policy asks of each topic, and when a rewrite is worth it: pure decisions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from archiver.maintain.contents.compact import Compaction
from archiver.maintain.contents.keys import RewriteKeys
from archiver.maintain.contents.merge import MergeLimits
from archiver.maintain.rewrite.planning import PartitionPlan
from archiver.maintain.rewrite.pruning import Keep
from blockgz.config.model import RunConfig, parse_age, parse_bytes
from blockgz.topic_patterns import TopicRules, TopicSelection
from index_format.marker import MAX_RETIRED, CatalogReference

RETIRED_A_DOUBLING = 8
RUNS_A_ROUND = 4
REWRITE_SECONDS = 600
"""One rewrite copies no more than the rate allows in this time, unless a single chunk has more."""


@dataclass(frozen=True)
class MaintenancePolicy:
    """Which topics are pruned and compacted, and how."""

    keep_seconds: TopicRules[float | None]
    keep_bytes: TopicRules[int | None]
    has_retention: bool
    compacted: TopicSelection | None
    """None: no topic is."""
    compaction: Compaction
    compact_chunks: int
    """A partition with fewer small chunks in its catalogs is not compacted."""

    @classmethod
    def of(cls, config: RunConfig) -> "MaintenancePolicy":
        """As the configuration has it."""
        return cls(
            TopicRules(config.archive_retention, parse_age),
            TopicRules(config.archive_retention_bytes, parse_bytes),
            bool(config.archive_retention or config.archive_retention_bytes),
            TopicSelection(config.compact) if config.compact else None,
            Compaction(
                MergeLimits(config.chunk_bytes // 2, config.chunk_bytes), keys=RewriteKeys.of(config.encrypt, None)
            ),
            config.compact_chunks,
        )

    def keeps(self, topic: str, clock: Callable[[], float]) -> list[Keep]:
        """What of each partition stays; more than one where what is beyond any of them goes.

        `clock`: the store's, in seconds: one of this machine that is wrong would prune what is new.
        """
        seconds, size = self.keep_seconds(topic), self.keep_bytes(topic)
        by_age = [] if seconds is None else [Keep(since_ms=round((clock() - seconds) * 1000))]
        return by_age if size is None else [*by_age, Keep(newest_bytes=size)]

    def is_compacted(self, topic: str) -> bool:
        return self.compacted is not None and bool(self.compacted([topic]))


def worth(retired: int) -> int:
    """How many times more a rewrite has to do where the marker lists so many retired ones, of 64 that it can list.

    They leave the marker only a grace after `archiver gc` saw them: without this, hourly rewrites would fill it.
    """
    return int(2 ** (retired // RETIRED_A_DOUBLING))


def is_prune_due(plan: PartitionPlan) -> bool:
    """Whether a prune takes enough: any at first, a larger share of the partition as retired rewrites pile up."""
    return plan.going.num_bytes * MAX_RETIRED >= plan.left_bytes * (worth(plan.retired) - 1)


def num_small(references: Iterable[CatalogReference], small_bytes: int) -> int:
    """Chunks in catalogs of level 1 whose chunks are smaller than `small_bytes` on average."""
    return sum(each.num_chunks for each in references if each.bytes < small_bytes * each.num_chunks)


def is_compaction_due(small: int, left: int, least: int, retired: int) -> bool:
    """Whether there are enough small chunks: `least` more than the last compaction had to leave.

    More than that are needed as retired rewrites pile up.
    """
    return small - left >= least * worth(retired)


def runs_of_a_round(planned: int, retired: int) -> int:
    """How many of the planned rewrites of a partition are carried out in one round.

    Compaction leaves half of a marker's list to prunes, and its time to other partitions.
    """
    return min(planned, RUNS_A_ROUND, max(1, MAX_RETIRED // 2 - retired))


def rewrite_bytes(buffer_bytes: int, bytes_per_second: int) -> int:
    """How much one rewrite copies: its claim on the partition, and the archiver's disk, are held no longer."""
    return min(buffer_bytes, bytes_per_second * REWRITE_SECONDS)
