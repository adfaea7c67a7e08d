"""Compaction by the tasks of a Spark job, each of which compacts one partition as `archiver compact` does."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from archiver.ingest.buffer import BufferFolder
from archiver.maintain.compact import Compaction, Compactor, PartitionCompaction
from archiver.maintain.planned import RewriteResult
from archiver.maintain.throttle import Pace
from blockgz.spark.errors import TaskFailed, carry_errors, spark_errors
from blockgz.spark.session import session
from blockgz.spark.shipping import Shipped
from blockgz.store.opening import default_buffer_root, open_existing_store
from blockgz.store.s3_settings import S3Settings

_opened = lru_cache(maxsize=8)(open_existing_store)
"""Spark keeps its Python processes, and a client of S3 takes a second to make."""


@dataclass(frozen=True)
class CompactionTask(Shipped):
    """What a task does with the plan of a partition. A task that is repeated continues behind what is committed."""

    archive: str
    """As every machine finds it."""
    s3: S3Settings
    compaction: Compaction
    buffer_dir: Path | None
    buffer_bytes: int
    max_block_bytes: int
    bytes_per_second: int | None

    def __call__(self, plan: PartitionCompaction) -> RewriteResult[PartitionCompaction]:
        with carry_errors(TaskFailed):
            pace = Pace.of(_opened(self.archive, self.s3), self.bytes_per_second)
            with closing(BufferFolder(self.buffer_dir or default_buffer_root(self.archive))) as buffers:
                return Compactor(pace, self.compaction, buffers, self.buffer_bytes, self.max_block_bytes).compact(plan)


def compact_on(
    master: str, plans: Sequence[PartitionCompaction], task: CompactionTask
) -> list[RewriteResult[PartitionCompaction]]:
    """How the compaction of each partition ended; the largest are begun first. Raises JobFailed, SparkFailed."""
    ordered = sorted(plans, key=lambda plan: plan.moved_bytes, reverse=True)
    with session("archiver compact", master, {}) as spark, spark_errors():
        return spark.sparkContext.parallelize(ordered, len(ordered)).map(task).collect()
