"""What is asked of a replay: which records, what becomes of them on their way, and the topic they go to."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from blockgz.archive.archive import TopicPartitions
from blockgz.archive.request import STOPS, SelectionRequest
from blockgz.errors import UsageError
from blockgz.record_filter import (
    Condition,
    HasHeader,
    HeaderIs,
    KeyIn,
    Not,
    Pattern,
    RecordFilter,
    ValueMatches,
)
from index_format.keys import parse_topic_folder
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import NewTopic
from replayer.replay.pace import PATIENCE_SECONDS, Slowest
from replayer.replay.pipeline import Pipeline, RoutingRequest
from replayer.replay.stages import AddHeader, KeepTimestamps, ShiftTimestamps, TimestampPolicy, parse_timestamps
from replayer.transforms.chain import Chain, build_chain

TYPE, LEVEL = "compression.type", "compression.level"
ALIAS = "compression.codec"
"""Another name of the type."""
DEFAULT = "lz4"
LEVELS: Mapping[str, range] = {
    "lz4": range(13),
    "zstd": range(1, 13),
    "snappy": range(0),
    "gzip": range(1, 10),
    "none": range(0),
}
"""The codecs, each with its levels as far as librdkafka knows them."""


def codec_of(properties: Mapping[str, str]) -> str:
    """Return the codec that a producer with these settings of librdkafka uses."""
    return properties.get(TYPE) or properties.get(ALIAS) or DEFAULT


class Compression(NamedTuple):
    """A codec, and its level where it is not the codec's own."""

    codec: str
    level: int | None = None

    def added_to(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The settings of librdkafka with this in them; raises UsageError where they say something else."""
        asked = {TYPE: self.codec} | ({} if self.level is None else {LEVEL: str(self.level)})
        told = {name: properties[name] for name in (TYPE, ALIAS, LEVEL) if name in properties}
        for name, value in told.items():
            wanted = asked.get(TYPE if name == ALIAS else name, value)
            if value != wanted:
                raise UsageError(
                    f"--compression {self} contradicts -X {name}={value}",
                    why="both set the compression of batches",
                    remedy=f"remove one of them; --compression {self} is enough",
                )
        return {**properties, **asked}

    def __str__(self) -> str:
        return self.codec if self.level is None else f"{self.codec}:{self.level}"


def parse_compression(text: str) -> Compression:
    """`CODEC` or `CODEC:LEVEL`; raises UsageError."""
    codec, colon, level = text.partition(":")
    levels = LEVELS.get(codec)
    if levels is None:
        raise UsageError(
            f"--compression {text[:80]} is not known",
            why=f"Kafka has {', '.join(LEVELS)}",
            remedy="use one of these, optionally with a level: zstd:3",
        )
    if not colon:
        return Compression(codec)
    if not (level.isascii() and level.isdigit() and len(level) <= 2 and int(level) in levels):
        known = f"those of {codec} are {levels.start} to {levels.stop - 1}" if levels else f"{codec} has none"
        raise UsageError(f"--compression {text[:80]} has no such level", why=known, remedy=f"write {codec}")
    return Compression(codec, int(level))


@dataclass(frozen=True)
class Shape:
    """How records are spread and changed, and what is done to the target topic."""

    routing: RoutingRequest = field(default_factory=RoutingRequest)
    timestamps: TimestampPolicy = field(default_factory=KeepTimestamps)
    strip_headers: tuple[str, ...] = ()
    add_headers: tuple[AddHeader, ...] = ()
    provenance: bool = False
    tombstones: Literal["keep", "drop"] = "keep"
    chain: Chain | None = None
    on_transform_error: Literal["fail", "skip"] = "fail"
    allow_unchanged: bool = False
    """Whether transforms may do nothing to the first records."""
    create_topic: bool = False
    topic_config: Mapping[str, str] = field(default_factory=dict)
    new_topic: NewTopic | None = None
    """What `create_topic` makes, where that is said in full."""
    append: bool = False
    retention: Literal["refuse", "hold"] = "refuse"
    undo_retention: bool = False


@dataclass(frozen=True)
class ReplayRequest:
    """What is replayed, where to, and how; without `job` the job gets a name that follows from the rest.

    `jobs` is the address of the folders of jobs, `patience` the seconds that a cluster may stand still. Without
    `compression` the producer's settings say it.
    """

    topic: TopicPartitions
    target: str
    selection: SelectionRequest = field(default_factory=SelectionRequest)
    shape: Shape = field(default_factory=Shape)
    on_damage: str = STOPS
    into_source: bool = False
    transactional: bool = False
    partial: bool = False
    resume: bool = False
    follows: bool = False
    """The job has no end: what is resumed goes on with what was archived since."""
    job: str | None = None
    jobs: str | None = None
    patience: float = PATIENCE_SECONDS
    pace: Slowest = field(default_factory=Slowest)
    compression: Compression | None = None

    @property
    def by_rules(self) -> "list[ReplayRequest]":
        """The request, and when it resumes without a rule for `--at`, the same by the rule of earlier jobs."""
        older = self.selection.positions.as_first if self.resume else None
        return [self] if older is None else [self, replace(self, selection=replace(self.selection, positions=older))]

    def producing(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """What producers are made with; raises UsageError where the settings contradict `compression`."""
        return self.compression.added_to(properties) if self.compression else properties


def named_target(to_topic: str | None, topic: TopicPartitions, chain: Chain | None) -> str | None:
    """The topic that records go to: `to_topic`, with `{topic}` replaced, or what transforms say; None if neither."""
    name = parse_topic_folder(topic.topic).topic
    if to_topic is not None:
        return to_topic.replace("{topic}", name)
    return chain.routed_name(name) if chain else None


def asked_of(request: ReplayRequest, pipeline: Pipeline, num_partitions: int) -> dict[str, Any]:
    """Everything that decides about records, as JSON; `num_partitions` are those of the target."""
    shape = request.shape
    chain = shape.chain
    return {
        "pipeline": pipeline.fingerprint,
        "filter": _filter_json(request.selection.filter),
        "partitions": [shape.routing.rule, shape.routing.partitions, [list(each) for each in shape.routing.places]],
        "target_partitions": num_partitions,
        "timestamps": _timestamps_text(shape.timestamps),
        "strip_headers": list(shape.strip_headers),
        "add_headers": [[each.key, _text(each.value)] for each in shape.add_headers],
        "provenance": shape.provenance,
        "tombstones": shape.tombstones,
        "transforms": json.loads(chain.fingerprint.removeprefix("transforms ")) if chain else None,
        "on_transform_error": shape.on_transform_error,
        "on_damage": request.on_damage,
    }


def shape_asked(asked: Mapping[str, Any], job: str) -> tuple[Shape, RecordFilter]:
    """The reverse; raises ReplayRefused for what this version does not understand."""
    try:
        rule, partitions, places = asked["partitions"]
        shape = Shape(
            routing=RoutingRequest(rule, partitions, tuple((source, target) for source, target in places)),
            timestamps=parse_timestamps(asked["timestamps"]),
            strip_headers=tuple(asked["strip_headers"]),
            add_headers=tuple(AddHeader(key, _content(value)) for key, value in asked["add_headers"]),
            provenance=asked["provenance"],
            tombstones=asked["tombstones"],
            chain=build_chain(asked["transforms"]) if asked["transforms"] is not None else None,
            on_transform_error=asked["on_transform_error"],
        )
        return shape, _filter(asked["filter"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayRefused(
            f"what job {job} did to records is not known",
            why=f"its folder does not say it: {error or type(error).__name__}",
            remedy="use the version that started it, or compare with verify --against-topic",
        ) from error


def _timestamps_text(policy: TimestampPolicy) -> str:
    return f"shift={policy.by:+d}ms" if isinstance(policy, ShiftTimestamps) else policy.fingerprint.split()[1]


def _filter_json(asked: RecordFilter) -> dict[str, Any]:
    return {"since": asked.since, "until": asked.until, "all": [_condition_json(each) for each in asked.conditions]}


def _filter(told: Mapping[str, Any]) -> RecordFilter:
    return RecordFilter(told["since"], told["until"], tuple(map(_condition, told["all"])))


def _condition_json(condition: Condition) -> list[Any]:
    match condition:
        case KeyIn(keys):
            return ["key", [None if key is None else _text(key) for key in keys]]
        case ValueMatches(pattern):
            return ["value", pattern.expression, pattern.ignore_case]
        case HasHeader(key):
            return ["header", key]
        case HeaderIs(key, value):
            return ["header", key, _text(value)]
        case Not(inner):
            return ["not", _condition_json(inner)]
    raise TypeError(f"no job asks for {condition}")


def _condition(told: Any) -> Condition:
    match told:
        case ["key", keys]:
            return KeyIn(tuple(None if key is None else _content(key) for key in keys))
        case ["value", expression, ignore_case]:
            return ValueMatches(Pattern(expression, ignore_case))
        case ["header", key]:
            return HasHeader(key)
        case ["header", key, value]:
            return HeaderIs(key, _content(value))
        case ["not", inner]:
            return Not(_condition(inner))
    raise ValueError(f"a filter {str(told)[:80]} is not known")


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _content(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
