"""A configuration file: its keys as settings of ours, whichever names and syntax it uses."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from blockgz.config.connect_names import ALIASES, BUCKETS, NOT_USED, PREFIXES, refusal
from blockgz.config.model import KAFKA_RESERVED, RunConfig
from blockgz.config.origins import KAFKA_PREFIX, Origin, OriginKind, Setting, Settings
from blockgz.documents import DocumentEntry, DocumentValue, parse_document
from blockgz.errors import UsageError

FIELDS = tuple(RunConfig.model_fields)
MAX_BYTES = 1024**2
_LIBRDKAFKA = ("sasl.", "ssl.", "security.", "socket.", "fetch.", "session.", "client.", "broker.", "queued.", "debug")
"""How names of librdkafka's begin that people write without `kafka`."""


@dataclass(frozen=True)
class ConfigFile:
    """What a file says, and what its reader should know about it."""

    settings: Settings
    notes: tuple[str, ...]


def read_config_file(path: Path) -> ConfigFile:
    """Raises UsageError for a file that cannot be read, is malformed, or holds a key that is not known."""
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


def settings_of(entries: list[DocumentEntry]) -> ConfigFile:
    """The meaning of a file's entries; raises UsageError as `read_config_file` does."""
    reader = _SettingsReader()
    for entry in entries:
        reader.take(entry)
    reader.finish()
    return ConfigFile(reader.settings, tuple(reader.notes))


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
    candidates = {_plain(name): name for name in [*ALIASES, *BUCKETS, *PREFIXES, *NOT_USED, *FIELDS]}
    found = difflib.get_close_matches(_plain(key), candidates, 1, 0.6)
    return candidates[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lower().replace(".", "_").replace("-", "_")
