"""What driver and tasks of a write share: the archive, and how a partition is found in it."""

from dataclasses import dataclass
from functools import lru_cache

from archiver.commit.archive import find_incarnation, open_archive
from archiver.commit.commit import PartitionIdentity
from archiver.commit.driver import Driver, NoLog
from archiver.commit.recovery import TakeoverPolicy, last_folder
from archiver.spark.options import SinkOptions
from archiver.spark.rows import SourcePartition
from blockgz.config.model import RunConfig
from blockgz.store.customer_key import fingerprint_of
from blockgz.store.opening import open_store
from blockgz.store.probe import probe
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings
from blockgz.store.writer import ToolStore
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, archive_key


@dataclass(frozen=True)
class WriteContext:
    """Picklable: made on the driver, and opened again wherever it is sent."""

    options: SinkOptions
    archive: ArchiveInfo

    @property
    def archive_id(self) -> str:
        """What every object of the archive names."""
        return self.archive.archive_id

    @property
    def config(self) -> RunConfig:
        """The settings that the options gave."""
        return self.options.config

    @property
    def store(self) -> ToolStore:
        """The store, opened once in a process."""
        return _opened(self.config.archive, self.config.s3)

    @property
    def policy(self) -> TakeoverPolicy:
        """What the options decide in advance."""
        return TakeoverPolicy.of(self.config)

    def identity(self, partition: SourcePartition) -> PartitionIdentity:
        """What every object of a partition says; settles the folder of its topic. Raises BadName."""
        config = self.config
        topic_id = self.options.topic_ids.get(partition.topic)
        folder = find_incarnation(self.store, layout=config.layout, topic=partition.topic, topic_id=topic_id)
        keys = self.driver().run(last_folder(LAYOUTS[config.layout](folder, partition.partition)))
        return PartitionIdentity.of(config, keys, self.archive_id, topic_id, self.store.prefix)

    def driver(self) -> Driver:
        """Runs protocols; raises StoreUnavailable after some failures in a row. Spark then runs a task again."""
        return Driver(self.store, NoLog(), bounded_backoff(self.store.url), lambda: True)


def open_context(options: SinkOptions, *, is_batch: bool) -> WriteContext:
    """The archive of the options, created where there is none.

    A store is probed for conditional writes by every batch, and by a stream that creates the archive: its micro-batches
    would take longer than what they write.
    """
    config = options.config
    store = _opened(config.archive, config.s3)
    is_new = store.head(archive_key(config.layout)) is None
    if (is_batch or is_new) and not config.single_writer:
        probe(store, multipart=store.url.startswith("s3:"))
    key = fingerprint_of(config.customer_key)
    info = open_archive(store, layout=config.layout, cluster_id=options.cluster_id, customer_key=key)
    return WriteContext(options, info)


@lru_cache(maxsize=8)
def _opened(address: str, s3: S3Settings) -> ToolStore:
    """Spark keeps its Python processes, and a client of S3 takes a second to make."""
    return open_store(address, s3)
