"""What a field of the configuration takes: read off the model, for help pages, docs and remedies."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from blockgz.config.model import NONE, RunConfig, parse_none
from blockgz.store.s3_settings import REFERENCES
from blockgz.units import format_duration, format_size, parse_duration, parse_size

FIELDS = RunConfig.model_fields


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
_TELLING = (FieldKind.CHOICE, FieldKind.SIZE, FieldKind.DURATION, FieldKind.COUNT)
"""Kinds whose values want an explanation beside the field's."""
_PARSED = {parse_size: FieldKind.SIZE, parse_duration: FieldKind.DURATION}


def field_kind(field: str) -> FieldKind:
    """What the field takes."""
    if field_choices(field):
        return FieldKind.CHOICE
    parts = list(_parts(field))
    for part in parts:
        if isinstance(part, BeforeValidator) and part.func in _PARSED:
            return _PARSED[part.func]
    return next(_PLAIN[part] for part in parts if part in _PLAIN)


def field_choices(field: str) -> tuple[str, ...]:
    """The values of an enumeration; empty for other fields."""
    annotation = FIELDS[field].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def meaning(field: str) -> str:
    """What the field is, and what it takes where that is not plain."""
    described = FIELDS[field].description or ""
    if field_kind(field) not in _TELLING:
        return described
    return f"{described} Takes {wanted(field)}."


def wanted(field: str) -> str:
    """What is to be written, in words."""
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
    """A value of the field as it would be written; empty where there is none."""
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
    """The default as it would be written; empty where there is none."""
    info = FIELDS[field]
    return "" if info.is_required() else value_text(field, info.get_default(call_default_factory=True))


def _may_be_none(field: str) -> bool:
    """Whether "none" switches a limit off."""
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
