"""A chain of transforms, made of settings by Connect's names: `transforms=a,b`, `transforms.a.type=…` and so on."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockgz.errors import UsageError
from replayer.transforms.fields import (
    Cast,
    ExtractField,
    Flatten,
    HoistField,
    InsertField,
    MaskField,
    ReplaceField,
    SetSchemaMetadata,
    ValueToKey,
)
from replayer.transforms.metadata import (
    DropHeaders,
    Filter,
    HasHeaderKey,
    HeaderFrom,
    InsertHeader,
    Predicate,
    RecordIsTombstone,
    RegexRouter,
    TimestampRouter,
    TopicNameMatches,
)
from replayer.transforms.record import CannotTransform, ConnectRecord, Converter, JsonConverter, Side, StringConverter
from replayer.transforms.settings import Settings
from replayer.transforms.times import TimestampConverter

Transform = Callable[[ConnectRecord], ConnectRecord | None]
"""None: the record is dropped. Raises CannotTransform."""

PACKAGE = "org.apache.kafka.connect.transforms."
PREDICATE_PACKAGE = PACKAGE + "predicates."
CONVERTERS: Mapping[str, Callable[[], Converter]] = {
    "org.apache.kafka.connect.json.JsonConverter": JsonConverter,
    "org.apache.kafka.connect.storage.StringConverter": StringConverter,
}
SIDES: Mapping[str, Side] = {"Key": "key", "Value": "value"}
SIDED: Mapping[str, Callable[[Settings, Side], Transform]] = {
    "Cast": Cast.of,
    "ExtractField": ExtractField.of,
    "Flatten": Flatten.of,
    "HeaderFrom": HeaderFrom.of,
    "HoistField": HoistField.of,
    "InsertField": InsertField.of,
    "MaskField": MaskField.of,
    "ReplaceField": ReplaceField.of,
    "SetSchemaMetadata": SetSchemaMetadata.of,
    "TimestampConverter": TimestampConverter.of,
}
"""Transforms that exist for keys and for values."""
WHOLE: Mapping[str, Callable[[Settings], Transform]] = {
    "DropHeaders": DropHeaders.of,
    "Filter": lambda _settings: Filter(),
    "InsertHeader": InsertHeader.of,
    "RegexRouter": RegexRouter.of,
    "TimestampRouter": TimestampRouter.of,
    "ValueToKey": ValueToKey.of,
}
PREDICATES: Mapping[str, Callable[[Settings], Predicate]] = {
    "HasHeaderKey": HasHeaderKey.of,
    "RecordIsTombstone": lambda _settings: RecordIsTombstone(),
    "TopicNameMatches": TopicNameMatches.of,
}
MOST_NAMES = 20
"""Names of fields that an error lists."""
TYPES = (*(f"{name}${side}" for name in SIDED for side in SIDES), *WHOLE)


@dataclass(frozen=True)
class Step:
    """A transform by the name that it has in the settings, and the answer of its predicate for which it is applied."""

    alias: str
    transform: Transform
    predicate: Predicate | None = None
    applies_when: bool = True

    def applies_to(self, record: ConnectRecord) -> bool:
        """Return whether the predicate, if there is one, lets the transform see a record."""
        return self.predicate is None or self.predicate(record) is self.applies_when

    @property
    def named(self) -> tuple[Side | None, tuple[tuple[str, ...], ...], bool]:
        """The part whose fields the transform names (None: headers), their paths, and whether it needs all of them.

        A transform that hides fields needs all: one that is misspelt would stay. Paths are empty if it names none.
        """
        side: Side | None = getattr(self.transform, "side", None)
        names: Iterable[str] = ()
        needs_all = True
        match self.transform:
            case ExtractField(path=path):
                return side, (path,), True
            case MaskField(fields=names):
                pass
            case ReplaceField(exclude=exclude, include=include, renames=renames):
                names, needs_all = (*sorted(exclude), *sorted(include), *renames), not include and not renames
            case Cast(fields=names):
                needs_all = False
            case TimestampConverter(field=str() as name):
                names = (name,)
            case HeaderFrom(pairs=pairs):
                names, needs_all = [name for name, _ in pairs], False
            case ValueToKey(fields=names):
                side = "value"
            case DropHeaders(names=headers):
                names = sorted(headers)
        return side, tuple((name,) for name in names), needs_all

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None:
        """Return the changed record, None if it is dropped; raises CannotTransform, naming the transform."""
        if not self.applies_to(record):
            return record
        try:
            return self.transform(record)
        except CannotTransform as error:
            raise CannotTransform(f"transform {self.alias} ({type(self.transform).__name__}): {error}") from error
        except RecursionError as error:
            raise CannotTransform(f"transform {self.alias}: it is nested too deeply") from error


@dataclass(frozen=True)
class Chain:
    """All transforms, and how keys and values are read and written. `fingerprint` holds every setting."""

    steps: tuple[Step, ...]
    key_converter: Converter
    value_converter: Converter
    fingerprint: str

    @property
    def routes(self) -> bool:
        """True if it may give a record another topic."""
        return any(isinstance(step.transform, RegexRouter | TimestampRouter) for step in self.steps)

    def routed_name(self, topic: str) -> str | None:
        """The topic of all records of `topic`; None if nothing routes, or where records decide about it."""
        if not self.routes:
            return None
        for step in self.steps:
            if isinstance(step.transform, TimestampRouter):
                return None
            if isinstance(step.transform, RegexRouter):
                if isinstance(step.predicate, TopicNameMatches):
                    if step.predicate.matches(topic) is not step.applies_when:
                        continue
                elif step.predicate is not None:
                    return None
                topic = step.transform.renamed(topic)
        return topic

    def __call__(self, record: ConnectRecord, changed: dict[str, int] | None = None) -> ConnectRecord | None:
        """Return the changed record, None if it is dropped; count in `changed` by step the records that it changed."""
        for step in self.steps:
            result = step(record)
            if changed is not None and (result is None or differs(record, result)):
                changed[step.alias] = changed.get(step.alias, 0) + 1
            if result is None:
                return None
            record = result
        return record


@dataclass
class Effect:
    """The effect of a step on some records: how many reached it, how many its predicate passed, which names it met."""

    step: Step
    reached: int = 0
    applied: int = 0
    found: set[tuple[str, ...]] = field(default_factory=set)
    present: dict[str, None] = field(default_factory=dict)
    """Names of fields, or of headers, that the records have, in order."""

    def see(self, record: ConnectRecord) -> None:
        """Note a record in front of the step; raises CannotTransform for one that cannot be decoded."""
        self.reached += 1
        if not self.step.applies_to(record):
            return
        self.applied += 1
        side, paths, _ = self.step.named
        if not paths:
            return
        data: Any = dict(record.headers) if side is None else record.part(side).data
        if isinstance(data, dict):
            self.present.update(dict.fromkeys(data))
            self.found.update(path for path in paths if _holds(data, path))

    @property
    def missing(self) -> str | None:
        """Return why the step has no effect on these records; None if it has one."""
        kind = type(self.step.transform).__name__
        if not self.applied and (self.step.predicate is not None or not self.reached):
            return "its predicate matches none of them" if self.reached else "no record reaches it"
        side, paths, needs_all = self.step.named
        lacking = [".".join(path) for path in paths if path not in self.found]
        if not lacking or (self.found and not needs_all):
            return None
        what, of = ("header", "they") if side is None else ("field", f"their {side}s")
        names = ", ".join(list(self.present)[:MOST_NAMES]) or "none"
        return f"{kind} names {what} {', '.join(lacking)}, which none of them has; {of} have: {names}"


def differs(before: ConnectRecord, after: ConnectRecord) -> bool:
    """Return whether a step changed a record; a missing field that became null is not a change."""
    if after is before:
        return False
    if (before.topic, before.headers) != (after.topic, after.headers):
        return True
    pairs = (before.key, after.key), (before.value, after.value)
    try:
        return any(old is not new and not _same(old.data, new.data) for old, new in pairs)
    except CannotTransform:  # a part that no transform had to decode was replaced
        return True


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_same(old.get(name), new.get(name)) for name in {**old, **new})
    return type(old) is type(new) and bool(old == new)


def _holds(data: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    return True


def build_chain(properties: Mapping[str, str]) -> Chain:
    """Build the chain of these settings; raises UsageError for what is missing, unknown or malformed.

    Keys that belong to other parts of a connector's configuration are left alone.
    """
    mine = {
        name: value
        for name, value in properties.items()
        if name.partition(".")[0] in ("transforms", "predicates") or name.startswith(("key.conv", "value.conv"))
    }
    aliases = _aliases(mine, "transforms")
    if not aliases:
        raise UsageError("no transform is named", why="transforms is missing or empty", remedy="add transforms=a,b")
    predicates = {alias: _predicate(mine, alias) for alias in _aliases(mine, "predicates")}
    steps = tuple(_step(mine, alias, predicates) for alias in aliases)
    key, value = _converter(mine, "key"), _converter(mine, "value")
    return Chain(steps, key, value, "transforms " + json.dumps(mine, sort_keys=True))


def _aliases(properties: Mapping[str, str], kind: str) -> tuple[str, ...]:
    aliases = Settings("", properties).items(kind)
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise UsageError(f"{kind} names {alias} twice", why="each name must be unique", remedy="name each once")
    for name in properties:
        if name.startswith(f"{kind}.") and not any(name.startswith(f"{kind}.{alias}.") for alias in aliases):
            raise UsageError(
                f"{name} belongs to no transform or predicate",
                why=f"{kind}={','.join(aliases)} does not name it",
                remedy=f"add it to {kind}, or remove it",
            )
    return aliases


def _step(properties: Mapping[str, str], alias: str, predicates: Mapping[str, Predicate]) -> Step:
    prefix = f"transforms.{alias}."
    settings = Settings(prefix, properties)
    predicate, applies_when = _condition(settings, predicates)
    name = settings.text("type").removeprefix(PACKAGE)
    base, _, side = name.partition("$")
    transform: Transform
    if base in SIDED and side in SIDES:
        transform = SIDED[base](settings, SIDES[side])
    elif name in WHOLE:
        transform = WHOLE[name](settings)
    else:
        remedy = f"write {base}$Key or {base}$Value" if base in SIDED else _suggestion(base, (*SIDED, *WHOLE))
        raise UsageError(
            f"{prefix}type={name[:80]} is not a transform", why=f"the transforms are {', '.join(TYPES)}", remedy=remedy
        )
    settings.finish()
    return Step(alias, transform, predicate, applies_when)


def _condition(settings: Settings, predicates: Mapping[str, Predicate]) -> tuple[Predicate | None, bool]:
    name, negate = settings.optional("predicate"), settings.flag("negate")
    if name is None:
        if settings.optional("negate") is not None:
            raise settings.wrong("negate", "no predicate is named, and negate needs one")
        return None, True
    if name not in predicates:
        raise settings.wrong("predicate", f"predicates={','.join(predicates)} does not name it")
    return predicates[name], not negate


def _predicate(properties: Mapping[str, str], alias: str) -> Predicate:
    prefix = f"predicates.{alias}."
    settings = Settings(prefix, properties)
    name = settings.text("type").removeprefix(PREDICATE_PACKAGE)
    if name not in PREDICATES:
        raise UsageError(
            f"{prefix}type={name[:80]} is not a predicate",
            why=f"the predicates are {', '.join(PREDICATES)}",
            remedy=_suggestion(name, tuple(PREDICATES)),
        )
    predicate = PREDICATES[name](settings)
    settings.finish()
    return predicate


def _converter(properties: Mapping[str, str], part: str) -> Converter:
    """Return the converter of keys or values; JSON by default."""
    prefix = f"{part}.converter"
    name = properties.get(prefix, next(iter(CONVERTERS)))
    make = CONVERTERS.get(name) or {full.rpartition(".")[2]: each for full, each in CONVERTERS.items()}.get(name)
    if make is None:
        raise UsageError(
            f"{prefix}={name[:80]} is not known here",
            why=f"the converters are {', '.join(CONVERTERS)}",
            remedy="choose one of them, or omit it for JSON",
        )
    settings = Settings(f"{prefix}.", properties)
    if settings.flag("schemas.enable"):
        raise settings.wrong("schemas.enable", "keys and values are read as JSON without a schema")
    settings.finish()
    return make()


def _suggestion(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.6)
    return f"did you mean {near[0]}?" if near else "name one of them"
