"""A configuration file: its keys as settings of ours, in any syntax, with Connect's names too, and their places.

Kafka Connect's S3 sinks have names for many of them: the same here, nearly the same, or nothing. Names and meanings:
kafka-connect-s3 (the ancestor), Confluent's S3 sink, and Connect itself.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from blockgz.config.model import KAFKA_RESERVED, RunConfig
from blockgz.documents import DocumentEntry, DocumentValue, parse_document
from blockgz.errors import UsageError

# Settings are keyed by field, and librdkafka's by this prefix and their own name.
KAFKA_PREFIX = "kafka."


class OriginKind(Enum):
    """In rising order of precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "env"
    FLAG = "flag"
    OPTION = "option"
    """An option of a Spark format, which has no other origins."""


@dataclass(frozen=True)
class Origin:
    """`place`: a flag, an environment variable or `file:line`; `alias`: the name there, if it is not the field's."""

    kind: OriginKind
    place: str = ""
    alias: str | None = None

    def __str__(self) -> str:
        alias = f" ({self.alias})" if self.alias else ""
        return f"{self.kind.value} {self.place}{alias}".rstrip()


DEFAULT = Origin(OriginKind.DEFAULT)


@dataclass(frozen=True)
class Setting:
    """A value as it was written, and where."""

    value: Any
    origin: Origin


# Settings by field name, or by `kafka.` and librdkafka's name.
Settings = dict[str, Setting]


@dataclass(frozen=True)
class Alias:
    """Another name of a field. `convert` gives the field's text, None to leave it alone, or raises ValueError.

    `note` says what differs, and is empty if nothing does.
    """

    field: str
    convert: Callable[[str], str | None] = str
    note: str = ""


def _or_none(text: str) -> str | None:
    return text or None


def _milliseconds(text: str) -> str | None:
    """-1 switches the limit off."""
    if not text.removeprefix("-").isdecimal():
        raise ValueError("it must be a whole number of milliseconds")
    return None if text.startswith("-") else f"{text}ms"


def _bad_records(tolerance: str) -> str:
    policies = {"none": "stop", "all": "skip"}
    if tolerance not in policies:
        raise ValueError("it must be none or all")
    return policies[tolerance]


ALIASES: Mapping[str, Alias] = {
    "bootstrap.servers": Alias("bootstrap_servers"),
    "topics.regex": Alias(
        "topics", lambda text: f"~{text}", "the expression uses Python syntax, which is nearly Java's"
    ),
    "s3.region": Alias("region"),
    "s3.endpoint": Alias("endpoint_url"),
    "store.url": Alias("endpoint_url"),
    "s3.proxy.url": Alias("proxy_url", _or_none),
    "s3.credentials.provider.sts.role.arn": Alias("role_arn"),
    "s3.credentials.provider.sts.role.external.id": Alias("external_id"),
    "aws.sts.role.arn": Alias("role_arn"),
    "aws.sts.role.external.id": Alias("external_id"),
    "s3.ssea.name": Alias("sse", _or_none),
    "s3.sse.kms.key.id": Alias("kms_key_id", _or_none),
    "s3.sse.customer.key": Alias("customer_key", _or_none),
    "s3.acl.canned": Alias("acl", _or_none),
    "s3.object.tagging.key.value.pairs": Alias("object_tags", lambda text: text.replace(":", "=") or None),
    "local.buffer.dir": Alias("buffer_dir"),
    "compressed_block_size": Alias("block_bytes"),
    "flush.size": Alias("chunk_records"),
    "rotate.interval.ms": Alias("chunk_span", _milliseconds),
    "rotate.schedule.interval.ms": Alias(
        "chunk_interval",
        _milliseconds,
        "chunks close at this age, not at multiples of it on the wall clock; -1 keeps chunk_interval's default",
    ),
    "tasks.max": Alias("workers"),
    "errors.tolerance": Alias(
        "on_bad_record",
        _bad_records,
        "none is stop, all is skip, or dlq with errors.deadletterqueue.topic.name; it is about records that cannot be "
        "archived",
    ),
    "errors.deadletterqueue.topic.name": Alias("dlq_topic", _or_none),
}
BUCKETS = ("s3.bucket", "s3.bucket.name")
# A bucket and a prefix make `archive`.
PREFIXES = ("s3.prefix", "topics.dir")

# Settings without an equal that change nothing about what is archived: left out, with this note.
NOT_USED: Mapping[str, str] = {
    "name": "group_id names the consumer group",
    "connector.class": "the archiver is not a connector; for kafka-connect-s3's object names set layout to seed",
    "s3.path_style": "with an endpoint, path style is always used; without one, AWS's own style",
    "s3.part.size": "uploads go in parts of 16 MiB",
    "s3.part.retries": "the archiver retries as long as it owns the partition",
    "s3.object.tagging": "the index has offsets and counts; for tags of your own set object_tags",
    "s3.object.behavior.on.tagging.error": "tags are stored with the object, or it is not stored",
    "s3.wan.mode": "accelerated endpoints are not used",
    "s3.send.digest": "set checksum_algorithm",
    "s3.retry.backoff.ms": "pauses between requests double, up to some seconds",
    "s3.http.send.expect.continue": "the AWS library decides",
    "storage.class": "the archive's address determines the store",
    "key.converter": "keys are archived byte for byte",
    "key.converter.schemas.enable": "keys are archived byte for byte",
    "value.converter": "values are archived byte for byte",
    "value.converter.schemas.enable": "values are archived byte for byte",
    "header.converter": "headers are archived byte for byte",
    "schema.compatibility": "values are archived byte for byte",
    "behavior.on.null.values": "null values are archived as null",
    "store.kafka.keys": "keys are always archived",
    "store.kafka.headers": "headers are always archived",
    "errors.deadletterqueue.topic.replication.factor": "the topic must exist",
    "errors.deadletterqueue.context.headers.enable": "the context headers are always written",
    "s3.compression.type": "chunks are always compressed; set codec",
}

# Settings without an equal that would change what is archived: an error with this reason.
REFUSED: Mapping[str, str] = {
    "format.class": "the archive is lossless JSON lines or text; set record_format, and convert with Spark",
    "partitioner.class": "the archive is laid out by topic and partition; set layout, and partition with Spark",
    "transforms": "the archive keeps records unchanged; transform on replay",
    "predicates": "the archive keeps records unchanged; transform on replay",
    "aws.access.key.id": "credentials come from AWS's own chain; or set access_key_id to a reference",
    "aws.secret.access.key": "credentials come from AWS's own chain; or set secret_access_key to a reference",
    "s3.credentials.provider.class": "credentials come from AWS's own chain: environment, profile, or role_arn",
    "s3.proxy.user": "write it into proxy_url: http://USER:PASSWORD@HOST:PORT",
    "s3.proxy.password": "write it into proxy_url: http://USER:${env:PROXY_PASSWORD}@HOST:PORT",
}

REFUSED_PREFIXES: Mapping[str, str] = {
    "consumer.override.": "librdkafka's settings differ from Java's; write kafka. and librdkafka's name",
    "transforms.": REFUSED["transforms"],
    "predicates.": REFUSED["predicates"],
}


def refusal(key: str) -> str | None:
    """Return why a setting of Connect's cannot be taken over, or None if nothing is known against it."""
    if key in REFUSED:
        return REFUSED[key]
    return next((reason for prefix, reason in REFUSED_PREFIXES.items() if key.startswith(prefix)), None)


FIELDS = tuple(RunConfig.model_fields)
MAX_BYTES = 1024**2
# How names of librdkafka's begin that people write without `kafka`.
_LIBRDKAFKA = ("sasl.", "ssl.", "security.", "socket.", "fetch.", "session.", "client.", "broker.", "queued.", "debug")


def read_config_file(path: Path) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of a file, and notes for its reader.

    Raises UsageError for a file that cannot be read, is malformed, or holds a key that is not known.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"the configuration {path} cannot be read", why=error.strerror or str(error), remedy="check -C"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the configuration {path} is not UTF-8 text", why=str(error), remedy="save it as UTF-8"
        ) from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"the configuration {path} is larger than 1 MiB", remedy="check -C")
    return settings_of(parse_document(str(path), text))


def settings_of(entries: list[DocumentEntry]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings that a file's entries mean, and notes for its reader; raises UsageError."""
    reader = _SettingsReader()
    for entry in entries:
        reader.take(entry)
    reader.finish()
    return reader.settings, tuple(reader.notes)


class _SettingsReader:
    def __init__(self) -> None:
        self.settings: Settings = {}
        self.notes: list[str] = []
        self._address: dict[str, DocumentEntry] = {}

    def take(self, entry: DocumentEntry) -> None:
        field = entry.key.replace("-", "_")
        if entry.key.startswith(KAFKA_PREFIX):
            if entry.key == KAFKA_PREFIX:
                raise _unknown(entry)
            self._set(entry.key, _text(entry), entry)
        elif entry.key == "kafka" and not entry.value:
            return
        elif field in FIELDS and field != "kafka":
            self._set(field, entry.value, entry)
        elif entry.key in ALIASES:
            self._take_alias(entry)
        elif entry.key in BUCKETS or entry.key in PREFIXES:
            self._take_address(entry)
        elif entry.key in NOT_USED:
            self.notes.append(f"{entry.place}: {entry.key} is not used: {NOT_USED[entry.key]}")
        else:
            raise _unknown(entry)

    def finish(self) -> None:
        """Put together what Connect sets by two names."""
        policy, dlq = self.settings.get("on_bad_record"), self.settings.get("dlq_topic")
        if policy and dlq and policy.origin.alias and policy.value == "skip":
            self.settings["on_bad_record"] = Setting("dlq", policy.origin)
        bucket, prefix = self._address.get("bucket"), self._address.get("prefix")
        if bucket is not None:
            path = _text(prefix).strip("/") if prefix else ""
            self._set("archive", f"s3://{_text(bucket)}/{path}".removesuffix("/"), bucket, alias=bucket.key)
        elif prefix is not None:
            raise UsageError(
                f"{prefix.place}: {prefix.key} is set without s3.bucket",
                why="it is a prefix in a bucket, and no bucket is named",
                remedy="add s3.bucket, or set archive to s3://bucket/prefix",
            )

    def _take_alias(self, entry: DocumentEntry) -> None:
        alias, text = ALIASES[entry.key], _text(entry)
        try:
            value = alias.convert(text)
        except ValueError as error:
            raise UsageError(
                f"{entry.place}: {entry.key} cannot be {text!r}", why=str(error), remedy=f"correct it in {entry.place}"
            ) from error
        if alias.note:
            self.notes.append(f"{entry.place}: {entry.key} is taken as {alias.field}: {alias.note}")
        if value is not None:
            self._set(alias.field, value, entry, alias=entry.key)

    def _take_address(self, entry: DocumentEntry) -> None:
        part = "bucket" if entry.key in BUCKETS else "prefix"
        if part in self._address:
            raise _twice(entry, self._address[part].key, self._address[part].place)
        self._address[part] = entry

    def _set(self, key: str, value: DocumentValue, entry: DocumentEntry, alias: str | None = None) -> None:
        known = self.settings.get(key)
        if known is not None:
            raise _twice(entry, known.origin.alias or key, known.origin.place)
        self.settings[key] = Setting(value, Origin(OriginKind.FILE, entry.place, alias))


def _text(entry: DocumentEntry) -> str:
    if not isinstance(entry.value, str):
        raise UsageError(
            f"{entry.place}: {entry.key} has no value" if not entry.value else f"{entry.place}: {entry.key} is a list",
            why="it takes a single value",
            remedy=f"write the value after the name in {entry.place}, or remove the name",
        )
    return entry.value


def _twice(entry: DocumentEntry, other: str, place: str) -> UsageError:
    return UsageError(
        f"{entry.place}: {entry.key} and {other} set the same thing",
        why=f"{other} is set in {place}",
        remedy="keep one of them",
    )


def _unknown(entry: DocumentEntry) -> UsageError:
    reason = refusal(entry.key) or KAFKA_RESERVED.get(entry.key)
    if reason is not None:
        return UsageError(f"{entry.place}: {entry.key} cannot be set", why=reason, remedy="remove it")
    near = _nearest(entry.key)
    remedy = f"did you mean {near}?" if near else "archiver config init lists the fields; librdkafka's go under kafka"
    return UsageError(
        f"{entry.place}: {entry.key} is not a setting",
        why="the archiver has no such field and knows no such Connect setting",
        remedy=remedy,
    )


def _nearest(key: str) -> str | None:
    if key.startswith(_LIBRDKAFKA):
        return KAFKA_PREFIX + key
    if (last := _plain(key.rpartition(".")[2])) in FIELDS:
        return last
    candidates = {_plain(name): name for name in [*ALIASES, *BUCKETS, *PREFIXES, *NOT_USED, *FIELDS]}
    found = difflib.get_close_matches(_plain(key), candidates, 1, 0.6)
    return candidates[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lower().replace(".", "_").replace("-", "_")
