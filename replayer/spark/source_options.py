"""Options of the format `blockgz`: those of Spark's own Kafka source, and where the archive is.

Source of the names and their meaning: Spark's Structured Streaming and Kafka integration guide.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from blockgz.archive.archive import ArchivePlace
from blockgz.archive.positions import AT_END, AT_START, AtOffset, AtTime, Position
from blockgz.errors import BadName, UsageError, camel_case
from blockgz.spark.formats import FormatOptions, bad_value, json_object
from blockgz.store.address import CONNECTION, S3Settings, parse_address
from index_format.keys import TopicFolder
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES
from replayer.spark.decoding import Decoding, parse_decoding

# Stored bytes of one task: a tenth of that in memory, and long enough to be worth a task.
TASK_BYTES = 128 * 1024 * 1024

# Numbers for the ends of a partition in offsets as JSON.
EARLIEST, LATEST = -2, -1

# The start or end of all partitions, or of each by topic and partition.
Bound = Position | Mapping[tuple[str, int], Position]


# The subscribed topics by name, with partitions or None for all, or the pattern of their names.
Subscription = Mapping[str, tuple[int, ...] | None] | str


@dataclass(frozen=True)
class SourceOptions:
    place: ArchivePlace
    subscription: Subscription
    start: Bound
    end: Bound
    headers: bool
    incarnation: bool
    """True if rows have a column with the incarnation of their topic."""
    fails_on_data_loss: bool
    skips_damage: bool
    late_start_means_latest: bool
    """True if a start by time that no record reaches means the end, rather than an error."""
    min_tasks: int
    task_bytes: int
    max_offsets_per_trigger: int | None
    decoding: Decoding | None = None
    """How keys and values become columns; None leaves them bytes."""


_S3 = {camel_case(field): field for field in CONNECTION}
_KNOWN = (
    *("path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp"),
    *("endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "includeHeaders", "includeIncarnation", "minPartitions"),
    *("maxOffsetsPerTrigger", "failOnDataLoss", "onDamage", "taskBytes", *_S3, "keys", "maxBlockBytes"),
    *("keyFormat", "valueFormat", "keySchema", "valueSchema", "keySubject", "valueSubject"),
    *("schemaRegistry", "onBadValue", "envelope"),
)


def parse_options(given: Mapping[str, str], *, default_start: Position) -> SourceOptions:
    """Return the options by their names in any case; raises UsageError that names the option and the remedy."""
    refused = "remove it: Kafka client options do not apply to an archive"
    options = FormatOptions("blockgz", given, _KNOWN, dotted=refused)
    path = options.path(".load(path)")
    try:
        address = parse_address(path)
    except BadName as error:
        raise UsageError(error.what, why=error.why, remedy=error.remedy) from error
    place = ArchivePlace(
        address,
        S3Settings(**{field: options.text(name) for name, field in _S3.items()}),
        options.number("maxBlockBytes") or DEFAULT_MAX_BLOCK_BYTES,
        keys=options.text("keys"),
    )
    return SourceOptions(
        place.absolute(),
        subscription=_subscription(options),
        start=_bound(options, "starting", default_start),
        end=_end(options),
        headers=options.flag("includeHeaders", default=False),
        incarnation=options.flag("includeIncarnation", default=False),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        skips_damage=options.word("onDamage", ("fail", "skip"), "fail") == "skip",
        late_start_means_latest=options.word("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        == "latest",
        min_tasks=options.number("minPartitions") or 1,
        task_bytes=options.number("taskBytes") or TASK_BYTES,
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
        decoding=parse_decoding(options),
    )


def names_partition(bound: Bound, folder: TopicFolder, partition: int) -> bool:
    """Return whether offsets are given for a partition of this very incarnation: `{"orders~1":{"0":23}}`."""
    return isinstance(bound, Mapping) and (f"{folder.topic}~{folder.incarnation}", partition) in bound


def position_in(bound: Bound, folder: TopicFolder, partition: int, option: str) -> Position:
    """Return the start or end of one partition; raises UsageError if offsets are given, but not for this one."""
    if not isinstance(bound, Mapping):
        return bound
    if names_partition(bound, folder, partition):
        return bound[f"{folder.topic}~{folder.incarnation}", partition]
    try:
        return bound[folder.topic, partition]
    except KeyError:
        raise UsageError(
            f"{option} does not name partition {partition} of {folder}",
            why="if partitions are named one by one, all must be named",
            remedy="add it: -2 means the earliest offset, -1 the latest, or name partitions with assign",
        ) from None


def _subscription(options: FormatOptions) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(given) != 1:
        raise UsageError(
            "format blockgz needs one of subscribe, subscribePattern and assign",
            why=f"given: {', '.join(given) or 'none'}",
            remedy='name topics: .option("subscribe", "orders,payments")',
        )
    value = options.given[given[0]]
    if given == ["subscribe"]:
        return {topic.strip(): None for topic in value.split(",") if topic.strip()}
    if given == ["assign"]:
        return _assigned(value)
    try:
        re.compile(value)
    except re.error as error:
        raise UsageError(
            f"subscribePattern {value!r} is not a pattern", why=str(error), remedy="write a regular expression"
        ) from error
    return value


def _assigned(text: str) -> dict[str, tuple[int, ...] | None]:
    example = '{"orders":[0,1]}'
    named = json_object("assign", text, example)
    try:
        assigned: dict[str, tuple[int, ...] | None]
        assigned = {topic: tuple(sorted({_whole(number) for number in numbers})) for topic, numbers in named.items()}
    except TypeError:
        assigned = {}
    if not assigned:
        raise bad_value("assign", text, example)
    return assigned


def _bound(options: FormatOptions, side: str, default: Position) -> Bound:
    """Return the start or end of partitions; `side` is "starting" or "ending"."""
    if (time := options.number(f"{side}Timestamp")) is not None:
        return AtTime(time)
    name = f"{side}OffsetsByTimestamp"
    if times := options.text(name):
        return {place: AtTime(time) for place, time in _by_partition(times, name).items()}
    name = f"{side}Offsets"
    text = options.given.get(name)
    if text is None:
        return default
    words: dict[str, Position] = {"earliest": AT_START, "latest": AT_END}
    if text.lower() in words:
        return words[text.lower()]
    return {place: _offset(number, name) for place, number in _by_partition(text, name).items()}


def _end(options: FormatOptions) -> Bound:
    bound = _bound(options, "ending", AT_END)
    if AT_START in (bound.values() if isinstance(bound, Mapping) else [bound]):
        raise UsageError(
            "endingOffsets cannot be earliest", why="nothing would be read", remedy="use latest, or offsets"
        )
    return bound


def _offset(number: int, option: str) -> Position:
    if number < EARLIEST:
        raise UsageError(f"{option} holds the offset {number}", remedy="write -2 for the earliest, -1 for the latest")
    ends: dict[int, Position] = {EARLIEST: AT_START, LATEST: AT_END}
    return ends.get(number) or AtOffset(number)


def _by_partition(text: str, option: str) -> dict[tuple[str, int], int]:
    example = '{"orders":{"0":23,"1":-2}}'
    named = json_object(option, text, example)
    try:
        found = {
            (topic, int(partition)): _whole(number)
            for topic, partitions in named.items()
            for partition, number in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        found = {}
    if not found:
        raise bad_value(option, text, example)
    return found


def _whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(number)
    return number
