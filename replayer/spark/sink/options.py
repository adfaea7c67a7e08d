"""Options of the format `blockgz-kafka`: where rows go and by which promise."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from blockgz_runtime.errors import UsageError
from replayer.replay.job import Job
from replayer.replay.routing import RoutingRequest, parse_routing

KAFKA_PREFIX = "kafka."
SELECTION = "0" * 16
"""A sink does not know what was selected; its positions tell topics and offsets apart instead."""


@dataclass(frozen=True)
class SinkOptions:
    """Everything that a write is told; `routing` is None where the columns decide."""

    properties: Mapping[str, str]
    topic: str | None
    routing: RoutingRequest | None
    headers: bool
    transactional: bool
    job: str | None
    append: bool
    into_source: bool

    def job_into(self, target: str) -> Job:
        """The job as far as it writes to one target topic."""
        return Job(self.job or "none", target, SELECTION)


_KNOWN = {
    "topic",
    "partitions",
    "includeHeaders",
    "transactional",
    "job",
    "append",
    "intoSource",
    "checkpointLocation",
    "queryName",
}
"""The last two are Spark's own: a stream hands them on."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options by their names in any case; raises UsageError that names the option and the remedy."""
    options = {name.lower(): value for name, value in given.items()}
    properties = {
        name.removeprefix(KAFKA_PREFIX): value for name, value in options.items() if name.startswith(KAFKA_PREFIX)
    }
    own = {name: value for name, value in options.items() if not name.startswith(KAFKA_PREFIX)}
    _refuse_unknown(own)
    if not properties.get("bootstrap.servers"):
        raise UsageError(
            "format blockgz-kafka needs a cluster", remedy='add .option("kafka.bootstrap.servers", "HOST:PORT")'
        )
    parsed = SinkOptions(
        properties,
        own.get("topic"),
        _routing(own["partitions"]) if "partitions" in own else None,
        headers=_flag(own, "includeHeaders", default=True),
        transactional=_flag(own, "transactional", default=False),
        job=own.get("job"),
        append=_flag(own, "append", default=False),
        into_source=_flag(own, "intoSource", default=False),
    )
    if parsed.transactional and parsed.job is None:
        raise UsageError(
            "a transactional write needs a name for its job",
            why="what stands in the topic already is known by the job's name; a repeated one goes on with it",
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
            f"{job!r} is no name for a job of this format",
            why=f"positions of partition {number} of a job {name!r} have that name: the rows of one would pass for the "
            "other's",
            remedy=f"write {name}-{number}",
        )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in sorted(options.keys() - known.keys()):
        near = difflib.get_close_matches(name, known, 1)
        librdkafka = f"; a property of the Kafka client is written kafka.{name}" if "." in name else ""
        raise UsageError(
            f"format blockgz-kafka has no option {name!r}",
            why=f"there are {', '.join(sorted(_KNOWN))}, and kafka.… for the client{librdkafka}",
            remedy=f"write {known[near[0]]}" if near else "leave it out",
        )


def _routing(text: str) -> RoutingRequest:
    try:
        return parse_routing(text)
    except UsageError as error:
        raise UsageError(
            f"partitions is {text[:80]!r}",
            why="it takes keep, by-key, by-key:N, a number, or a map such as 0:2,1-3:0",
            remedy="leave it out for the partitions of the rows",
        ) from error


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is {text[:80]!r}", why="it is a switch", remedy="write true or false")
    return text == "true"
