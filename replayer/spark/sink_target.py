"""Options of the format `blockgz-kafka`, its rows as records by source partition, and checks of its target."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import NoSuchTopic, UsageError
from blockgz.kafka.connection import RESERVED
from blockgz.kafka.secrets import refuse_code
from blockgz.spark.formats import SPARK_OPTIONS, FormatOptions
from blockgz.units import wall_clock
from index_format.records import SCHEMA, header_column, header_column_of_lists
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import Job
from replayer.replay.pipeline import Router, Routing, parse_routing
from replayer.replay.plan import RecordPlace, ReplayPlan, SourcePartition, TimeBounds, refuse_by_config
from replayer.replay.sinks.producer import SAFETY
from replayer.replay.sinks.transactional import RESERVED as RESERVED_BY_TRANSACTIONS

KAFKA_PREFIX = "kafka."
# A sink does not know what was selected; its positions tell topics and offsets apart instead.
SELECTION = "0" * 16


@dataclass(frozen=True)
class TopicSinkOptions:
    """The options of a write; `routing` is None if the columns decide."""

    properties: Mapping[str, str]
    topic: str | None
    routing: Routing | None
    headers: bool
    transactional: bool
    job: str | None
    append: bool
    into_source: bool
    incarnation: int | None
    """The incarnation of the topic that all rows come from, if they have no column that says it."""
    recorded_incarnation: int | None
    """The incarnation of positions that were recorded for rows without one."""

    def job_into(self, target: str) -> Job:
        """Return the job as far as it writes to one target topic."""
        return Job(self.job or "none", target, SELECTION)


_KNOWN = (
    *("topic", "partitions", "includeHeaders", "transactional", "job", "append", "intoSource", "incarnation"),
    *("recordedIncarnation", *SPARK_OPTIONS),
)


def parse_sink_options(given: Mapping[str, str]) -> TopicSinkOptions:
    """Return the options by their names in any case; raises UsageError that names the option and the remedy."""
    of_client = [name for name in given if name.lower().startswith(KAFKA_PREFIX)]
    properties = {name.lower().removeprefix(KAFKA_PREFIX): given[name] for name in of_client}
    own = {name: value for name, value in given.items() if name not in of_client}
    options = FormatOptions(
        "blockgz-kafka", own, _KNOWN, dotted="remove it, or write kafka.{} for a property of the Kafka client"
    )
    if not properties.get("bootstrap.servers"):
        raise UsageError(
            "format blockgz-kafka needs a cluster", remedy='add .option("kafka.bootstrap.servers", "HOST:PORT")'
        )
    routing = options.given.get("partitions")
    parsed = TopicSinkOptions(
        properties,
        options.given.get("topic"),
        None if routing is None else _routing(routing),
        headers=options.flag("includeHeaders", default=True),
        transactional=options.flag("transactional", default=False),
        job=options.given.get("job"),
        append=options.flag("append", default=False),
        into_source=options.flag("intoSource", default=False),
        incarnation=options.number("incarnation"),
        recorded_incarnation=options.number("recordedIncarnation"),
    )
    if parsed.transactional and parsed.job is None:
        raise UsageError(
            "a transactional write needs a name for its job",
            why="the job's name identifies what is already in the topic; repeating it resumes from there",
            remedy='add .option("job", "restore-7"), a new name for every new copy',
        )
    if parsed.job is not None:
        parsed.job_into("any")
        name, _, number = parsed.job.rpartition(".")
        if name and number.isdigit():
            raise UsageError(
                f"{parsed.job!r} is not a job name of this format",
                why=f"positions of partition {number} of a job {name!r} have that name: the rows of one would pass for "
                "the other's",
                remedy=f"write {name}-{number}",
            )
    return parsed


def _routing(text: str) -> Routing:
    try:
        return parse_routing(text)
    except UsageError as error:
        raise UsageError(
            f"partitions is {text[:80]!r}",
            why="it takes keep, by-key, by-key:N, a number, or a map such as 0:2,1-3:0",
            remedy="omit it to use the partitions of the rows",
        ) from error


# The columns that mean something and the types that they may have, in Spark's words; others are left out.
_TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "offset": ("bigint", "int"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "incarnation": ("int", "bigint"),
}


class RowPart(NamedTuple):
    """Records of one source partition in the rows' order; None for a column that is missing.

    They are of one incarnation of the topic. `records` is a batch of `SCHEMA`. Without an offset column its offsets
    count the task's rows.
    """

    topic: str | None
    partition: int | None
    records: pa.RecordBatch
    incarnation: int | None = None


# The columns of a DataFrame that a write looks at.
Columns = frozenset[str]


def check_columns(types: Mapping[str, str]) -> Columns:
    """Return the columns by name and type, as Spark calls them; raises UsageError for what cannot be written."""
    if "value" not in types:
        raise UsageError(
            "there is no column named value",
            why=f"there are {', '.join(types) or 'none'}",
            remedy='choose it: df.selectExpr("key", "body AS value")',
        )
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise UsageError(
                f"column {name} is of type {types[name]}",
                why=f"it must be {' or '.join(allowed)}",
                remedy=f'cast it: df.withColumn("{name}", expr("CAST({name} AS {allowed[0]})"))',
            )
    return Columns(types.keys() & _TYPES.keys())


class RowReader:
    """A converter of one task's batches of rows into records."""

    def __init__(self, columns: Columns, *, headers: bool, clock: Callable[[], int] = wall_clock) -> None:
        self._columns = columns
        self._headers = headers and "headers" in columns
        self._clock = clock
        self._rows = 0

    def parts(self, batch: pa.RecordBatch) -> Iterator[RowPart]:
        """Yield the batch by topic, incarnation and partition, each in the rows' order.

        Raises ReplayRefused for what no record can be.
        """
        if not batch.num_rows:
            return
        records = self._records(batch)
        self._rows += batch.num_rows
        topics = batch.column("topic") if "topic" in self._columns else None
        if topics is not None and topics.null_count:
            raise _missing("topic")
        partitions = self._numbers(batch, "partition")
        incarnations = self._numbers(batch, "incarnation")
        for rows in _groups(topics, incarnations, partitions, batch.num_rows):
            first = int(rows[0])
            topic = topics[first].as_py() if topics is not None else None
            partition = int(partitions[first]) if partitions is not None else None
            incarnation = int(incarnations[first]) if incarnations is not None else None
            yield RowPart(topic, partition, _taken(records, rows), incarnation)

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        offsets = self._numbers(batch, "offset")
        columns = [
            pa.array(np.arange(self._rows, self._rows + count) if offsets is None else offsets),
            pa.array(self._timestamps(batch)),
            pa.array(np.zeros(count, np.int8)),
            batch.column("key").cast(pa.binary()) if "key" in self._columns else pa.nulls(count, pa.binary()),
            batch.column("value").cast(pa.binary()),
            _headers(batch.column("headers")) if self._headers else header_column([None] * count),
        ]
        return pa.record_batch(columns, schema=SCHEMA)

    def _timestamps(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """In ms; a row without one has the time of sending, as Kafka's own producer would give it."""
        if "timestamp" not in self._columns:
            return np.full(batch.num_rows, self._clock(), np.int64)
        column = batch.column("timestamp")
        micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        times = micros.fill_null(self._clock() * 1000).to_numpy() // 1000
        if len(times) and times.min() < -1:
            row = int(np.argmin(times))
            raise ReplayRefused(
                f"a row has the timestamp {times[row]} ms, before 1970",
                why="Kafka accepts none below 0, except -1 for a record without one",
                remedy="choose other rows, or other timestamps",
            )
        return np.asarray(times, np.int64)

    def _numbers(self, batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64] | None:
        if name not in self._columns:
            return None
        column = batch.column(name)
        if column.null_count:
            raise _missing(name)
        numbers = np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
        if numbers.min() < 0:
            raise ReplayRefused(
                f"a row has the {name} {numbers.min()}", why="Kafka has none below 0", remedy="choose other rows"
            )
        return numbers


def _missing(name: str) -> ReplayRefused:
    return ReplayRefused(
        f"a row has no {name}",
        why="the column exists, so every row needs a value",
        remedy=f'df.drop("{name}"), or fill it',
    )


def _groups(
    topics: pa.Array | None,
    incarnations: npt.NDArray[np.int64] | None,
    partitions: npt.NDArray[np.int64] | None,
    count: int,
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each topic, incarnation and partition, rising, in the order of their first rows."""
    codes = np.zeros(count, np.int64)
    if topics is not None:
        codes += topics.dictionary_encode().indices.to_numpy().astype(np.int64) << 48
    if incarnations is not None:
        codes += pa.array(incarnations).dictionary_encode().indices.to_numpy().astype(np.int64) << 32
    if partitions is not None:
        codes += partitions
    if (codes == codes[0]).all():
        yield np.arange(count)
        return
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    yield from sorted(groups, key=lambda rows: int(rows[0]))


def _taken(records: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return records.slice(first, len(rows))
    return records.take(pa.array(rows))


def _headers(column: pa.ListArray) -> pa.Array:
    """Null means none, as Spark's own source has it."""
    try:
        return header_column_of_lists(column)
    except ValueError as error:
        raise ReplayRefused(
            "a row has a header without a name", why="Kafka's headers have one", remedy="remove such headers"
        ) from error


@dataclass(frozen=True)
class Target:
    """A topic that rows go to, and by which rule; it is carried from the driver to the tasks."""

    facts: TopicFacts
    router: Router

    @property
    def max_message_bytes(self) -> int | None:
        """The topic's message limit, if it is known."""
        return self.facts.config.max_message_bytes if self.facts.config else None


def opened_admin(options: TopicSinkOptions) -> KafkaAdmin:
    """Return an admin client; raises UsageError for properties that may not be set, or are unknown."""
    own = {*SAFETY, *RESERVED, *(RESERVED_BY_TRANSACTIONS if options.transactional else ())}
    for name in sorted(own & options.properties.keys()):
        raise UsageError(f"kafka.{name} cannot be set", why="order and completeness depend on it", remedy="remove it")
    for name, value in options.properties.items():
        refuse_code(name, value, f"kafka.{name}")
    try:
        return KafkaAdmin(options.properties)
    except UsageError as error:
        raise UsageError(
            error.what, why=error.why, remedy="correct the options kafka.…: names and values are librdkafka's own"
        ) from error


def find_target(options: TopicSinkOptions, columns: Columns, name: str, admin: KafkaAdmin) -> Target:
    """Return the checked topic; raises NoSuchTopic, ReplayRefused, AccessDenied or BrokerUnreachable."""
    facts = admin.topic(name)
    if facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {name!r}",
            why="a write creates no topics",
            remedy=f"create it: kafka-topics.sh --create --topic {name} --partitions N --config retention.ms=-1",
        )
    rule = options.routing or Routing("keep" if "partition" in columns else "by-key")
    target = Target(facts, rule.for_target(name, facts.num_partitions))
    if facts.config is not None:
        refuse_by_config(_plan(target, ()), facts.config)
    return target


def refuse_foreign_records(options: TopicSinkOptions, target: Target, admin: KafkaAdmin) -> None:
    """Raise ReplayRefused if the topic holds records, unless that was allowed or they are this job's."""
    facts = target.facts
    if options.append or _has_positions(options, facts.name, admin):
        return
    for partition, bounds in admin.watermarks(facts.name, range(facts.num_partitions)).items():
        if bounds.end > bounds.low:
            raise ReplayRefused(
                f"topic {facts.name!r} is not empty",
                why=f"{facts.name}:{partition} holds offsets [{bounds.low}..{bounds.end}), which are not from it",
                remedy='choose an empty topic, or allow it: .option("append", "true")',
            )


def refuse_other_key(options: TopicSinkOptions, columns: Columns, admin: KafkaAdmin) -> None:
    """Raise ReplayRefused if the job's positions are by incarnation and the rows name none, or the reverse."""
    # Offsets of one incarnation would pass for those of another: rows would be lost, or written twice.
    if not options.transactional:
        return
    group = re.escape(options.job_into("any").group_id)
    groups = admin.groups()
    by_incarnation = any(map(re.compile(rf"{group}\.\d+\.\d+").fullmatch, groups))
    named = "incarnation" in columns or options.incarnation is not None
    if by_incarnation and not named:
        raise ReplayRefused(
            "the rows do not say which incarnation of their topic they come from",
            why=f"positions of job {options.job} are recorded by incarnation, so that rows would be written twice",
            remedy='read with .option("includeIncarnation", "true"), and keep the column incarnation',
        )
    without = any(map(re.compile(rf"{group}(\.\d+)?").fullmatch, groups))
    if without and named and options.recorded_incarnation is None:
        raise ReplayRefused(
            f"positions of job {options.job} are recorded without an incarnation",
            why="rows of another incarnation have the same offsets, and would be taken as written",
            remedy='say which one it is: .option("recordedIncarnation", "1"), or start another job with an empty topic',
        )


def refuse_part(target: Target, part: RowPart) -> None:
    """Raise ReplayRefused if the topic would lose, rewrite or reject these records."""
    config = target.facts.config
    if config is None:
        return
    records = part.records
    offsets, times = records.column("offset"), pc.min_max(records.column("timestamp")).as_py()
    keys = records.column("key")
    without_key = None
    if config.compacts and keys.null_count:
        row = pc.index(pc.is_null(keys), True).as_py()
        without_key = RecordPlace(part.partition or 0, offsets[row].as_py())
    source = SourcePartition(
        part.partition or 0,
        offsets[0].as_py(),
        offsets[-1].as_py() + 1,
        records.num_rows,
        records.nbytes,
        TimeBounds(times["min"], times["max"]),
    )
    refuse_by_config(_plan(target, (source,), without_key), config)


def refuse_missing_partition(target: Target, source: int) -> None:
    """Raise ReplayRefused if the topic has no partition for records of a source partition."""
    facts, partition = target.facts, max(target.router.targets(source))
    if partition >= facts.num_partitions:
        raise ReplayRefused(
            f"topic {facts.name!r} has too few partitions",
            why=f"it has {facts.num_partitions}, and rows go to partition {partition}",
            remedy=f"choose a topic with at least {partition + 1}, fold them: "
            f'.option("partitions", "{facts.num_partitions}"), or spread them: .option("partitions", "by-key")',
        )


def _has_positions(options: TopicSinkOptions, target: str, admin: KafkaAdmin) -> bool:
    """Return whether a position of the job is recorded, for any source partition."""
    if not options.transactional:
        return False
    lane = re.compile(re.escape(options.job_into(target).group_id) + r"(\.\d+){0,2}")
    return any(map(lane.fullmatch, admin.groups()))


def _plan(target: Target, sources: tuple[SourcePartition, ...], without_key: RecordPlace | None = None) -> ReplayPlan:
    facts = target.facts
    return ReplayPlan("", facts.name, sources, facts, wall_clock(), without_key=without_key, can_hold=False)
