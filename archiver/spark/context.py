"""Options of the format `blockgz-archive`, and what driver and tasks of a write share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from archiver.commit.archive import find_incarnation, open_archive
from archiver.commit.commit import PartitionIdentity
from archiver.commit.operations import Driver
from archiver.commit.recovery import TakeoverPolicy, last_folder
from blockgz.config.files import DEFAULT, Origin, OriginKind, Setting
from blockgz.config.kinds import SPARK_DEFAULTS, SPARK_NAMES
from blockgz.config.model import RunConfig
from blockgz.config.resolution import resolve
from blockgz.errors import UsageError
from blockgz.spark.formats import SPARK_OPTIONS, FormatOptions, bad_value, json_object
from blockgz.store.address import S3Settings
from blockgz.store.customer_key import fingerprint_of
from blockgz.store.opening import open_store
from blockgz.store.probe import probe
from blockgz.store.writer import ToolStore
from index_format.keys import LAYOUTS, TopicPartition, archive_key
from index_format.objects import UNVERIFIED, ArchiveInfo

FORMAT = "blockgz-archive"

IDENTITY_OPTIONS = ("clusterId", "topicIds")

MISSING_OPTION = "missingOffsets"

# Set by `archiver spark` only, whose query and source are its own: the address that knows what a batch read.
JOB_OPTION = "readings"

# A sink reads no topic: these fields of the model have no part in it.
STAND_INS = {"bootstrap_servers": "none", "topics": "*"}

# Java, and so Kafka's own tools, spell the base64 of an id for URLs; archives have librdkafka's spelling.
_AS_LIBRDKAFKA = str.maketrans("-_", "+/")

# Arrow addresses 2 GiB of keys or values at once.
MOST_MEMORY = 1024**3


@dataclass(frozen=True)
class ArchiveSinkOptions:
    config: RunConfig
    cluster_id: str | None
    topic_ids: Mapping[str, str]
    missing_are_unverified: bool = False
    """True if offsets between a batch's records are recorded as gaps, because it may have left records out."""
    readings: str | None = None
    """See `read_ranges.ask_ranges`."""


def parse_options(given: Mapping[str, str]) -> ArchiveSinkOptions:
    """Return the options by their names in any case; raises UsageError that names the option and the remedy."""
    known = (*SPARK_NAMES, *IDENTITY_OPTIONS, MISSING_OPTION, *SPARK_OPTIONS)
    source = "give it to the source, format kafka"
    options = FormatOptions(FORMAT, given, known, hidden=(JOB_OPTION,), dotted=source)
    options.given["path"] = options.path(".save(path)")
    config = resolve(
        {field: Setting(value, DEFAULT) for field, value in (SPARK_DEFAULTS | STAND_INS).items()},
        {field: _setting(name, options.given[name]) for name, field in SPARK_NAMES.items() if name in options.given},
        environ=os.environ,
    ).config
    if config.memory > MOST_MEMORY:
        raise UsageError(
            f"memory {options.given['memory']} is too much for a task",
            why="Arrow cannot hold more",
            remedy="write 1GiB",
        )
    text, example = options.given.get("topicIds", "{}"), '{"orders":"AAAAAAAAQyq4sA6hRyR_Zw"}'
    ids = json_object("topicIds", text, example)
    if not all(isinstance(value, str) and value for value in ids.values()):
        raise bad_value("topicIds", text, example)
    topic_ids = {topic: topic_id.translate(_AS_LIBRDKAFKA) for topic, topic_id in ids.items()}
    missing = options.word(MISSING_OPTION, ("hole", UNVERIFIED), "hole")
    cluster_id, readings = options.text("clusterId"), options.given.get(JOB_OPTION)
    return ArchiveSinkOptions(config, cluster_id, topic_ids, missing == UNVERIFIED, readings)


def _setting(name: str, value: str) -> Setting:
    return Setting(value, Origin(OriginKind.OPTION, f"format {FORMAT}", name))


@dataclass(frozen=True)
class WriteContext:
    """Picklable: made on the driver, and reopened in each process that gets it."""

    options: ArchiveSinkOptions
    archive: ArchiveInfo

    @property
    def archive_id(self) -> str:
        return self.archive.archive_id

    @property
    def config(self) -> RunConfig:
        return self.options.config

    @property
    def store(self) -> ToolStore:
        """The store, opened once in a process."""
        return _opened(self.config.archive, self.config.s3, self.config.single_writer)

    @property
    def policy(self) -> TakeoverPolicy:
        """The decisions about takeovers that the options make in advance."""
        return TakeoverPolicy.of(self.config)

    def identity(self, partition: TopicPartition) -> PartitionIdentity:
        """Return what every object of a partition says, with the folder of its topic. Raises BadName."""
        config = self.config
        topic_id = self.options.topic_ids.get(partition.topic)
        folder = find_incarnation(self.store, layout=config.layout, topic=partition.topic, topic_id=topic_id)
        keys = self.driver().run(last_folder(LAYOUTS[config.layout](folder, partition.partition)))
        return PartitionIdentity.of(config, keys, self.archive_id, topic_id, self.store.prefix)

    def driver(self) -> Driver:
        """Run protocols; raises StoreUnavailable after some failures in a row. Spark then runs a task again."""
        return Driver(self.store)


def open_context(options: ArchiveSinkOptions, *, is_batch: bool) -> WriteContext:
    """Open the archive of the options, and create it if there is none."""
    # A store is probed for conditional writes by every batch, and by a stream that creates the archive: its
    # micro-batches would take longer than what they write.
    config = options.config
    store = _opened(config.archive, config.s3, config.single_writer)
    is_new = store.head(archive_key(config.layout)) is None
    if (is_batch or is_new) and not config.single_writer:
        probe(store, multipart=store.url.startswith("s3:"))
    key = fingerprint_of(config.customer_key)
    info = open_archive(store, layout=config.layout, cluster_id=options.cluster_id, customer_key=key)
    return WriteContext(options, info)


@lru_cache(maxsize=8)
def _opened(address: str, s3: S3Settings, single_writer: bool) -> ToolStore:
    """Spark keeps its Python processes, and a client of S3 takes a second to make."""
    return open_store(address, s3, single_writer=single_writer)
