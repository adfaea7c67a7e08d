"""Edits of records on their way to the target, against the same edits made record by record."""

import random
import re
from typing import Any

import pyarrow as pa
import pytest

from blockgz.errors import UsageError
from index_format.records import SCHEMA, Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit
from replayer.replay.pipeline import ScannedBatch, Stage
from replayer.replay.stages import (
    AddHeader,
    AddProvenance,
    DropTombstones,
    StripHeaders,
    Timestamps,
    TransformStage,
    parse_header,
    parse_timestamps,
)
from replayer.transforms.chain import build_chain

NOW = 1_800_000_000_000
HOUR = 3_600_000


def random_records(seed: int, count: int = 200) -> list[Record]:
    chance = random.Random(seed)
    names = ["a", "b", "trace", "ü"]
    return [
        Record(
            offset=row * 3,
            timestamp=chance.choice([-1, 0, 1, 1_700_000_000_000 + row]),
            timestamp_type=0,
            key=chance.choice([None, b"", b"k%d" % row]),
            value=chance.choice([None, b"", b"v%d" % row]),
            headers=tuple(
                (chance.choice(names), chance.choice([None, b"", b"h%d" % row])) for _ in range(chance.randrange(4))
            ),
        )
        for row in range(count)
    ]


def edited(stage: Stage, records: list[Record], source: int = 7) -> list[Record]:
    """What the stage makes of these records as one batch; slices of it must agree."""
    whole = batch_from_records(records)
    result = stage(ScannedBatch(source, whole)).records
    assert result.schema.equals(SCHEMA)
    result.validate(full=True)
    pieces = [stage(ScannedBatch(source, whole.slice(start, 33))).records for start in range(0, len(records), 33)]
    assert pa.Table.from_batches(pieces, SCHEMA).equals(pa.Table.from_batches([result], SCHEMA))
    return list(iter_records(result))


SEED = 20261121


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (StripHeaders(("a", "ü")), lambda r: r._replace(headers=tuple(h for h in r.headers if h[0] not in "aü"))),
        (StripHeaders(("nobody",)), lambda r: r),
        (
            AddHeader("a", b"1"),
            lambda r: r._replace(headers=(*r.headers, ("a", b"1"))),
        ),
        (
            AddProvenance("orders"),
            lambda r: r._replace(headers=(*r.headers, ("blockgz-source", b"orders/7/%d" % r.offset))),
        ),
        (Timestamps("now"), lambda r: r._replace(timestamp=NOW)),
        (
            Timestamps("shift", HOUR),
            lambda r: r._replace(timestamp=r.timestamp if r.timestamp == -1 else r.timestamp + HOUR),
        ),
    ],
    ids=["strip", "strip-nothing", "add", "provenance", "now", "shift"],
)
@pytest.mark.parametrize("headers", ["some", "none"])
def test_an_edit_of_batches_is_that_of_each_record(
    stage: Stage, expected: Any, headers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replayer.replay.stages.wall_clock", lambda: NOW)
    records = random_records(SEED)
    if headers == "none":
        records = [record._replace(headers=()) for record in records]
    assert edited(stage, records) == [expected(record) for record in records], f"seed {SEED}"


def test_tombstones_are_dropped_and_empty_values_are_none() -> None:
    records = random_records(SEED)
    kept = [record for record in records if record.value is not None]
    assert 0 < len(kept) < len(records)
    assert b"" in {record.value for record in kept}
    assert list(iter_records(DropTombstones()(ScannedBatch(0, batch_from_records(records))).records)) == kept


def test_a_batch_in_which_nothing_changes_is_handed_on_as_it_is() -> None:
    batch = ScannedBatch(0, batch_from_records([Record(0, 5, 0, b"k", b"v", (("x", b"1"),))]))
    for stage in (DropTombstones(), StripHeaders(("y",)), Timestamps()):
        assert stage(batch) is batch


@pytest.mark.parametrize(("timestamp", "by"), [(5, -6), (2**63 - 10, 10), (0, -1)])
def test_a_time_that_kafka_cannot_hold(timestamp: int, by: int) -> None:
    batch = batch_from_records([Record(3, 6, 0, None, None, ()), Record(4, timestamp, 0, None, None, ())])
    with pytest.raises(RecordUnfit, match="partition 9, offset 4") as caught:
        Timestamps("shift", by)(ScannedBatch(9, batch))
    assert str(timestamp) in str(caught.value.why)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("keep", Timestamps()),
        ("now", Timestamps("now")),
        ("shift=+30d", Timestamps("shift", 30 * 24 * HOUR)),
        ("shift=-90m", Timestamps("shift", -90 * 60_000)),
        ("shift=5ms", Timestamps("shift", 5)),
    ],
)
def test_timestamp_policies(text: str, policy: object) -> None:
    assert parse_timestamps(text) == policy


@pytest.mark.parametrize(
    "text", ["", "shift", "shift=", "shift=1", "shift=1y", "later", "shift=--1h", "shift=1.5h", "shift=999999999999d"]
)
def test_unknown_timestamp_policies(text: str) -> None:
    with pytest.raises(UsageError, match="timestamps"):
        parse_timestamps(text)


def test_headers_as_text() -> None:
    assert parse_header("a=b=ü") == AddHeader("a", "b=ü".encode())
    assert parse_header("a=") == AddHeader("a", b"")
    for text in ("a", "=b", ""):
        with pytest.raises(UsageError, match="header"):
            parse_header(text)


HAS = "id, name, inner"


def transform_stage(on_error: Any = "fail", predicate: dict[str, str] | None = None, **settings: str) -> TransformStage:
    plain = {f"transforms.t.{name.replace('_', '.')}": value for name, value in settings.items()}
    plain |= {f"predicates.p.{name}": value for name, value in (predicate or {}).items()}
    named = {"transforms": "t"} | ({"predicates": "p", "transforms.t.predicate": "p"} if predicate else {})
    return TransformStage(build_chain(named | plain), "orders", "orders", on_error)


@pytest.mark.parametrize(
    ("settings", "why", "changed"),
    [
        ({"type": "MaskField$Value", "fields": "name"}, None, 2),
        ({"type": "MaskField$Value", "fields": "nmae"}, f"MaskField names field nmae, .* their values have: {HAS}$", 0),
        ({"type": "MaskField$Value", "fields": "name,nmae"}, "field nmae, which none of them has", 2),
        ({"type": "ReplaceField$Value", "exclude": "name"}, None, 2),
        ({"type": "ReplaceField$Value", "exclude": "nmae"}, "field nmae, which", 0),
        ({"type": "ReplaceField$Value", "include": "id,other"}, None, 2),
        ({"type": "ReplaceField$Value", "renames": "nmae:n"}, "field nmae, which", 0),
        ({"type": "Cast$Value", "spec": "id:int32"}, None, 0),
        ({"type": "Cast$Value", "spec": "id:string"}, None, 2),
        ({"type": "Cast$Value", "spec": "di:string"}, "Cast names field di", 0),
        ({"type": "Cast$Key", "spec": "string"}, None, 2),
        ({"type": "ExtractField$Value", "field": "inner.a", "field_syntax_version": "V2"}, None, 2),
        ({"type": "ExtractField$Value", "field": "inner.b", "field_syntax_version": "V2"}, "field inner.b", 2),
        ({"type": "HeaderFrom$Value", "fields": "nmae", "headers": "n", "operation": "copy"}, "field nmae", 2),
        ({"type": "ValueToKey", "fields": "nmae"}, "field nmae, .* their values have", 2),
        ({"type": "TimestampConverter$Value", "field": "ts", "target_type": "unix"}, "field ts", 0),
        ({"type": "DropHeaders", "headers": "h"}, None, 2),
        ({"type": "DropHeaders", "headers": "x"}, "names header x, which none of them has; they have: h", 0),
        ({"type": "Flatten$Value"}, None, 2),
        ({"type": "InsertHeader", "header": "i", "value_literal": "1"}, None, 2),
        ({"type": "Filter", "predicate": {"type": "HasHeaderKey", "name": "x"}}, "its predicate matches none", 0),
        ({"type": "Filter", "predicate": {"type": "HasHeaderKey", "name": "h"}}, None, 2),
    ],
)
def test_transforms_that_do_nothing_are_found_and_changes_are_counted(
    settings: dict[str, Any], why: str | None, changed: int
) -> None:
    stage = transform_stage(**settings)
    value = b'{"id":1,"name":"n","inner":{"a":2}}'
    rows = [Record(number, 5, 0, b"1", value, (("h", b"1"),)) for number in range(2)]
    found = stage.unchanged((0, row) for row in rows)
    assert (found is None) is (why is None), found
    if why is not None:
        assert found is not None and found[0] == "t" and re.search(why, found[1]), found
    stage(ScannedBatch(0, batch_from_records(rows)))
    assert stage.left_out.changed == {"t": changed}


@pytest.mark.parametrize(("on_error", "found"), [("fail", False), ("skip", True)])
def test_a_record_that_ends_the_replay_ends_the_look_ahead(on_error: str, found: bool) -> None:
    stage = transform_stage(on_error, type="MaskField$Value", fields="x")
    bad, good = (Record(number, 5, 0, None, value, ()) for number, value in enumerate((b"[]", b"{}")))
    assert (stage.unchanged([(0, bad), (0, good)]) is not None) is found
    assert stage.unchanged([(0, good), (0, bad)]) is not None, "what comes before is written"
