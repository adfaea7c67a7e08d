"""The fields of the configuration described: what each takes, its names, a commented file, tables, a JSON Schema."""

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from blockgz.config.model import NONE, RunConfig, parse_none
from blockgz.errors import camel_case
from blockgz.store.address import REFERENCES, S3Settings
from blockgz.units import format_duration, format_size, parse_duration, parse_size

FIELDS = RunConfig.model_fields


# Names of fields on the command line that are not `--` and the field's name.
FLAGS = {"bootstrap_servers": "-b", "archive": "-a", "topics": "TOPIC", "kafka": "-X"}


# Options of the format `blockgz-archive`, and the field of each.
SPARK_NAMES = {"path": "archive"} | {
    camel_case(field): field
    for field in (
        *(each.name for each in fields(S3Settings)),
        *("layout", "record_format", "codec", "gzip_library", "gzip_level", "zstd_level", "block_bytes", "key_filter"),
        *("encrypt", "chunk_bytes", "chunk_records", "chunk_span", "isolation_level", "group_id", "takeover", "on_gap"),
        *("memory", "buffer_dir", "single_writer"),
    )
}
# Defaults that differ from a service's: a sink has a group of its own, Spark's Kafka source reads uncommitted records
# unless told otherwise, and several tasks share a machine.
SPARK_DEFAULTS = {"group_id": "blockgz-spark", "isolation_level": "read_uncommitted", "memory": "128MiB"}


class FieldKind(Enum):
    """The metavar on help pages and, in words, what is to be written."""

    SWITCH = ("", "true or false")
    CHOICE = ("", "one of the choices")
    SIZE = ("SIZE", "a size such as 64MiB")
    DURATION = ("DURATION", "a duration such as 90s or 5m")
    COUNT = ("NUMBER", "a whole number")
    FOLDER = ("FOLDER", "the path of a folder")
    PATTERNS = ("PATTERN", "names, globs or ~regex")
    PROPERTIES = ("NAME=VALUE", "librdkafka's name and a value")
    TEXT = ("TEXT", "a text")


_PLAIN = {
    bool: FieldKind.SWITCH,
    Path: FieldKind.FOLDER,
    int: FieldKind.COUNT,
    tuple: FieldKind.PATTERNS,
    dict: FieldKind.PROPERTIES,
    str: FieldKind.TEXT,
}
# Kinds whose values need an explanation in addition to the field's.
_TELLING = (FieldKind.CHOICE, FieldKind.SIZE, FieldKind.DURATION, FieldKind.COUNT)
_PARSED = {parse_size: FieldKind.SIZE, parse_duration: FieldKind.DURATION}


def field_kind(field: str) -> FieldKind:
    if field_choices(field):
        return FieldKind.CHOICE
    parts = list(_parts(field))
    for part in parts:
        if isinstance(part, BeforeValidator) and part.func in _PARSED:
            return _PARSED[part.func]
    return next(_PLAIN[part] for part in parts if part in _PLAIN)


def field_choices(field: str) -> tuple[str, ...]:
    """Return the values of an enumeration; empty for other fields."""
    annotation = FIELDS[field].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def meaning(field: str) -> str:
    """Return the field's description, and the values that it takes unless that is plain."""
    described = FIELDS[field].description or ""
    if field_kind(field) not in _TELLING:
        return described
    return f"{described} Takes {wanted(field)}."


def wanted(field: str) -> str:
    """Return in words what to write as a value."""
    if field in _EXAMPLES:
        return _EXAMPLES[field]
    choices = field_choices(field)
    words = f"one of {', '.join(choices)}" if choices else field_kind(field).value[1] + _bounds(field)
    return f"{words}, or {NONE}" if _may_be_none(field) else words


def _bounds(field: str) -> str:
    parts = list(_parts(field))
    least = [str(value_text(field, part.ge)) for part in parts if isinstance(part, Ge) and part.ge != 1]
    most = [str(value_text(field, part.le)) for part in parts if isinstance(part, Le)]
    return "".join([*(f", at least {bound}" for bound in least), *(f", at most {bound}" for bound in most)])


def value_text(field: str, value: Any) -> str:
    """Return a value of the field as it would be written; empty if there is none."""
    if value in (None, (), [], {}):
        return NONE if _may_be_none(field) else ""
    match field_kind(field):
        case FieldKind.SIZE:
            return format_size(value)
        case FieldKind.DURATION:
            return format_duration(value)
        case FieldKind.SWITCH:
            return str(value).lower()
        case FieldKind.PATTERNS:
            return " ".join(value)
        case _:
            return str(value)


def default_text(field: str) -> str:
    """Return the default as it would be written; empty if there is none."""
    info = FIELDS[field]
    return "" if info.is_required() else value_text(field, info.get_default(call_default_factory=True))


def _may_be_none(field: str) -> bool:
    """Return whether "none" switches a limit off."""
    return any(isinstance(part, BeforeValidator) and part.func is parse_none for part in _parts(field))


def _parts(field: str) -> Iterator[Any]:
    info = FIELDS[field]
    yield from info.metadata
    yield from _inside(info.annotation)


def _inside(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, FieldInfo):
        yield from annotation.metadata
    yield annotation
    origin = get_origin(annotation)
    if origin is not None:
        yield origin
        for argument in get_args(annotation):
            yield from _inside(argument)


_EXAMPLES = {
    "archive": "s3://bucket/prefix, file:///dir or ./dir",
    "bootstrap_servers": "HOST:PORT, several separated by commas",
    "archive_retention": "90d for every topic, TOPIC=90d for some, or none in the place of the age",
    "archive_retention_bytes": "500GB for every topic, TOPIC=500GB for some, or none in the place of the size",
    "http": "HOST:PORT, such as 127.0.0.1:9404",
    "encrypt": "file:/path, env:NAME or kms:ARN",
    "endpoint_url": "a URL such as http://localhost:9000",
    **dict.fromkeys(REFERENCES, "${file:/path} or ${env:NAME}"),
    "proxy_url": "a URL such as http://proxy:3128",
}


def option_name(field: str) -> str:
    """How the command line calls a field."""
    return FLAGS.get(field) or "--" + field.replace("_", "-")


def variable_name(field: str) -> str:
    special = {"bootstrap_servers": "BOOTSTRAP_SERVER", "kafka": "KAFKA_PROPERTIES"}
    return "BLOCKGZ_" + special.get(field, field.upper())


# Values for fields without a default that could be written, or whose default is not written so in YAML.
EXAMPLES = {
    "archive": "s3://backup/kafka",
    "bootstrap_servers": "localhost:9092",
    "topics": "[orders]",
    "exclude": "['test-*']",
    "kafka": "{security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, sasl.username: archiver, "
    "sasl.password: '${env:KAFKA_PASSWORD}'}",
    "group_id": "archive-of-orders",
    "group_instance_id": "archiver-1",
    "endpoint_url": "http://localhost:9000",
    "region": "eu-central-1",
    "profile": "backup",
    "proxy_url": "http://proxy:3128",
    "role_arn": "arn:aws:iam::123456789012:role/archiver",
    "external_id": "kafka-backup",
    "customer_key": "'${env:CUSTOMER_KEY}'",
    "access_key_id": "'${env:S3_KEY_ID}'",
    "secret_access_key": "'${env:S3_KEY_SECRET}'",
    "session_token": "'${env:S3_SESSION_TOKEN}'",
    "sse": "aws:kms",
    "kms_key_id": "alias/kafka-backup",
    "storage_class": "STANDARD_IA",
    "acl": "bucket-owner-full-control",
    "object_tags": "team=data,env=prod",
    "checksum_algorithm": "SHA256",
    "encrypt": "file:/etc/blockgz/keys",
    "gzip_level": "1",
    "buffer_dir": "/var/lib/blockgz/buffer",
    "dlq_topic": "orders-dead",
    "groups": "['*']",
    "archive_retention": "['audit-*=none', 90d]",
    "archive_retention_bytes": "['clicks-*=500GB']",
    "http": "127.0.0.1:9404",
}


def yaml_template() -> str:
    """Return a file with every field: the required ones to be filled in, the others commented out at their defaults."""
    lines = [
        "# The configuration of archiver and replayer: -C FILE, BLOCKGZ_CONFIG or ~/.config/blockgz/config.yaml.",
        "# Flags come before environment, environment before this file. Commands other than `archiver run` use the",
        "# archive and the settings of S3 and Kafka.",
        "# ${env:NAME} and ${file:/path} stand for values that do not belong here.",
    ]
    for field, info in FIELDS.items():
        lines += ["", f"# {meaning(field)}"]
        if info.is_required():
            lines.append(f"{field}: {EXAMPLES[field]}")
        elif default_text(field):
            lines.append(f"#{field}: {EXAMPLES.get(field, default_text(field))}")
        else:
            lines += ["# Not set by default. Example:", f"#{field}: {EXAMPLES[field]}"]
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a YAML or JSON file with our own names."""
    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "required": []}
