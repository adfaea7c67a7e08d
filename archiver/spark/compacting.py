"""Compaction by the tasks of a Spark job, each of which compacts one partition as `archiver compact` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archiver.commit.driver import Driver, NoLog
from archiver.ingest.buffer import BufferFolder
from archiver.maintain.compact.planning import PartitionPlan
from archiver.maintain.compact.running import Compacted, Room, carry_out
from archiver.maintain.contents.compact import Compaction
from blockgz_runtime.spark.errors import TaskFailed, carry_errors, spark_errors
from blockgz_runtime.spark.session import session
from blockgz_runtime.spark.shipping import Shipped
from blockgz_runtime.store.opening import default_buffer_root, open_existing_store
from blockgz_runtime.store.retry import bounded_backoff
from blockgz_runtime.store.s3_settings import S3Settings


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

    def __call__(self, plan: PartitionPlan) -> Compacted:
        ended: list[Compacted] = []
        with carry_errors(TaskFailed):
            store = open_existing_store(self.archive, self.s3)
            driver = Driver(store, NoLog(), bounded_backoff(store.url), lambda: True)
            buffers = BufferFolder(self.buffer_dir or default_buffer_root(self.archive))
            try:
                room = Room(buffers, self.buffer_bytes, self.max_block_bytes)
                carry_out(store, [plan], self.compaction, driver, room, ended.append)
            finally:
                buffers.close()
        return ended[0]


def compact_on(master: str, plans: Sequence[PartitionPlan], task: CompactionTask) -> list[Compacted]:
    """How the compaction of each partition ended; the largest are begun first. Raises JobFailed, SparkFailed."""
    ordered = sorted(plans, key=lambda plan: plan.moved_bytes, reverse=True)
    with session("archiver compact", master, {}) as spark, spark_errors():
        return spark.sparkContext.parallelize(ordered, len(ordered)).map(task).collect()
