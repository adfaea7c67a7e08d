"""What a replay is going to do, decided before the first record: sources, targets, refusals and warnings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from index_format.chunk_index import Gap

from .errors import NoSuchTopic, ReplayRefused
from .topic_facts import TopicConfig, TopicFacts, Watermarks

LOSSLESS_FORMATS = {"json", "arrow"}


class TimeBounds(NamedTuple):
    """The smallest and largest timestamp of some records, ms since the epoch, -1 for a record that has none."""

    min: int
    max: int


@dataclass(frozen=True)
class SourcePartition:
    """Archived records of offsets [start, end) of one partition.

    `records` and `bytes` (encoded, uncompressed) count whole blocks at the edges, so they are upper bounds there.
    """

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    timestamps: TimeBounds | None
    """Of the blocks that are read; None where there are none."""
    gaps: tuple[Gap, ...] = ()
    """Recorded gaps that begin or end inside."""
    record_formats: frozenset[str] = frozenset({"json"})


class RecordPlace(NamedTuple):
    """Where a record stands in the archive."""

    partition: int
    offset: int


class SoloBlock(NamedTuple):
    """A record that fills a block of its own, and the block's compressed size in bytes."""

    place: RecordPlace
    bytes: int


@dataclass(frozen=True)
class Findings:
    """What the records themselves have to say where the target's configuration asks; None: nothing found, or not asked.

    `without_key` is a record that has no key, `largest_solo` the largest record that fills a block of its own.
    """

    without_key: RecordPlace | None = None
    largest_solo: SoloBlock | None = None


@dataclass(frozen=True)
class RepublishPlan:
    """Which records go where: partition n of `topic` to partition n of `target`, in order."""

    topic: str
    target: str
    target_partitions: int
    sources: tuple[SourcePartition, ...]
    warnings: tuple[str, ...]

    @property
    def records(self) -> int:
        """Records of all partitions; an upper bound, as each source's."""
        return sum(source.records for source in self.sources)

    @property
    def bytes(self) -> int:
        """Encoded bytes of all partitions; an upper bound."""
        return sum(source.bytes for source in self.sources)


@dataclass(frozen=True)
class Request:
    """What was asked for; `into_source` is the operator's word that the source topic itself is meant."""

    topic: str
    target: str
    into_source: bool = False


def make_plan(
    request: Request,
    sources: Sequence[SourcePartition],
    target: TopicFacts | None,
    watermarks: Mapping[int, Watermarks],
    findings: Findings,
    now_ms: int,
) -> RepublishPlan:
    """The plan; raises NoSuchTopic or ReplayRefused where the target would not keep the records as they are."""
    _refuse_source(request)
    checked = _existing(request, sources, target)
    if checked.config is not None:
        _refuse_config(request.target, checked.config, sources, findings, now_ms)
    warnings = tuple(_warnings(checked, sources, watermarks))
    return RepublishPlan(request.topic, request.target, checked.num_partitions, tuple(sources), warnings)


def _refuse_source(request: Request) -> None:
    if request.target == request.topic and not request.into_source:
        raise ReplayRefused(
            f"{request.target} is the topic that the archive was made from",
            why="a replay would append a second copy of its records to it",
            remedy="name another topic with --to-topic, or say --into-source if that is what you want",
        )


def _existing(request: Request, sources: Sequence[SourcePartition], target: TopicFacts | None) -> TopicFacts:
    needed = max((source.partition + 1 for source in sources), default=1)
    if target is None:
        raise NoSuchTopic(
            f"the cluster has no topic {request.target!r}",
            why="a replay does not create topics",
            remedy=f"create it with {needed} partitions: kafka-topics.sh --create --topic {request.target} "
            f"--partitions {needed} --config retention.ms=-1",
        )
    if target.num_partitions < needed:
        raise ReplayRefused(
            f"topic {request.target!r} has too few partitions",
            why=f"it has {target.num_partitions}, and partition {needed - 1} of {request.topic} goes to partition "
            f"{needed - 1}",
            remedy=f"create it with at least {needed} partitions, or choose fewer with --partitions",
        )
    return target


def _refuse_config(
    target: str, config: TopicConfig, sources: Sequence[SourcePartition], findings: Findings, now_ms: int
) -> None:
    alter = f"kafka-configs.sh --alter --entity-type topics --entity-name {target} --add-config "
    if config.timestamp_type == "LogAppendTime":
        raise ReplayRefused(
            f"topic {target!r} would replace the records' timestamps",
            why="its message.timestamp.type is LogAppendTime",
            remedy=alter + "message.timestamp.type=CreateTime",
        )
    oldest = min((time for source in sources for time in _known_times(source)), default=None)
    newest = max((time for source in sources for time in _known_times(source)), default=None)
    if oldest is not None and newest is not None:
        _refuse_times(target, config, oldest, newest, now_ms, alter)
    if config.compacts and findings.without_key is not None:
        raise ReplayRefused(
            f"topic {target!r} takes no records without a key",
            why=f"its cleanup.policy is {','.join(sorted(config.cleanup_policy))}, and the record at partition "
            f"{findings.without_key.partition}, offset {findings.without_key.offset} has none",
            remedy=alter + "cleanup.policy=delete, or choose another topic",
        )
    solo, limit = findings.largest_solo, config.max_message_bytes
    if solo is not None and limit is not None and solo.bytes > limit:
        raise ReplayRefused(
            f"topic {target!r} takes no record as large as some of these",
            why=f"its max.message.bytes is {limit}, and the record at partition {solo.place.partition}, offset "
            f"{solo.place.offset} takes {solo.bytes} bytes even compressed",
            remedy=f"{alter}max.message.bytes={solo.bytes * 2}",
        )


def _refuse_times(target: str, config: TopicConfig, oldest: int, newest: int, now_ms: int, alter: str) -> None:
    retention = config.retention_ms
    if config.deletes and retention is not None and oldest < now_ms - retention:
        raise ReplayRefused(
            f"topic {target!r} would delete the records soon after they arrive",
            why=f"its retention.ms is {retention} ({_duration(retention)}) and the oldest are of {_time(oldest)}",
            remedy=alter + "retention.ms=-1",
        )
    before = config.timestamp_before_max_ms
    if before is not None and oldest < now_ms - before:
        raise ReplayRefused(
            f"topic {target!r} takes no records as old as these",
            why=f"its message.timestamp.before.max.ms is {before} ({_duration(before)}) and the oldest are of "
            f"{_time(oldest)}",
            remedy=f"{alter}message.timestamp.before.max.ms={2**63 - 1}",
        )
    after = config.timestamp_after_max_ms
    if after is not None and newest > now_ms + after:
        raise ReplayRefused(
            f"topic {target!r} takes no records as far in the future as these",
            why=f"its message.timestamp.after.max.ms is {after} ({_duration(after)}) and the newest are of "
            f"{_time(newest)}",
            remedy=f"{alter}message.timestamp.after.max.ms={2**63 - 1}",
        )


def _known_times(source: SourcePartition) -> list[int]:
    """The bounds of a partition's timestamps, apart from records that have none."""
    return [] if source.timestamps is None else [time for time in source.timestamps if time >= 0]


def _warnings(
    target: TopicFacts, sources: Sequence[SourcePartition], watermarks: Mapping[int, Watermarks]
) -> Iterator[str]:
    config = target.config
    if config is None:
        yield (
            f"the broker does not tell the configuration of {target.name}: "
            "retention, timestamps and sizes are not checked"
        )
    else:
        if config.compacts:
            yield f"{target.name} is compacted: of records with the same key only the newest will stay"
        if config.deletes and config.retention_bytes is not None:
            yield f"{target.name} keeps at most retention.bytes={config.retention_bytes} a partition"
    held = {partition: bounds for partition, bounds in watermarks.items() if bounds.end > bounds.low}
    for source in sources:
        if source.partition in held:
            low, end = held[source.partition]
            yield f"{target.name}:{source.partition} is not empty ({low}..{end}): the records are appended"
        for gap in source.gaps:
            yield f"partition {source.partition} has a recorded gap at {gap.start}..{gap.end} ({gap.reason})"
        if source.timestamps is not None and source.timestamps.min <= 0 <= source.timestamps.max:
            yield (
                f"partition {source.partition} may hold records with timestamp 0, which the client cannot send: "
                "they get timestamp 1"
            )
        for name in sorted(source.record_formats - LOSSLESS_FORMATS):
            yield f"partition {source.partition} was archived as {name}: keys, headers and timestamps were not kept"


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return f"{timestamp_ms} ms"
