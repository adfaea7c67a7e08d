"""The configuration of `archiver run`: one frozen model, its defaults and its checks in one place.

Other commands, of both programs, take what they share from it: `blockgz.program.options`.
The docstring of a field is its help text, its comment in `archiver config init` and its row in docs/configuration.md.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from blockgz.encryption.keyring import parse_keys
from blockgz.errors import UsageError
from blockgz.kafka.secrets import is_secret
from blockgz.store.address import CHECKED, LocalAddress, S3Settings, check_setting, conflicts, parse_address
from blockgz.topic_patterns import TopicRules, TopicSelection, matcher
from blockgz.units import parse_duration, parse_size
from index_format.keys import check_topic
from index_format.objects import FORMER_GROUP, MAX_KEY_FILTER_BITS, ArchiveInfo

# The word for no limit, in fields that allow it.
NONE = "none"


def parse_none(text: Any) -> Any:
    """None from `none`; anything else passes through."""
    return None if text == NONE else text


def parse_age(text: str) -> float | None:
    """Seconds from `90d`, None from `none`. Raises ValueError, also for a number without a unit."""
    if text.strip().isdecimal():
        raise ValueError(f"{text!r} has no unit; write {text}d for days, or one of ms s m h")
    return None if text == NONE else _positive(text, parse_duration(text))


def parse_bytes(text: str) -> int | None:
    """Bytes from `500GB`, None from `none`. Raises ValueError."""
    return None if text == NONE else _positive(text, parse_size(text))


def _positive(text: str, value: Any) -> Any:
    if value <= 0:
        raise ValueError(f"{text!r} would keep nothing")
    return value


def _names(value: Any) -> Any:
    """Return topics from `orders, payments`; a `~regex` is one pattern, even if it holds commas."""
    if not isinstance(value, str):
        return value
    return (value,) if value.startswith("~") else tuple(name for name in re.split(r"[,\s]+", value) if name)


def _host_and_port(text: str) -> str:
    match = re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", text, re.ASCII)
    if not match or int(match[1]) > 65535:
        raise ValueError("it is not HOST:PORT")
    return text


Size = Annotated[int, Field(ge=1), BeforeValidator(parse_size, json_schema_input_type=int | str)]
Seconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False), BeforeValidator(parse_duration, json_schema_input_type=float | str)
]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_names, json_schema_input_type=list[str] | str)]
OptionalSeconds = Annotated[Seconds | None, BeforeValidator(parse_none, json_schema_input_type=float | str | None)]
OptionalEndsSeconds = Annotated[
    Annotated[Seconds, Field(le=3600)] | None, BeforeValidator(parse_none, json_schema_input_type=float | str | None)
]
OptionalCount = Annotated[
    Annotated[int, Field(ge=1)] | None, BeforeValidator(parse_none, json_schema_input_type=int | str | None)
]
OptionalKeyBits = Annotated[
    Annotated[int, Field(ge=1, le=MAX_KEY_FILTER_BITS)] | None,
    BeforeValidator(parse_none, json_schema_input_type=int | str | None),
]
OptionalPatterns = Annotated[
    Patterns | None, BeforeValidator(parse_none, json_schema_input_type=list[str] | str | None)
]
HostAndPort = Annotated[str, AfterValidator(_host_and_port)]

# librdkafka settings that nobody may override, each with the reason.
KAFKA_RESERVED = {
    "enable.auto.commit": "the marker in the archive is the only committed position",
    "enable.auto.offset.store": "the marker in the archive is the only committed position",
    "auto.offset.reset": "a missing offset is recorded as a gap, never skipped",
    "isolation.level": "it determines what the archive holds; use isolation_level",
    "enable.partition.eof": "--once and idle progress need to see the end of a partition",
    "group.id": "use group_id",
    "group.instance.id": "use group_instance_id",
    "group.protocol": "use group_protocol",
    "partition.assignment.strategy": "only cooperative-sticky, which is always used, moves partitions one by one",
    "bootstrap.servers": "use bootstrap_servers",
    "metadata.broker.list": "use bootstrap_servers",
    "auto.commit.enable": "the marker in the archive is the only committed position",
    "logger": "it is a function, which a setting cannot name",
    "error_cb": "it is a function, which a setting cannot name",
    "stats_cb": "it is a function, which a setting cannot name",
}


MAINTENANCE = ("archive_retention", "archive_retention_bytes", "compact")
S3_FIELDS = {each.name: each.metadata["help"] for each in fields(S3Settings)}


def _of_s3(name: str) -> Any:
    """Return a field that S3Settings describes and checks, as it does not load pydantic for commands about a folder."""
    return Field(None, min_length=None if name in CHECKED else 1, description=S3_FIELDS[name])


class RunConfig(BaseModel):
    """Everything that `archiver run` needs to know. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    archive: str
    """Where the archive is: s3://bucket/prefix, file:///dir or ./dir."""
    bootstrap_servers: str = Field(min_length=1)
    """HOST:PORT of brokers, separated by commas."""
    topics: Annotated[Patterns, Field(min_length=1)]
    """Topics to archive: names, globs or ~regex."""
    once: bool = False
    """Drain to the last stable offsets taken at the start, then exit."""
    exclude: Patterns = ()
    """Topics to exclude: names, globs or ~regex."""
    group_id: str | None = Field(None, min_length=1)
    """Consumer group that owns the archive. The default is the group recorded in the archive."""
    group_protocol: Literal["classic", "consumer"] = "classic"
    """Rebalance protocol of the consumer group; consumer is KIP-848."""
    group_instance_id: str | None = Field(None, min_length=1)
    """Static member id: a prompt restart moves no partitions."""
    kafka: dict[str, str | SecretStr] = Field(default_factory=dict)
    """librdkafka settings by their exact names, such as security.protocol or sasl.password."""
    endpoint_url: str | None = _of_s3("endpoint_url")
    region: str | None = _of_s3("region")
    profile: str | None = _of_s3("profile")
    proxy_url: str | None = _of_s3("proxy_url")
    role_arn: str | None = _of_s3("role_arn")
    external_id: str | None = _of_s3("external_id")
    customer_key: str | None = _of_s3("customer_key")
    access_key_id: str | None = _of_s3("access_key_id")
    secret_access_key: str | None = _of_s3("secret_access_key")
    session_token: str | None = _of_s3("session_token")
    sse: str | None = _of_s3("sse")
    kms_key_id: str | None = _of_s3("kms_key_id")
    storage_class: str | None = _of_s3("storage_class")
    acl: str | None = _of_s3("acl")
    object_tags: str | None = _of_s3("object_tags")
    checksum_algorithm: str | None = _of_s3("checksum_algorithm")
    layout: Literal["topic", "seed"] = "topic"
    """How objects are named; seed is the layout that readers of kafka-connect-s3 expect."""
    record_format: Literal["json", "arrow", "text"] = "json"
    """How records are stored: arrow loads faster; text holds only values without line breaks."""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Which records to archive: only those of committed transactions, or all."""
    block_bytes: Annotated[Size, Field(le=128 * 1024**2)] = 1024**2
    """Maximum encoded size of a block, which is what a look-up reads."""
    chunk_bytes: Size = 128 * 1024**2
    """Close a chunk at this compressed size."""
    chunk_records: OptionalCount = None
    """Close a chunk at this many records."""
    chunk_interval: Seconds = 300
    """Close a chunk at this age."""
    chunk_idle: OptionalSeconds = 60
    """Close a chunk after this long without a record, unless it is tiny."""
    chunk_span: OptionalSeconds = None
    """Close a chunk before its records' timestamps span this much."""
    key_filter: OptionalKeyBits = None
    """Bits per key, such as 10, for a filter of each block's keys: a search by key reads few others."""
    encrypt: str | None = None
    """Keys to encrypt chunks with: file:/path, env:NAME or kms:ARN; several separated by commas, the newest last."""
    codec: Literal["gzip", "zstd"] = "gzip"
    """Compression of blocks: every tool reads gzip; zstd is smaller."""
    gzip_library: Literal["isal", "zlib"] = "isal"
    """Library that writes gzip: ISA-L is ten times faster, zlib is smaller."""
    gzip_level: int | None = Field(None, ge=0, le=9)
    """isal: 0 to 3, default 1; zlib: 0 to 9, default 6."""
    zstd_level: int = Field(2, ge=1, le=19)
    """Higher levels are smaller and slower."""
    memory: Annotated[Size, Field(ge=32 * 1024**2)] = 256 * 1024**2
    """Memory budget for records, per process."""
    buffer_dir: Path | None = None
    """Folder for open chunks. The default is inside a local archive, otherwise ~/.cache/blockgz/buffer."""
    buffer_bytes: Annotated[Size, Field(ge=1024**2)] = 10 * 1024**3
    """Disk budget of the buffer folder, per process."""
    grace: Seconds = 25
    """Time to flush and commit at shutdown or when partitions are revoked."""
    on_gap: Literal["record", "stop"] = "record"
    """What to do if retention deleted records before they were read: record a gap, or stop the partition."""
    on_bad_record: Literal["stop", "skip", "dlq"] = "stop"
    """What to do with a record that cannot be archived: stop, or record a gap (dlq also sends it to dlq_topic)."""
    dlq_topic: str | None = Field(None, min_length=1)
    """Topic for records that cannot be archived, with Kafka Connect's context headers; for on_bad_record dlq."""
    single_writer: bool = False
    """Use no conditional writes, and do not check for them. Only one process may write to the archive."""
    takeover: bool = False
    """Claim partitions even if another group archives them, or if another archive used this group."""
    topic_refresh: Seconds = Field(30, gt=0)
    """How often to look for new and deleted topics."""
    groups: OptionalPatterns = ("*",)
    """Consumer groups whose offsets are kept for each topic: names, globs or ~regex, or none."""
    groups_interval: Annotated[Seconds, Field(le=3600)] = 60
    """How often to request the offsets of consumer groups from the cluster."""
    ends_interval: OptionalEndsSeconds = 300
    """How often to store where a topic's partitions end if only that changed; none: every hour."""
    archive_retention: Patterns = ()
    """Prune records older than an age such as 90d, or TOPIC=90d; the first rule that matches a topic counts."""
    archive_retention_bytes: Patterns = ()
    """Prune the oldest records of each partition beyond a size of data such as 500GB, or TOPIC=500GB."""
    compact: OptionalPatterns = None
    """Topics whose small chunks are merged: names, globs or ~regex, or none."""
    compact_chunks: int = Field(512, ge=2)
    """Compact a partition once its catalogs hold this many small chunks."""
    maintenance_interval: Annotated[Seconds, Field(le=30 * 24 * 3600)] = 3600
    """How often archive_retention and compact are applied."""
    maintenance_rate: Size = 16 * 1024**2
    """Bytes that compact may read and write in a second, per process."""
    maintenance_buffer: Size = 1024**3
    """Disk budget for merged chunks, per process, in addition to buffer_bytes."""
    workers: int = Field(1, ge=1, le=256)
    """Number of processes that share the partitions. Each has its own --memory, and the next port for --http."""
    http: HostAndPort | None = None
    """HOST:PORT for metrics and health checks."""
    log_format: Literal["text", "json"] = "text"
    """Log lines on stderr: text, or one JSON object per line."""

    _masked: frozenset[str] = PrivateAttr(frozenset())

    @field_validator("archive")
    @classmethod
    def _check_archive(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("topics", "exclude", "compact", "groups", "archive_retention", "archive_retention_bytes")
    @classmethod
    def _check_patterns(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        try:
            match info.field_name:
                case "groups":
                    list(map(matcher, value or ()))
                case "archive_retention":
                    TopicRules(value or (), parse_age)
                case "archive_retention_bytes":
                    TopicRules(value or (), parse_bytes)
                case _:
                    TopicSelection(value or ())
        except UsageError as error:
            raise ValueError(f"{error.what}: {error.why}") from error
        return value

    @field_validator(*CHECKED)
    @classmethod
    def _check_s3(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            check_setting(str(info.field_name), value)
        return value

    @field_validator("encrypt")
    @classmethod
    def _check_keys(cls, value: str | None) -> str | None:
        if value is not None:
            parse_keys(value)
        return value

    @field_validator("dlq_topic")
    @classmethod
    def _check_topic(cls, value: str | None) -> str | None:
        return value if value is None else check_topic(value)

    @field_validator("kafka", mode="before")
    @classmethod
    def _check_kafka(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: _kafka_value(name, given) for name, given in value.items()}

    @model_validator(mode="after")
    def _check_together(self) -> "RunConfig":
        of_s3 = [(True, *conflict) for conflict in conflicts(self.model_dump(include=set(S3_FIELDS)))]
        for is_wrong, names, reason, remedy in (*of_s3, *_archive_rules(self), *_service_rules(self)):
            if is_wrong:
                context = {"reason": reason, "remedy": remedy, "fields": names}
                raise PydanticCustomError("together", "{reason}", context)
        return self

    @property
    def s3(self) -> S3Settings:
        return S3Settings(**self.model_dump(include=set(S3_FIELDS)))

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records that cannot be archived, if that is the policy."""
        return self.dlq_topic if self.on_bad_record == "dlq" else None

    @property
    def group(self) -> str:
        """The consumer group in force, once `of_archive` looked it up."""
        return self.group_id or FORMER_GROUP

    def of_archive(self, archive: ArchiveInfo) -> "RunConfig":
        """Return the configuration with the group that the archive names, unless one was chosen."""
        return self.model_copy(update={"group_id": archive.group(self.group_id)})

    @property
    def compression_library(self) -> str:
        """The compressor's name among COMPRESSORS."""
        return "zstd" if self.codec == "zstd" else self.gzip_library

    @property
    def compression_level(self) -> int:
        """The level in force: the library's best trade if none is given."""
        if self.codec == "zstd":
            return self.zstd_level
        if self.gzip_level is not None:
            return self.gzip_level
        return 1 if self.gzip_library == "isal" else 6

    def masking(self, fields: frozenset[str]) -> "RunConfig":
        """Return the configuration with the values of these fields masked when it is shown."""
        copy = self.model_copy()
        copy._masked = fields
        return copy

    def __repr_args__(self) -> Any:
        """See pydantic: masked fields show no value."""
        for name, value in super().__repr_args__():
            yield name, SecretStr("…") if name in self._masked else value


def _kafka_value(name: Any, value: Any) -> Any:
    if name in KAFKA_RESERVED:
        raise PydanticCustomError("kafka_reserved", "{reason}", {"reason": KAFKA_RESERVED[name], "setting": name})
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, int | float):
        value = str(value)
    return SecretStr(value) if isinstance(value, str) and is_secret(str(name), value) else value


# Whether fields cannot be combined, which, why, and the remedy.
_Rule = tuple[object, tuple[str, ...], str, str]


def _archive_rules(config: RunConfig) -> tuple[_Rule, ...]:
    """Return the rules about what the archive holds."""
    secret, in_seed = "customer_key" if config.customer_key else "sse", config.layout == "seed"
    is_local = isinstance(parse_address(config.archive), LocalAddress)
    return (
        (
            getattr(config, secret) and is_local,
            ("archive", secret),
            "it is S3 that encrypts, not a folder",
            f"leave {secret} out",
        ),
        (
            in_seed and config.record_format != "text",
            ("layout", "record_format"),
            "layout seed supports only record format text, because its readers know no other",
            "set record_format to text, or layout to topic",
        ),
        (
            in_seed and config.codec != "gzip",
            ("layout", "codec"),
            "layout seed supports only gzip, because its readers know no other",
            "set codec to gzip, or layout to topic",
        ),
        (
            in_seed and config.encrypt is not None,
            ("layout", "encrypt"),
            "layout seed is for readers that know no encryption",
            "set layout to topic, or leave encrypt out",
        ),
        (
            config.key_filter is not None and config.encrypt is not None,
            ("key_filter", "encrypt"),
            "key filters show to anyone without a key which record keys a block is likely to hold",
            "leave key_filter out",
        ),
        (
            config.gzip_library == "isal" and (config.gzip_level or 0) > 3,
            ("gzip_library", "gzip_level"),
            "ISA-L supports gzip levels 0 to 3",
            "set gzip_library to zlib for more",
        ),
    )


def _service_rules(config: RunConfig) -> tuple[_Rule, ...]:
    """Return the rules about dead letters and maintenance."""
    asked = next((name for name in MAINTENANCE if getattr(config, name)), "")
    dead_letters = config.dead_letter_topic
    is_archived = dead_letters and TopicSelection(config.topics, config.exclude)([dead_letters])
    return (
        (
            config.on_bad_record == "dlq" and config.dlq_topic is None,
            ("on_bad_record", "dlq_topic"),
            "there is no topic for records that cannot be archived",
            "set dlq_topic, or on_bad_record to skip",
        ),
        (
            is_archived,
            ("topics", "dlq_topic"),
            "the topic for records that cannot be archived would be archived itself",
            "name another topic, or exclude this one",
        ),
        (
            asked and config.layout == "seed",
            ("layout", asked),
            "archives in layout seed are not rewritten",
            f"set layout to topic, or leave {asked} out",
        ),
        (
            asked and config.single_writer,
            ("single_writer", asked),
            "without conditional writes, a rewrite and a commit can overwrite each other's marker",
            f"leave {asked} out, and stop the archiver before archiver prune and archiver compact",
        ),
    )
