"""What the target of a write is asked before rows go to it: as a replay's, as far as rows can tell."""

import re
from dataclasses import dataclass

import pyarrow.compute as pc

from blockgz.errors import NoSuchTopic, UsageError
from blockgz.kafka.secrets import refuse_code
from blockgz.kafka.settings import RESERVED
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.pipeline import Router
from replayer.replay.plan import Findings, Preflight, RecordPlace, SourcePartition, TargetRequest, TimeBounds
from replayer.replay.preflight import refuse_by_config
from replayer.replay.routing import RoutingRequest, make_router
from replayer.replay.sinks.producer import SAFETY
from replayer.replay.sinks.transactional import RESERVED as RESERVED_BY_TRANSACTIONS
from replayer.replay.stages import wall_clock
from replayer.spark.sink.options import SinkOptions
from replayer.spark.sink.rows_in import Columns, Part


@dataclass(frozen=True)
class Target:
    """A topic that rows go to, and by which rule; it is carried from the driver to the tasks."""

    facts: TopicFacts
    router: Router

    @property
    def max_message_bytes(self) -> int | None:
        """The topic's limit, where it is known."""
        return self.facts.config.max_message_bytes if self.facts.config else None


def opened_admin(options: SinkOptions) -> KafkaAdmin:
    """A client for questions; raises UsageError for properties that are not the user's to set, or unknown.

    Raises AccessDenied or BrokerUnreachable, too.
    """
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


def find_target(options: SinkOptions, columns: Columns, name: str, admin: KafkaAdmin) -> Target:
    """The topic, its configuration checked; raises NoSuchTopic, ReplayRefused, AccessDenied or BrokerUnreachable."""
    facts = admin.topic(name)
    if facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {name!r}",
            why="a write creates no topics",
            remedy=f"create it: kafka-topics.sh --create --topic {name} --partitions N --config retention.ms=-1",
        )
    rule = options.routing or RoutingRequest("keep" if "partition" in columns else "by-key")
    target = Target(facts, make_router(rule, name, facts.num_partitions))
    if facts.config is not None:
        refuse_by_config(_preflight(target, ()), facts.config)
    return target


def refuse_foreign_records(options: SinkOptions, target: Target, admin: KafkaAdmin) -> None:
    """Raises ReplayRefused where the topic holds records, unless that was allowed or they are this job's."""
    facts = target.facts
    if options.append or _begun(options, facts.name, admin):
        return
    for partition, bounds in admin.watermarks(facts.name, range(facts.num_partitions)).items():
        if bounds.end > bounds.low:
            raise ReplayRefused(
                f"topic {facts.name!r} is not empty",
                why=f"{facts.name}:{partition} holds offsets [{bounds.low}..{bounds.end}), which are not from it",
                remedy='choose an empty topic, or allow it: .option("append", "true")',
            )


def refuse_other_key(options: SinkOptions, columns: Columns, admin: KafkaAdmin) -> None:
    """Raises ReplayRefused where the job's positions are by incarnation and the rows name none, or the reverse.

    Offsets of one incarnation would pass for those of another: rows would be lost, or written twice.
    """
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


def refuse_part(target: Target, part: Part) -> None:
    """Raises ReplayRefused where the topic would lose, rewrite or reject these records."""
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
    refuse_by_config(_preflight(target, (source,), Findings(without_key)), config)


def refuse_missing_partition(target: Target, source: int) -> None:
    """Raises ReplayRefused where the topic has no partition for records of a source partition."""
    facts, partition = target.facts, max(target.router.targets(source))
    if partition >= facts.num_partitions:
        raise ReplayRefused(
            f"topic {facts.name!r} has too few partitions",
            why=f"it has {facts.num_partitions}, and rows go to partition {partition}",
            remedy=f"choose a topic with at least {partition + 1}, fold them: "
            f'.option("partitions", "{facts.num_partitions}"), or spread them: .option("partitions", "by-key")',
        )


def _begun(options: SinkOptions, target: str, admin: KafkaAdmin) -> bool:
    """Whether anything is recorded of the job, of whatever source partition."""
    if not options.transactional:
        return False
    lane = re.compile(re.escape(options.job_into(target).group_id) + r"(\.\d+){0,2}")
    return any(map(lane.fullmatch, admin.groups()))


def _preflight(target: Target, sources: tuple[SourcePartition, ...], findings: Findings = Findings()) -> Preflight:  # noqa: B008
    return Preflight(
        TargetRequest("", target.facts.name),
        sources,
        target.facts,
        {},
        findings,
        wall_clock(),
        can_hold=False,
    )
