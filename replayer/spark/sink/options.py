"""Options of the format `blockgz-kafka`: where rows go and by which promise."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockgz.errors import UsageError
from blockgz.spark.options import FormatOptions
from replayer.replay.job import Job
from replayer.replay.routing import RoutingRequest, parse_routing

KAFKA_PREFIX = "kafka."
SELECTION = "0" * 16
"""A sink does not know what was selected; its positions tell topics and offsets apart instead."""


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for; `routing` is None where the columns decide."""

    properties: Mapping[str, str]
    topic: str | None
    routing: RoutingRequest | None
    headers: bool
    transactional: bool
    job: str | None
    append: bool
    into_source: bool
    incarnation: int | None
    """The incarnation of the topic that all rows come from, if they have no column that says it."""
    recorded_incarnation: int | None
    """Whose positions those are that were recorded of rows without an incarnation."""

    def job_into(self, target: str) -> Job:
        """The job as far as it writes to one target topic."""
        return Job(self.job or "none", target, SELECTION)


_OF_SPARK = {"checkpointLocation", "queryName"}
"""Spark's own options: a stream hands them on."""
_KNOWN = {
    "topic",
    "partitions",
    "includeHeaders",
    "transactional",
    "job",
    "append",
    "intoSource",
    "incarnation",
    "recordedIncarnation",
    *_OF_SPARK,
}


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options by their names in any case; raises UsageError that names the option and the remedy."""
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
    parsed = SinkOptions(
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
        _refuse_lanes_name(parsed.job)
    return parsed


def _refuse_lanes_name(job: str) -> None:
    name, _, number = job.rpartition(".")
    if name and number.isdigit():
        raise UsageError(
            f"{job!r} is not a job name of this format",
            why=f"positions of partition {number} of a job {name!r} have that name: the rows of one would pass for the "
            "other's",
            remedy=f"write {name}-{number}",
        )


def _routing(text: str) -> RoutingRequest:
    try:
        return parse_routing(text)
    except UsageError as error:
        raise UsageError(
            f"partitions is {text[:80]!r}",
            why="it takes keep, by-key, by-key:N, a number, or a map such as 0:2,1-3:0",
            remedy="omit it to use the partitions of the rows",
        ) from error
