"""What becomes of records in a job, as its folder keeps it: a proof applies the same again, with no options."""

import base64
import json
from collections.abc import Mapping
from typing import Any

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
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import Pipeline
from replayer.replay.request import ReplayRequest, Shape
from replayer.replay.routing import RoutingRequest
from replayer.replay.stages import AddHeader, ShiftTimestamps, TimestampPolicy, parse_timestamps
from replayer.transforms.chain import build_chain


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
