"""A chain of transforms, made of settings by Connect's names: `transforms=a,b`, `transforms.a.type=…` and so on."""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockgz.errors import UsageError
from replayer.transforms import fields, metadata
from replayer.transforms.metadata import Predicate
from replayer.transforms.record import (
    CannotTransform,
    ConnectRecord,
    Converter,
    JsonConverter,
    Side,
    StringConverter,
    Transform,
)
from replayer.transforms.settings import Settings
from replayer.transforms.times import convert_timestamp

PACKAGE = "org.apache.kafka.connect.transforms."
PREDICATE_PACKAGE = PACKAGE + "predicates."
CONVERTERS: Mapping[str, Callable[[], Converter]] = {
    "org.apache.kafka.connect.json.JsonConverter": JsonConverter,
    "org.apache.kafka.connect.storage.StringConverter": StringConverter,
}
SIDES: Mapping[str, Side] = {"Key": "key", "Value": "value"}
# Transforms that exist for keys and for values.
SIDED: Mapping[str, Callable[[Settings, Side], Transform]] = {
    "Cast": fields.cast,
    "ExtractField": fields.extract_field,
    "Flatten": fields.flatten,
    "HeaderFrom": metadata.copy_to_headers,
    "HoistField": fields.hoist_field,
    "InsertField": fields.insert_field,
    "MaskField": fields.mask_field,
    "ReplaceField": fields.replace_field,
    "SetSchemaMetadata": fields.set_schema_metadata,
    "TimestampConverter": convert_timestamp,
}
WHOLE: Mapping[str, Callable[[Settings], Transform]] = {
    "DropHeaders": metadata.drop_headers,
    "Filter": lambda _: Transform(lambda _: None),
    "InsertHeader": metadata.insert_header,
    "RegexRouter": metadata.route_by_regex,
    "TimestampRouter": metadata.route_by_timestamp,
    "ValueToKey": fields.value_to_key,
}
PREDICATES: Mapping[str, Callable[[Settings], Predicate]] = {
    "HasHeaderKey": metadata.has_header_key,
    "RecordIsTombstone": lambda _: Predicate(lambda record: record.value.is_null),
    "TopicNameMatches": metadata.topic_name_matches,
}
# Names of fields that an error lists.
MOST_NAMES = 20
TYPES = (*(f"{name}${side}" for name in SIDED for side in SIDES), *WHOLE)


@dataclass(frozen=True)
class Step:
    """A transform by its name in the settings, and the answer of its predicate for which it is applied."""

    alias: str
    kind: str
    """The transform's name in Connect, without the part that it changes."""
    transform: Transform
    predicate: Predicate | None = None
    applies_when: bool = True

    def applies_to(self, record: ConnectRecord) -> bool:
        """Return whether the predicate, if there is one, lets the transform see a record."""
        return self.predicate is None or self.predicate.matches(record) is self.applies_when

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None:
        """Return the changed record, None if it is dropped; raises CannotTransform, naming the transform."""
        if not self.applies_to(record):
            return record
        try:
            return self.transform.apply(record)
        except CannotTransform as error:
            raise CannotTransform(f"transform {self.alias} ({self.kind}): {error}") from error
        except RecursionError as error:
            raise CannotTransform(f"transform {self.alias}: it is nested too deeply") from error


@dataclass(frozen=True)
class TransformChain:
    """All transforms, and how keys and values are read and written."""

    steps: tuple[Step, ...]
    key_converter: Converter
    value_converter: Converter
    settings: Mapping[str, str]
    """Every setting that it was built from."""

    @property
    def fingerprint(self) -> str:
        """Return the settings as a text that is equal for equal chains."""
        return "transforms " + json.dumps(self.settings, sort_keys=True)

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions made of settings cannot be pickled: Spark's executors build the chain again.
        return build_chain, (self.settings,)

    @property
    def routes(self) -> bool:
        """Return whether it may give a record another topic."""
        return any(step.transform.route is not None for step in self.steps)

    def routed_name(self, topic: str) -> str | None:
        """Return the topic of all records of `topic`; None if nothing routes, or if records decide about it."""
        if not self.routes:
            return None
        for step in self.steps:
            if step.transform.route is None:
                continue
            if step.predicate is not None:
                if step.predicate.matches_topic is None:
                    return None
                if step.predicate.matches_topic(topic) is not step.applies_when:
                    continue
            routed = step.transform.route(topic)
            if routed is None:
                return None
            topic = routed
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
        transform = self.step.transform
        if not transform.paths:
            return
        data: Any = dict(record.headers) if transform.side is None else record.part(transform.side).data
        if isinstance(data, dict):
            self.present.update(dict.fromkeys(data))
            self.found.update(path for path in transform.paths if _holds(data, path))

    @property
    def missing(self) -> str | None:
        """Return why the step has no effect on these records; None if it has one."""
        transform = self.step.transform
        if not self.applied and (self.step.predicate is not None or not self.reached):
            return "its predicate matches none of them" if self.reached else "no record reaches it"
        lacking = [".".join(path) for path in transform.paths if path not in self.found]
        if not lacking or (self.found and not transform.needs_all):
            return None
        what, of = ("header", "they") if transform.side is None else ("field", f"their {transform.side}s")
        names = ", ".join(list(self.present)[:MOST_NAMES]) or "none"
        return f"{self.step.kind} names {what} {', '.join(lacking)}, which none of them has; {of} have: {names}"


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


def build_chain(properties: Mapping[str, str]) -> TransformChain:
    """Build the chain of these settings; raises UsageError for what is missing, unknown or malformed."""
    # Keys that belong to other parts of a connector's configuration are left alone.
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
    return TransformChain(steps, key, value, mine)


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
    return Step(alias, base, transform, predicate, applies_when)


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
