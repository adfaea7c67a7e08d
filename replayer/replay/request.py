"""The request of a replay (which records, what is done to them, and the topic they go to), and its surroundings."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.positions import BeforeTime, Budget
from blockgz.archive.selection import STOPS, SelectionRequest
from blockgz.errors import UsageError
from blockgz.record_filter import Condition, HeaderIs, KeyIn, Not, Pattern, RecordFilter, ValueMatches
from blockgz.store.writer import Store
from index_format.keys import parse_topic_folder
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import NewTopic
from replayer.replay.pace import PATIENCE_SECONDS, Slowest
from replayer.replay.pipeline import (
    AddHeader,
    Pipeline,
    Routing,
    Timestamps,
    parse_header,
    parse_routing,
    parse_timestamps,
)
from replayer.transforms.chain import TransformChain, build_chain
from replayer.transforms.settings import read_transforms

TYPE, LEVEL = "compression.type", "compression.level"
# Another name of the type.
ALIAS = "compression.codec"
DEFAULT = "lz4"
# The codecs, each with its levels as far as librdkafka knows them.
LEVELS: Mapping[str, range] = {
    "lz4": range(13),
    "zstd": range(1, 13),
    "snappy": range(0),
    "gzip": range(1, 10),
    "none": range(0),
}


def codec_of(properties: Mapping[str, str]) -> str:
    """Return the codec that a producer with these settings of librdkafka uses."""
    return properties.get(TYPE) or properties.get(ALIAS) or DEFAULT


class Compression(NamedTuple):
    """A codec, and its level if it is not the codec's own."""

    codec: str
    level: int | None = None

    def added_to(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The settings of librdkafka with this in them; raises UsageError if they contradict it."""
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
    """Parse `CODEC` or `CODEC:LEVEL`; raises UsageError."""
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


def parse_topic_config(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`, as kafka-topics.sh --config takes it; raises UsageError."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(
            f"--topic-config {text[:80]!r} is not a setting", why="it is not NAME=VALUE", remedy="write retention.ms=-1"
        )
    return name.strip(), value


class CommandOption:
    """The option of a command that sets a field; a field that is False by default is a flag.

    The first of the `choices` is the default; `attributes` are those of `click.option`.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *,
        parse: Callable[[Any], Any] | None = None,
        choices: tuple[str, ...] = (),
        kind: Literal["text", "file", "duration"] = "text",
        **attributes: Any,
    ) -> None:
        self.name, self.parse, self.choices, self.kind = name, parse, choices, kind
        self.attributes = {"help": text, **attributes}


@dataclass(frozen=True)
class ReplayRequest:
    """A replay request: which records, where to, and how.

    The options of commands and the arguments of Python set these fields; the job's folder keeps them. Without `job`,
    the name of the job is derived from every field that affects records. Without `compression`, the producer's own
    settings apply.
    """

    topic: TopicPartitions
    target: str
    selection: SelectionRequest = field(default_factory=SelectionRequest)
    routing: Annotated[
        Routing,
        CommandOption(
            "--partitions",
            "Target partition: keep it; by key, as Java's producer does (by-key:N requires N partitions); n modulo N; "
            "or a map such as 0:2,1-3:0.",
            metavar="keep|by-key|N|MAP",
            parse=parse_routing,
            default="keep",
            envvar="BLOCKGZ_TARGET_PARTITIONS",
        ),
    ] = field(default_factory=Routing)
    timestamps: Annotated[
        Timestamps,
        CommandOption(
            "--timestamps",
            "Keep timestamps, use the time of sending, or shift them: shift=+30d, shift=-90m.",
            metavar="keep|now|shift=±TIME",
            parse=parse_timestamps,
            default="keep",
        ),
    ] = field(default_factory=Timestamps)
    strip_headers: Annotated[
        tuple[str, ...],
        CommandOption(
            "--strip-header", "Remove all headers with this name; may be repeated.", metavar="NAME", multiple=True
        ),
    ] = ()
    add_headers: Annotated[
        tuple[AddHeader, ...],
        CommandOption(
            "--add-header",
            "Add a header to every record; may be repeated.",
            metavar="NAME=VALUE",
            parse=lambda texts: tuple(map(parse_header, texts)),
            multiple=True,
        ),
    ] = ()
    provenance: Annotated[
        bool,
        CommandOption("--provenance", "Add a header with the record's origin, blockgz-source: topic/partition/offset."),
    ] = False
    tombstones: Annotated[
        Literal["keep", "drop"],
        CommandOption("--tombstones", "What to do with records whose value is null.", choices=("keep", "drop")),
    ] = "keep"
    chain: Annotated[
        TransformChain | None,
        CommandOption(
            "--transforms",
            "Apply Kafka Connect's transforms and predicates from a .properties, .yaml or .json file.",
            metavar="FILE",
            parse=lambda path: build_chain(read_transforms(Path(path))),
            kind="file",
        ),
    ] = None
    on_transform_error: Annotated[
        Literal["fail", "skip"],
        CommandOption(
            "--on-transform-error",
            "When a transform cannot handle a record: stop, or skip and count it.",
            choices=("fail", "skip"),
        ),
    ] = "fail"
    allow_unchanged: Annotated[
        bool,
        CommandOption(
            "--allow-unchanged",
            "Allow transforms that do nothing to the first 1,000 records: a field that none of them has, say.",
        ),
    ] = False
    create_topic: Annotated[
        bool,
        CommandOption(
            "--create-topic",
            "Create the topic if it is missing, with the archived topic's partitions and configuration.",
        ),
    ] = False
    topic_config: Annotated[
        Mapping[str, str],
        CommandOption(
            "--topic-config",
            "With --create-topic: a setting of the new topic; may be repeated.",
            metavar="NAME=VALUE",
            parse=lambda texts: dict(map(parse_topic_config, texts)),
            multiple=True,
        ),
    ] = field(default_factory=dict)
    omit_topic_config: Annotated[
        tuple[str, ...],
        CommandOption(
            "--omit-topic-config",
            "With --create-topic: leave out a setting of the archived topic; may be repeated.",
            metavar="NAME",
            multiple=True,
        ),
    ] = ()
    append: Annotated[bool, CommandOption("--append", "Allow a topic that already holds records.")] = False
    retention: Annotated[
        Literal["refuse", "hold"],
        CommandOption(
            "--retention",
            "If the topic's retention would delete the records: refuse, or lift it until the replay is complete.",
            choices=("refuse", "hold"),
        ),
    ] = "refuse"
    undo_retention: Annotated[
        bool,
        CommandOption(
            "--undo-retention",
            "Replay nothing; restore the retention that an interrupted replay with --retention hold left lifted.",
        ),
    ] = False
    on_damage: str = STOPS
    into_source: Annotated[
        bool, CommandOption("--into-source", "Allow --to-topic to be the archived topic itself, in the same cluster.")
    ] = False
    transactional: Annotated[
        bool,
        CommandOption(
            "--transactional",
            "Exactly once, even across crashes and --resume: commit records and position in one transaction.",
        ),
    ] = False
    partial: Annotated[
        bool, CommandOption("--partial", "If the archive lacks partitions, replay the others and exit with 3.")
    ] = False
    resume: Annotated[
        bool, CommandOption("--resume", "Resume where the job stopped; start it if it has written nothing.")
    ] = False
    job: Annotated[
        str | None,
        CommandOption(
            "--job",
            "Name of the job. The default is derived from archive, topic, target and selection.",
            metavar="NAME",
        ),
    ] = None
    compression: Annotated[
        Compression | None,
        CommandOption(
            "--compression",
            "Compression of batches: lz4 (default), zstd, snappy, gzip or none; optionally a level: zstd:3.",
            metavar="CODEC[:LEVEL]",
            parse=parse_compression,
        ),
    ] = None
    jobs: str | None = None
    """The address of the job folders."""
    patience: Annotated[
        float,
        CommandOption(
            "--patience",
            "How long to wait for brokers that do not respond.",
            metavar="TIME",
            default="5m",
            kind="duration",
        ),
    ] = PATIENCE_SECONDS
    pace: Slowest = field(default_factory=Slowest)
    new_topic: NewTopic | None = None
    """The topic that `create_topic` creates, instead of one like the archived topic."""
    follows: bool = False
    """True if the job has no end: resuming it continues with what was archived since."""

    @property
    def source(self) -> str:
        """The archived topic's name without its incarnation."""
        return parse_topic_folder(self.topic.topic).topic

    @property
    def by_rules(self) -> "list[ReplayRequest]":
        """The request, and when it resumes without a rule for `--at`, the same by the rule of earlier jobs."""
        positions = self.selection.positions
        if not self.resume or not isinstance(positions.end, BeforeTime) or positions.end.rule is not None:
            return [self]
        return [self, replace(self, selection=replace(self.selection, positions=positions.ruled("first")))]

    def producing(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings of producers; raises UsageError if the given ones contradict `compression`."""
        return self.compression.added_to(properties) if self.compression else properties


@dataclass(frozen=True)
class Surroundings:
    """The stores and clients of replays; pace, patience and budget are those of all topics of a restore together.

    `properties` are librdkafka's, `jobs` holds the folders of jobs and of restores.
    """

    archive: ArchiveReader
    properties: Mapping[str, str]
    jobs: Store
    pace: Slowest = field(default_factory=Slowest)
    patience: float = PATIENCE_SECONDS
    budget: Budget = field(default_factory=Budget)
    """The budget for finding the cuts of all topics."""

    # Made late: a client asks for tokens at once, and what the archive alone can refuse must come before that.
    @cached_property
    def admin(self) -> KafkaAdmin:
        """Return the client of the cluster, made at the first call, which blocks. Raise as KafkaAdmin does."""
        return KafkaAdmin(self.properties)

    @cached_property
    def changes(self) -> TopicChanges:
        """Return the client for changes, made at the first call."""
        return TopicChanges(self.properties)

    def refresh_admin(self) -> KafkaAdmin:
        """Return the client of the cluster with the current topics; it blocks. Raise as KafkaAdmin does."""
        return self.admin.again() if "admin" in vars(self) else self.admin

    def refreshed(self) -> "Surroundings":
        """Return a copy whose client of the cluster has the current topics; it blocks."""
        same = self.reading(self.archive)
        vars(same)["admin"] = self.refresh_admin()
        return same

    def reading(self, archive: ArchiveReader) -> "Surroundings":
        """Return a copy with another view of the archive; it keeps the clients that were made."""
        same = replace(self, archive=archive)
        vars(same).update({name: made for name, made in vars(self).items() if name in ("admin", "changes")})
        return same


def named_target(to_topic: str | None, topic: TopicPartitions, chain: TransformChain | None) -> str | None:
    """Return the topic that records go to: `to_topic`, with `{topic}` replaced, or the choice of transforms; None if
    neither.
    """
    name = parse_topic_folder(topic.topic).topic
    if to_topic is not None:
        return to_topic.replace("{topic}", name)
    return chain.routed_name(name) if chain else None


def asked_of(request: ReplayRequest, pipeline: Pipeline, num_partitions: int) -> dict[str, Any]:
    """Return everything that decides about records, as JSON; `num_partitions` are those of the target."""
    chain, asked = request.chain, request.selection.filter
    return {
        "pipeline": pipeline.fingerprint,
        "filter": {"since": asked.since, "until": asked.until, "all": list(map(_condition_json, asked.conditions))},
        "partitions": [
            request.routing.rule,
            request.routing.partitions,
            [list(each) for each in request.routing.places],
        ],
        "target_partitions": num_partitions,
        "timestamps": str(request.timestamps),
        "strip_headers": list(request.strip_headers),
        "add_headers": [[each.key, _text(each.value)] for each in request.add_headers],
        "provenance": request.provenance,
        "tombstones": request.tombstones,
        "transforms": json.loads(chain.fingerprint.removeprefix("transforms ")) if chain else None,
        "on_transform_error": request.on_transform_error,
        "on_damage": request.on_damage,
    }


def kept_request(asked: Mapping[str, Any], job: str, topic: str, target: str) -> ReplayRequest:
    """Return the request whose decisions about records `asked_of` wrote down for a job.

    Raises ReplayRefused for what this version does not understand.
    """
    try:
        rule, partitions, places = asked["partitions"]
        return ReplayRequest(
            TopicPartitions(topic, None),
            target,
            SelectionRequest(filter=_filter(asked["filter"])),
            routing=Routing(rule, partitions, tuple((source, target) for source, target in places)),
            timestamps=parse_timestamps(asked["timestamps"]),
            strip_headers=tuple(asked["strip_headers"]),
            add_headers=tuple(AddHeader(key, _content(value)) for key, value in asked["add_headers"]),
            provenance=asked["provenance"],
            tombstones=asked["tombstones"],
            chain=build_chain(asked["transforms"]) if asked["transforms"] is not None else None,
            on_transform_error=asked["on_transform_error"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayRefused(
            f"what job {job} did to records is not known",
            why=f"its folder does not say it: {error or type(error).__name__}",
            remedy="use the version that started it, or compare with verify --against-topic",
        ) from error


def _filter(told: Mapping[str, Any]) -> RecordFilter:
    return RecordFilter(told["since"], told["until"], tuple(map(_condition, told["all"])))


def _condition_json(condition: Condition) -> list[Any]:
    match condition:
        case KeyIn(keys):
            return ["key", [None if key is None else _text(key) for key in keys]]
        case ValueMatches(pattern):
            return ["value", pattern.expression, pattern.ignore_case]
        case HeaderIs(key, value):
            return ["header", key] if value is None else ["header", key, _text(value)]
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
            return HeaderIs(key)
        case ["header", key, value]:
            return HeaderIs(key, _content(value))
        case ["not", inner]:
            return Not(_condition(inner))
    raise ValueError(f"a filter {str(told)[:80]} is not known")


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _content(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
