"""Options of the format `blockgz`: those of Spark's own Kafka source, and where the archive is.

Source of the names and their meaning: Spark's Structured Streaming and Kafka integration guide.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from blockgz_runtime.errors import UsageError
from blockgz_runtime.store.address import Address, parse_address
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from index_format.errors import BadName
from replayer.read.positions import AtOffset, AtTime, Earliest, Latest, Position

TASK_BYTES = 128 * 1024 * 1024
"""Stored bytes of one task: a tenth of that in memory, and long enough to be worth a task."""

EARLIEST, LATEST = -2, -1
"""What stands for an end of a partition in offsets as JSON."""

Bound = Position | Mapping[tuple[str, int], Position]
"""Where all partitions begin or end, or each by topic and partition."""


@dataclass(frozen=True)
class Subscription:
    """Which partitions: topics by name, by a pattern, or single partitions (`partitions` of a topic; None: all)."""

    topics: Mapping[str, tuple[int, ...] | None]
    pattern: str | None = None


@dataclass(frozen=True)
class SourceOptions:
    """Everything that a read is told."""

    path: str
    address: Address
    subscription: Subscription
    start: Bound
    end: Bound
    headers: bool
    fails_on_data_loss: bool
    late_start_means_latest: bool
    """Whether a start by time that no record reaches means the end, rather than an error."""
    min_tasks: int
    task_bytes: int
    max_offsets_per_trigger: int | None
    endpoint_url: str | None
    region: str | None
    max_block_bytes: int


_KNOWN = {
    "path",
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
    "includeheaders",
    "minpartitions",
    "maxoffsetspertrigger",
    "failondataloss",
    "taskbytes",
    "endpointurl",
    "region",
    "maxblockbytes",
}


def parse_options(given: Mapping[str, str], *, default_start: Position) -> SourceOptions:
    """The options by their names in any case; raises UsageError that names the option and the remedy."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _KNOWN)
    if unknown:
        raise UsageError(
            f"format blockgz has no option {unknown[0]!r}",
            why="options of a Kafka client have no meaning for an archive",
            remedy=f"leave it out; there are {', '.join(sorted(_KNOWN))}",
        )
    if not (path := options.get("path")):
        raise UsageError(
            "format blockgz needs a path", remedy='add .option("path", "s3://bucket/prefix") or .load(path)'
        )
    try:
        address = parse_address(path if "://" in path or path.startswith((".", "/", "~")) else f"./{path}")
    except BadName as error:
        raise UsageError(error.what, why=error.why, remedy=error.remedy) from error
    return SourceOptions(
        path=path,
        address=address,
        subscription=_subscription(options),
        start=_start(options, default_start),
        end=_end(options),
        headers=_flag(options, "includeHeaders", default=False),
        fails_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        late_start_means_latest=_word(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        min_tasks=_number(options, "minPartitions") or 1,
        task_bytes=_number(options, "taskBytes") or TASK_BYTES,
        max_offsets_per_trigger=_number(options, "maxOffsetsPerTrigger"),
        endpoint_url=options.get("endpointurl"),
        region=options.get("region"),
        max_block_bytes=_number(options, "maxBlockBytes") or DEFAULT_MAX_BLOCK_BYTES,
    )


def position_in(bound: Bound, topic: str, partition: int, option: str) -> Position:
    """Where one partition begins or ends; raises UsageError where offsets are given and not for this one."""
    if not isinstance(bound, Mapping):
        return bound
    try:
        return bound[topic, partition]
    except KeyError:
        raise UsageError(
            f"{option} says nothing of partition {partition} of {topic}",
            why="where partitions are named one by one, all must be",
            remedy="add it: -2 means the earliest offset, -1 the latest, or name partitions with assign",
        ) from None


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.get(name.lower())]
    if len(given) != 1:
        raise UsageError(
            "format blockgz needs one of subscribe, subscribePattern and assign",
            why=f"given: {', '.join(given) or 'none'}",
            remedy='name topics: .option("subscribe", "orders,payments")',
        )
    value = options[given[0].lower()]
    if given == ["subscribe"]:
        return Subscription({topic.strip(): None for topic in value.split(",") if topic.strip()})
    if given == ["assign"]:
        return Subscription(_assigned(value))
    try:
        re.compile(value)
    except re.error as error:
        raise UsageError(
            f"subscribePattern {value!r} is not a pattern", why=str(error), remedy="write a regular expression"
        ) from error
    return Subscription({}, value)


def _assigned(text: str) -> dict[str, tuple[int, ...] | None]:
    example = '{"orders":[0,1]}'
    named = _json_of(text, "assign", example)
    try:
        return {topic: tuple(sorted({_whole(number) for number in numbers})) for topic, numbers in named.items()}
    except TypeError:
        _refuse(text, "assign", example)


def _start(options: Mapping[str, str], default: Position) -> Bound:
    if (time := _number(options, "startingTimestamp")) is not None:
        return AtTime(time)
    if times := options.get("startingoffsetsbytimestamp"):
        return _times(times, "startingOffsetsByTimestamp")
    text = options.get("startingoffsets")
    if text is None:
        return default
    return _offsets(text, "startingOffsets")


def _end(options: Mapping[str, str]) -> Bound:
    if (time := _number(options, "endingTimestamp")) is not None:
        return AtTime(time)
    if times := options.get("endingoffsetsbytimestamp"):
        return _times(times, "endingOffsetsByTimestamp")
    bound = _offsets(options.get("endingoffsets", "latest"), "endingOffsets")
    ends = bound.values() if isinstance(bound, Mapping) else [bound]
    if any(isinstance(end, Earliest) for end in ends):
        raise UsageError(
            "endingOffsets cannot be earliest", why="nothing would be read", remedy="say latest, or offsets"
        )
    return bound


def _offsets(text: str, option: str) -> Bound:
    words: dict[str, Position] = {"earliest": Earliest(), "latest": Latest()}
    if text.lower() in words:
        return words[text.lower()]
    return {place: _offset(number, option) for place, number in _by_partition(text, option).items()}


def _times(text: str, option: str) -> Bound:
    return {place: AtTime(time) for place, time in _by_partition(text, option).items()}


def _offset(number: int, option: str) -> Position:
    if number < EARLIEST:
        raise UsageError(f"{option} holds the offset {number}", remedy="write -2 for the earliest, -1 for the latest")
    ends: dict[int, Position] = {EARLIEST: Earliest(), LATEST: Latest()}
    return ends.get(number) or AtOffset(number)


def _by_partition(text: str, option: str) -> dict[tuple[str, int], int]:
    example = '{"orders":{"0":23,"1":-2}}'
    named = _json_of(text, option, example)
    try:
        return {
            (topic, int(partition)): _whole(number)
            for topic, partitions in named.items()
            for partition, number in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        _refuse(text, option, example)


def _whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(number)
    return number


def _json_of(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        named = json.loads(text)
    except ValueError:
        _refuse(text, option, example)
    if not isinstance(named, dict) or not named:
        _refuse(text, option, example)
    return named


def _refuse(text: str, option: str, example: str) -> NoReturn:
    raise UsageError(f"{option} is {text[:80]!r}", why="that is not what it takes", remedy=f"write it like {example}")


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
        _refuse(text, name, "123456")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _word(options, name, ("true", "false"), "true" if default else "false") == "true"


def _word(options: Mapping[str, str], name: str, words: tuple[str, ...], default: str = "") -> str:
    text = options.get(name.lower(), default or words[0]).lower()
    if text not in words:
        _refuse(text, name, " or ".join(words))
    return text
