"""Layers of settings put together, checked, and turned into the model; errors name field, value, place and remedy."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from blockgz.config.files import DEFAULT, KAFKA_PREFIX, Origin, OriginKind, Setting, Settings, read_config_file
from blockgz.config.kinds import FIELDS, option_name, variable_name, wanted
from blockgz.config.model import KAFKA_RESERVED, RunConfig
from blockgz.errors import MASK, BlockgzError, UnresolvedReference, UsageError, joined, masked_urls
from blockgz.kafka.secrets import is_secret, refuse_code
from blockgz.references import check_references, has_reference, naming, resolve_references
from blockgz.store.address import REFERENCES


@dataclass(frozen=True)
class Resolved:
    """The configuration in force, and where each value of it came from; what is masked is never shown."""

    config: RunConfig
    origins: Mapping[str, Origin]
    masked: frozenset[str]

    def shown(self) -> dict[str, tuple[Any, Origin]]:
        """Every value with its origin, by field and by `kafka.` and librdkafka's name; secrets masked."""
        rows: dict[str, tuple[Any, Origin]] = {}
        for name, value in self.config.model_dump(mode="json").items():
            if name == "kafka":
                continue
            rows[name] = (MASK if name in self.masked else value, self.origins.get(name, DEFAULT))
        for name, value in self.config.kafka.items():
            key = KAFKA_PREFIX + name
            rows[key] = (MASK if isinstance(value, SecretStr) else value, self.origins.get(key, DEFAULT))
        return rows

    def check_secrets(self, environ: Mapping[str, str]) -> None:
        """Raise UnresolvedReference for a secret of librdkafka's or S3's that is not on this machine."""
        for name in REFERENCES:
            if (reference := getattr(self.config, name)) is not None:
                looked_up(name, Setting(reference, self.origins.get(name, DEFAULT)), environ)
        for name, value in self.config.kafka.items():
            if isinstance(value, SecretStr):
                key = KAFKA_PREFIX + name
                looked_up(key, Setting(value.get_secret_value(), self.origins.get(key, DEFAULT)), environ)

    def named(self, key: str) -> str:
        """How the user knows a setting: the flag, or the place and the name there."""
        return _named(key, self.origins.get(key, DEFAULT))


def resolve(*layers: Settings, environ: Mapping[str, str]) -> Resolved:
    """Return the configuration that the layers make, later ones before earlier ones; librdkafka's settings are merged.

    References in librdkafka's settings, and those to secrets of S3, are checked for their form and looked up where a
    client is made; those in other fields are looked up here. Raises UsageError.
    """
    settings: Settings = reduce(or_, layers, {})
    masked = frozenset(name for name, setting in settings.items() if _is_masked(name, setting.value))
    values: dict[str, Any] = {"kafka": {}}
    for name, setting in settings.items():
        if name.startswith(KAFKA_PREFIX):
            if setting.origin.kind is not OriginKind.FLAG:
                refuse_code(name.removeprefix(KAFKA_PREFIX), setting.value, _named(name, setting.origin))
            values["kafka"][name.removeprefix(KAFKA_PREFIX)] = looked_up(name, setting, None)
        else:
            values[name] = looked_up(name, setting, None if name in REFERENCES else environ)
    try:
        config = RunConfig(**values)
    except ValidationError as error:
        absent = [str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"]
        failure = _missing(absent) if absent else _failure(error.errors()[0], settings, masked)
        raise failure from (None if masked else error)
    origins = {name: setting.origin for name, setting in settings.items()}
    return Resolved(config.masking(masked), origins, masked)


def _is_masked(name: str, value: Any) -> bool:
    texts = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, str)]
    if name.startswith(KAFKA_PREFIX):
        return any(is_secret(name.removeprefix(KAFKA_PREFIX), text) for text in texts)
    return name in REFERENCES or any(has_reference(text) or masked_urls(text) != text for text in texts)


def looked_up(name: str, setting: Setting, environ: Mapping[str, str] | None) -> Any:
    """Return the value with its references replaced, or with `environ` None only checked.

    Raises UsageError for a malformed reference, UnresolvedReference for one that leads nowhere.
    """
    if isinstance(setting.value, tuple):
        return tuple(looked_up(name, Setting(item, setting.origin), environ) for item in setting.value)
    if not isinstance(setting.value, str):
        return setting.value
    with naming(_named(name, setting.origin), remedy=_correct(setting.origin)):
        if environ is not None:
            return resolve_references(setting.value, environ)
        check_references(setting.value)
    return setting.value


def text_of(name: str, setting: Setting, environ: Mapping[str, str]) -> str | None:
    """Return the text of a setting that takes one, its references replaced; those to secrets of S3 stay."""
    value = looked_up(name, setting, None if name in REFERENCES else environ)
    if value is not None and not isinstance(value, str):
        raise UsageError(
            f"{_named(name, setting.origin)} is a list", why="it takes one text", remedy=_correct(setting.origin)
        )
    return value


def check_kafka(settings: Settings) -> dict[str, str]:
    """Return the settings of librdkafka's in a file, by their names, as they are written.

    Raises UsageError for one that nobody may set, that loads code, or whose reference is malformed.
    """
    found = {}
    for key, setting in settings.items():
        if key.startswith(KAFKA_PREFIX):
            name = key.removeprefix(KAFKA_PREFIX)
            if name in KAFKA_RESERVED:
                raise _reserved(key, setting.origin, KAFKA_RESERVED[name])
            refuse_code(name, setting.value, _named(key, setting.origin))
            found[name] = looked_up(key, setting, None)
    return found


def _reserved(key: str, origin: Origin, reason: str) -> UsageError:
    return UsageError(f"{_named(key, origin)} may not be set", why=reason, remedy="remove it")


def _failure(error: ErrorDetails, settings: Settings, masked: frozenset[str]) -> UsageError:
    context = error.get("ctx", {})
    if error["type"] == "together":
        return _conflict(context, settings, masked)
    field = str(error["loc"][0])
    key = KAFKA_PREFIX + str(context["setting"]) if error["type"] == "kafka_reserved" else field
    if field == "kafka" and len(error["loc"]) > 1:
        key = KAFKA_PREFIX + str(error["loc"][1])
    setting = settings.get(key, Setting(error["input"], DEFAULT))
    if error["type"] == "kafka_reserved":
        return _reserved(key, setting.origin, str(context["reason"]))
    cause = context.get("error")
    reason = str(cause) if cause is not None else error["msg"]
    remedy = f"write {wanted(field)}; {_correct(setting.origin)}"
    if isinstance(cause, BlockgzError):
        reason, remedy = cause.why or cause.what, cause.remedy or remedy
    if key in masked:
        shown = MASK
        if has_reference(str(setting.value)):
            reason = f"the value that it refers to is not {wanted(field)}"
    else:
        shown = repr(setting.value if not isinstance(setting.value, tuple) else " ".join(map(str, setting.value)))
    return UsageError(f"{_named(key, setting.origin)} cannot be {shown}", why=reason, remedy=remedy)


def _conflict(context: Mapping[str, Any], settings: Settings, masked: frozenset[str]) -> UsageError:
    parts = []
    for field in context["fields"]:
        setting = settings.get(field, Setting(FIELDS[field].default, DEFAULT))
        value = MASK if field in masked else setting.value
        place = setting.origin.place or setting.origin.kind.value
        parts.append(f"{field} {value} ({place})")
    return UsageError(
        f"{' and '.join(parts)} cannot be combined", why=str(context["reason"]), remedy=str(context["remedy"])
    )


def _missing(absent: list[str]) -> UsageError:
    meanings = "; ".join((FIELDS[field].description or "").rstrip(".") for field in absent)
    return UsageError(
        f"{joined(absent)} {'is' if len(absent) == 1 else 'are'} not set",
        why=f"{'it has' if len(absent) == 1 else 'they have'} no default: {meanings}",
        remedy=f"add {joined([option_name(field) for field in absent])}, set "
        f"{joined([variable_name(field) for field in absent])}, or put "
        f"{joined(absent)} in the file of -C",
    )


def _named(key: str, origin: Origin) -> str:
    name = origin.alias or key
    match origin.kind:
        case OriginKind.FLAG:
            return origin.place if not key.startswith(KAFKA_PREFIX) else f"-X {key.removeprefix(KAFKA_PREFIX)}"
        case OriginKind.DEFAULT:
            return name
        case _:
            return f"{origin.place}: {name}"


def _correct(origin: Origin) -> str:
    if origin.kind is OriginKind.FLAG:
        return "see archiver run --help"
    return f"correct it in {origin.place}" if origin.place else "see archiver config schema"


# For required fields that a file leaves to flags and environment, so that the rest can be checked.
STAND_INS: Mapping[str, str] = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": "orders"}


def check_config_file(path: Path, environ: Mapping[str, str]) -> tuple[Resolved, tuple[str, ...]]:
    """Return the configuration of a file, with stand-ins for required fields that it lacks, and notes for its reader.

    Raises UsageError for what would keep any run from starting with this file.
    """
    given, noted = read_config_file(path)
    settings: Settings = {}
    notes = list(noted)
    for name, setting in given.items():
        try:
            looked_up(name, setting, environ)
        except UnresolvedReference as error:
            notes.append(error.what)
            if name in FIELDS:
                continue
        settings[name] = setting
    for field, value in STAND_INS.items():
        if field not in settings:
            settings[field] = Setting(value, DEFAULT)
        if field not in given:
            notes.append(f"{path} leaves {field} to {option_name(field)} or the environment")
    return resolve(settings, environ=environ), tuple(notes)
