"""Spark jobs: `archiver spark`, a stream of Spark's Kafka source into an archive, and compaction by tasks."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from py4j.java_gateway import JavaClass, is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from archiver.errors import Diverged, GapRefused
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.compact import Compaction, PartitionCompaction, compact
from archiver.maintain.planned import RewriteResult
from archiver.maintain.rewrite.contents import RewriteTools
from archiver.maintain.throttle import paced
from archiver.spark import register
from archiver.spark.context import FORMAT, JOB_OPTION
from archiver.spark.read_ranges import checkpoint_files, ranges_read, serve_ranges
from blockgz.errors import UsageError
from blockgz.kafka.secrets import look_up_secrets
from blockgz.spark.errors import TaskFailed, carry_errors, spark_errors
from blockgz.spark.formats import Shipped
from blockgz.spark.session import session
from blockgz.store.address import S3Settings
from blockgz.store.opening import default_buffer_root, open_existing_store
from blockgz.topic_patterns import TopicSelection, is_pattern

KAFKA_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
STEP_SECONDS = 1
# Seconds between two requests for new and recreated topics; there is one after each batch too.
IDENTITIES_SECONDS = 30
# Timeouts of the client that only requests identities.
DEADLINES = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}


# Spark's condition of errors about records that the topic no longer holds; each kind is one below it.
DATA_LOSS = "KAFKA_DATA_LOSS"


@dataclass(frozen=True)
class SparkJob:
    topics: tuple[str, ...]
    bootstrap_servers: str
    kafka: Mapping[str, str]
    """Settings of the Java client by their names; they may refer to secrets."""
    sink: Mapping[str, str]
    """Options of the format `blockgz-archive`, its `isolationLevel` among them, which is the source's too."""
    checkpoint: str
    once: bool
    interval_seconds: float
    max_offsets: int | None
    master: str | None
    jars: str | None


class Identities(NamedTuple):
    """The cluster and topics that a job reads; what the broker does not report to this client stays unknown."""

    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = {}

    def options(self) -> dict[str, str]:
        """Return them as options of the format `blockgz-archive`."""
        options = {"topicIds": json.dumps(self.topic_ids)} if self.topic_ids else {}
        return options | ({"clusterId": self.cluster_id} if self.cluster_id else {})

    def joined(self, now: "Identities", checkpoint: str) -> "Identities":
        """Return these with what is new in `now`; raises Diverged for a recreated topic."""
        # The checkpoint's offsets are those of the topic before, so that a query must not resume with them.
        for topic, topic_id in self.topic_ids.items():
            if now.topic_ids.get(topic, topic_id) != topic_id:
                raise Diverged(
                    f"topic {topic} was created again while the job ran",
                    why=f"its id was {topic_id}, and is {now.topic_ids[topic]}; the checkpoint is of the old one",
                    remedy=f"remove the checkpoint {checkpoint}, or choose another one, and start again: the new topic "
                    "is archived from its start, next to the old one",
                )
        return Identities(now.cluster_id or self.cluster_id, {**self.topic_ids, **now.topic_ids})


@dataclass(frozen=True)
class JobResult:
    """The counts of a job; `records` includes those that the archive already held."""

    records: int
    batches: int
    ended: bool
    """True if it ended by itself, as a job with `once` does."""


def run_job(job: SparkJob, stopped: threading.Event, on_batch: Callable[[Mapping[str, Any]], None]) -> JobResult:
    """Run the stream until it is drained or `stopped`; calls `on_batch` with Spark's progress of every batch.

    Raises UsageError if Spark lacks Java or its Kafka source or a secret is not there, and what ended the stream:
    JobFailed, SparkFailed or GapRefused.
    """
    secrets = look_up_secrets(job.kafka, os.environ)  # the Java client knows no references
    job = replace(job, kafka={**job.kafka, **secrets.values})
    with secrets.kept_out_of_errors(), spark_errors():
        try:
            return _run(job, stopped, on_batch)
        except PySparkException as error:
            if (loss := data_loss(error, job.checkpoint, is_recorded=job.sink.get("onGap") != "stop")) is not None:
                raise loss from error
            raise


def _run(job: SparkJob, stopped: threading.Event, on_batch: Callable[[Mapping[str, Any]], None]) -> JobResult:
    settings = {"spark.jars": job.jars} if job.jars else {}
    with ExitStack() as stack:
        name = f"archiver spark {' '.join(job.topics)}"
        spark = stack.enter_context(session(name, job.master, settings, quiet=False))
        _check_kafka_source(spark)
        register(spark)
        address = stack.enter_context(serve_ranges(partial(ranges_read, checkpoint_files(spark, job.checkpoint))))
        if address is not None:
            job = replace(job, sink={**job.sink, JOB_OPTION: address})
        identities = _identities(spark, job)
        query = _started(spark, job, identities)
        counted = _BatchCounter(on_batch)
        asked_at = time.monotonic()
        while not (ended := bool(query.awaitTermination(STEP_SECONDS))) and not stopped.is_set():
            has_more = counted.take(query)
            if not has_more and time.monotonic() - asked_at < IDENTITIES_SECONDS:
                continue
            joined = identities.joined(_identities(spark, job), job.checkpoint)
            # The sink's options are a query's for good, and its checkpoint lets the next one resume: between batches
            # alone, for what commits one that is ended might still be at it, and fence the next query.
            if joined != identities and not query.status["isTriggerActive"]:
                query.stop()
                counted.take(query)
                identities, query = joined, _started(spark, job, joined)
            asked_at = time.monotonic()
        counted.take(query)
        query.stop()
        return JobResult(counted.records, counted.batches, ended)


class _BatchCounter:
    """Batches as Spark reports them; it keeps the last hundred."""

    def __init__(self, on_batch: Callable[[Mapping[str, Any]], None]) -> None:
        self._on_batch = on_batch
        self._seen = -1
        self.records = 0
        self.batches = 0

    def take(self, query: StreamingQuery) -> bool:
        """Count new batches; return whether there were any."""
        before = self.batches
        for progress in query.recentProgress:
            if progress["batchId"] > self._seen and progress["numInputRows"]:
                self._seen = progress["batchId"]
                self.records += progress["numInputRows"]
                self.batches += 1
                self._on_batch(progress)
        return self.batches > before


def subscription(topics: Sequence[str]) -> dict[str, str]:
    """Return the source's option for names, globs and ~regex; raises UsageError or BadName."""
    TopicSelection(topics)
    if not any(map(is_pattern, topics)):
        return {"subscribe": ",".join(topics)}
    patterns = [_pattern(topic) for topic in topics]
    return {"subscribePattern": "|".join(f"(?:{pattern})" for pattern in patterns)}


def _pattern(topic: str) -> str:
    """Return a regular expression of Java; only a full name matches Kafka's own topics (`__…`)."""
    if not is_pattern(topic):
        return re.escape(topic)
    if topic.startswith("~"):
        return f"(?!__)(?:{topic[1:]})"
    # Python's translation says (?s:…)\Z, from 3.14 on \z, in words that Java does not know.
    inner = translate(topic).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
    return f"(?!__)(?:{inner})"


def _check_kafka_source(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    if not isinstance(jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider, JavaClass):
        raise UsageError(
            "Spark has no Kafka source",
            why="it is a separate jar for each version of Spark",
            remedy=f"run spark-submit --packages {KAFKA_SOURCE}:{spark.version}, or add --jars with it, "
            "spark-token-provider-kafka-0-10, kafka-clients and commons-pool2",
        )


def _identities(spark: SparkSession, job: SparkJob) -> Identities:
    """Ask the broker by the client that Spark's Kafka source brings along; of the topics that are there by now."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**job.kafka, "bootstrap.servers": job.bootstrap_servers, **DEADLINES}.items():
        settings.setProperty(name, value)
    selected = TopicSelection(job.topics)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            cluster_id = admin.describeCluster().clusterId().get()
            listings = admin.listTopics().namesToListings().get()
            ids = {topic: listing.topicId().toString() for topic, listing in listings.items()}
        finally:
            admin.close()
    except Py4JError:
        return Identities()
    return Identities(cluster_id, {topic: ids[topic] for topic in selected(ids)})


def source_options(job: SparkJob) -> dict[str, str]:
    """Return the options of Spark's Kafka source."""
    # It must fail on data loss even if gaps are recorded: if retention overtakes a batch, it would pass over offsets
    # silently, and the sink take them for holes of the log, as it does all that a batch read and holds no record.
    own = {
        "kafka.bootstrap.servers": job.bootstrap_servers,
        "kafka.isolation.level": job.sink["isolationLevel"],
        "includeHeaders": "true",
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
    }
    own |= {"maxOffsetsPerTrigger": str(job.max_offsets)} if job.max_offsets is not None else {}
    own |= {f"kafka.{name}": value for name, value in job.kafka.items()}
    return own | subscription(job.topics)


def _started(spark: SparkSession, job: SparkJob, identities: Identities) -> StreamingQuery:
    stream = spark.readStream.format("kafka").options(**source_options(job)).load()
    writer = (
        stream.writeStream.format(FORMAT)
        .options(**job.sink, **identities.options())
        .option("checkpointLocation", job.checkpoint)
    )
    trigger: dict[str, Any] = (
        {"availableNow": True} if job.once else {"processingTime": f"{round(job.interval_seconds * 1000)} milliseconds"}
    )
    return writer.trigger(**trigger).start()


def conditions(error: BaseException) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Conditions and parameters of an error and of its causes: pyspark forgets them if it has no class for one."""
    gateway = SparkContext._gateway
    cause: Any = getattr(error, "_origin", None)
    while cause is not None:
        if is_instance_of(gateway, cause, "org.apache.spark.SparkThrowable") and (condition := cause.getCondition()):
            yield condition, dict(cause.getMessageParameters())
        cause = cause.getCause()


def data_loss(error: BaseException, checkpoint: str, *, is_recorded: bool) -> GapRefused | None:
    """Return the error to end a job with if Spark's source found that records are gone; None for any other."""
    # The checkpoint holds the offsets that are gone, so that each further try fails as well; a query without one begins
    # where the topic does, and leaves out what is archived.
    for condition, parameters in conditions(error):
        if condition.partition(".")[0] == DATA_LOSS:
            said = ", ".join(f"{name} {value}" for name, value in sorted(parameters.items()))
            again = f"remove the checkpoint {checkpoint}, or choose another one, and start again"
            return GapRefused(
                "the topic no longer holds the records to be archived next",
                why=f"Spark's Kafka source says {condition}: {said}",
                remedy=f"{again}{'' if is_recorded else ' with --on-gap record'}: what is archived already is left "
                "out, and the jump is recorded as a gap",
            )
    return None


# Spark keeps its Python processes, and a client of S3 takes a second to make.
_opened = lru_cache(maxsize=8)(open_existing_store)


@dataclass(frozen=True)
class CompactionTask(Shipped):
    """A task that compacts the partition of a plan. A task that is repeated continues behind what is committed."""

    archive: str
    """The address, valid on every machine."""
    s3: S3Settings
    compaction: Compaction
    buffer_dir: Path | None
    buffer_bytes: int
    max_block_bytes: int
    bytes_per_second: int | None

    def __call__(self, plan: PartitionCompaction) -> RewriteResult[PartitionCompaction]:
        with carry_errors(TaskFailed):
            ranges, driver = paced(_opened(self.archive, self.s3), self.bytes_per_second)
            with closing(BufferFolder(self.buffer_dir or default_buffer_root(self.archive))) as buffers:
                tools = RewriteTools(driver, ranges, buffers, self.buffer_bytes, self.max_block_bytes)
                return compact(plan, self.compaction, tools)


def compact_on(
    master: str, plans: Sequence[PartitionCompaction], task: CompactionTask
) -> list[RewriteResult[PartitionCompaction]]:
    """Compact the partitions, the largest first, and return how each ended. Raises JobFailed, SparkFailed."""
    ordered = sorted(plans, key=lambda plan: plan.moved_bytes, reverse=True)
    with session("archiver compact", master, {}) as spark, spark_errors():
        return spark.sparkContext.parallelize(ordered, len(ordered)).map(task).collect()
