"""Connect's transforms, each against a table of what they do; the table is held against Connect in the system tests."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from blockgz.errors import UsageError
from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit
from replayer.replay.pipeline import ScannedBatch, TransformStage
from replayer.transforms.chain import PREDICATES, SIDED, WHOLE, build_chain
from replayer.transforms.record import CannotTransform, ConnectRecord, RecordPart
from replayer.transforms.settings import parse_transforms
from tests.support.transform_cases import CASES, Case, Given


def content(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def applied(case: Case, given: Given) -> Any:
    chain = build_chain(case.config)
    record = ConnectRecord(
        given.topic,
        given.partition,
        given.offset,
        given.timestamp,
        RecordPart(content(given.key), chain.key_converter),
        RecordPart(content(given.value), chain.value_converter),
        tuple((name, content(each)) for name, each in given.headers),
    )
    try:
        result = chain(record)
    except CannotTransform:
        return "error"
    if result is None:
        return "dropped"
    return {
        "topic": result.topic,
        "key": result.key.encoded(),
        "value": result.value.encoded(),
        "headers": result.headers,
    }


def comparable(part: bytes | None) -> Any:
    """JSON by what it means, with integers and floats apart."""
    try:
        return json.dumps(json.loads(part), sort_keys=True) if part is not None else None
    except ValueError:
        return part


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_transform_does_what_connect_does(case: Case) -> None:
    for given, outcome in case.outcomes:
        found = applied(case, given)
        if isinstance(outcome, str):
            assert found == outcome, given
            continue
        expected: Mapping[str, Any] = {
            "topic": given.topic,
            "key": given.key,
            "value": given.value,
            "headers": given.headers,
            **outcome,
        }
        assert isinstance(found, dict), given
        assert found["topic"] == expected["topic"]
        assert comparable(found["key"]) == comparable(content(expected["key"])), given
        assert comparable(found["value"]) == comparable(content(expected["value"])), given
        assert found["headers"] == tuple((name, content(each)) for name, each in expected["headers"])


def test_every_transform_has_cases() -> None:
    types = {value for case in CASES for name, value in case.config.items() if name.endswith(".type")}
    tried = {name.rpartition(".")[2] for name in types}
    assert tried >= {f"{name}$Value" for name in SIDED} | set(WHOLE) | set(PREDICATES)


def record(offset: int, value: bytes | None, key: bytes | None = b"\xff", timestamp: int = 1_763_701_629_042) -> Record:
    return Record(offset, timestamp, 0, key, value, (("h", b"\xfe"),))


def staged(config: dict[str, str], rows: list[Record], **options: Any) -> tuple[TransformStage, list[Record]]:
    stage = TransformStage(build_chain(config), "orders", options.pop("target", "copy"), **options)
    return stage, list(iter_records(stage(ScannedBatch(3, batch_from_records(rows))).records))


def test_what_a_chain_does_not_touch_stays_byte_for_byte() -> None:
    """Keys that are no JSON, spaces and the order of fields, headers that are no text."""
    config = {
        "transforms": "t",
        "transforms.t.type": "MaskField$Value",
        "transforms.t.fields": "a",
        "transforms.t.predicate": "tomb",
        "transforms.t.negate": "true",
        "predicates": "tomb",
        "predicates.tomb.type": "RecordIsTombstone",
    }
    rows = [record(4, None), record(6, b'{ "z": 123456789012345678901234567890, "a": 5 }', None, -1)]
    _, (tombstone, masked) = staged(config, rows)
    assert tombstone == rows[0]
    assert masked == rows[1]._replace(value=b'{"z":123456789012345678901234567890,"a":0}')


INSERT = {
    "transforms": "t",
    "transforms.t.type": "InsertField$Value",
    "transforms.t.static.field": "x",
    "transforms.t.static.value": "y",
}


@pytest.mark.parametrize("value", [b"text", b"", b"\xff", b'{"a":1', b"[" * 5000 + b"]" * 5000, b"[1]"])
def test_a_record_that_a_transform_cannot_handle_is_named(value: bytes) -> None:
    with pytest.raises(RecordUnfit) as caught:
        staged(INSERT, [record(4, b"{}"), record(9, value)])
    error = caught.value
    assert (error.partition, error.offset, error.exit_code) == (3, 9, 1)
    assert "partition 3, offset 9" in error.what
    assert "transform t (InsertField)" in str(error.why)
    assert "--on-transform-error skip" in str(error.remedy)


def test_a_record_that_a_transform_cannot_handle_is_left_out_and_counted() -> None:
    rows = [record(4, b"{}"), record(9, b"text"), record(12, b"{}")]
    stage, left = staged(INSERT, rows, on_error="skip")
    assert [each.offset for each in left] == [4, 12]
    assert (stage.left_out.unfit, stage.left_out.dropped, stage.left_out.routed_elsewhere) == (1, 0, 0)


def test_where_the_chain_routes_only_records_for_the_target_continue() -> None:
    config = {"transforms": "r", "transforms.r.type": "TimestampRouter"}
    rows = [record(1, b"1"), record(2, b"2", timestamp=1_763_701_629_042 + 86_400_000), record(3, b"3")]
    stage, left = staged(config, rows, target="orders-20251121")
    assert left == [rows[0], rows[2]]
    assert stage.left_out.routed_elsewhere == 1


def test_a_chain_that_does_not_route_leaves_the_name_to_the_replay() -> None:
    assert staged(INSERT, [record(1, b"{}")], target="anything")[1][0].value == b'{"x":"y"}'


def test_a_fingerprint_holds_every_setting() -> None:
    first, _ = staged(INSERT, [])
    other, _ = staged(INSERT | {"transforms.t.static.value": "z"}, [])
    skipping, _ = staged(INSERT, [], on_error="skip")
    assert len({first.fingerprint, other.fingerprint, skipping.fingerprint}) == 3
    assert first.fingerprint == staged(dict(reversed(INSERT.items())), [])[0].fingerprint


def with_type(name: str, **settings: str) -> dict[str, str]:
    named = {f"transforms.t.{key.replace('_', '.')}": value for key, value in settings.items()}
    return {"transforms": "t", "transforms.t.type": name, **named}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ["no transform"]),
        ({"transforms": "a"}, ["transforms.a.type is missing"]),
        ({"transforms": "a,a", "transforms.a.type": "Filter"}, ["twice"]),
        (with_type("Filter", oops="1"), ["transforms.t.oops", "its settings are"]),
        (with_type("MaskField"), ["MaskField$Key or MaskField$Value"]),
        (with_type("MaskFeld$Value"), ["did you mean MaskField?"]),
        (with_type("com.example.Mine"), ["com.example.Mine is not a transform"]),
        (with_type("MaskField$Value"), ["transforms.t.fields is missing"]),
        (with_type("MaskField$Value", fields=" "), ["empty list"]),
        (with_type("MaskField$Value", fields="a", replacment="x"), ["did you mean replacement?"]),
        (with_type("ReplaceField$Value", blacklist="a"), ["did you mean exclude?"]),
        (with_type("ReplaceField$Value", renames="a"), ["OLD:NEW"]),
        (with_type("InsertField$Value"), ["no field"]),
        (with_type("InsertField$Value", static_field="a"), ["no value"]),
        (with_type("Cast$Value", spec="a:int128"), ["int8"]),
        (with_type("Cast$Value", spec="int8,a:int8"), ["stands alone"]),
        (with_type("HeaderFrom$Value", fields="a,b", headers="h", operation="move"), ["1 headers", "2 fields"]),
        (with_type("HeaderFrom$Value", fields="a", headers="h", operation="shift"), ["move, copy"]),
        (with_type("RegexRouter", regex="(", replacement="x"), ["transforms.t.regex=("]),
        (with_type("RegexRouter", regex="\\p{Alpha}", replacement="x"), ["bad escape"]),
        (with_type("RegexRouter", regex="a", replacement="$1"), ["no group 1"]),
        (with_type("RegexRouter", regex="a", replacement="$"), ["backslash"]),
        (with_type("TimestampRouter", timestamp_format="yyyy-ww"), ["letter w"]),
        (with_type("TimestampConverter$Value", target_type="string"), ["text requires one"]),
        (with_type("TimestampConverter$Value", target_type="string", format="yyyy'T"), ["not closed"]),
        (with_type("TimestampConverter$Value", target_type="date"), ["Timestamp"]),
        (with_type("SetSchemaMetadata$Value"), ["neither"]),
        (with_type("SetSchemaMetadata$Value", schema_version="x"), ["schema.version=x"]),
        (with_type("ExtractField$Value", field="`a", field_syntax_version="V2"), ["not closed"]),
        (with_type("Filter", predicate="p"), ["does not name it"]),
        (with_type("Filter", negate="true"), ["no predicate"]),
        (with_type("Filter", negate="maybe"), ["true or false"]),
        (with_type("Filter") | {"transforms.u.type": "Filter"}, ["u.type belongs to no transform or predicate"]),
        (with_type("Filter") | {"predicates": "p", "predicates.p.type": "HasHeader"}, ["did you mean HasHeaderKey?"]),
        (with_type("Filter") | {"value.converter": "io.confluent.connect.avro.AvroConverter"}, ["AvroConverter"]),
        (with_type("Filter") | {"value.converter.schemas.enable": "true"}, ["without a schema"]),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_settings_that_cannot_be_used(config: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        build_chain(config)
    told = f"{caught.value.what} {caught.value.why} {caught.value.remedy}"
    assert all(word in told for word in words), told
    assert caught.value.why
    assert caught.value.remedy


EXPECTED = {
    "transforms": "b,a",
    "transforms.b.type": "InsertField$Value",
    "transforms.b.static.field": "007",
    "transforms.b.static.value": "no",
    "transforms.a.type": "Filter",
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "t.properties",
            "# comment\ntransforms=b,a\ntransforms.b.type = InsertField$Value\ntransforms.b.static.field: 007\n"
            "transforms.b.static.value=\\\n  no\ntransforms.a.type=Filter\n",
        ),
        (
            "t.yaml",
            "transforms:\n  b: {type: InsertField$Value, static.field: 007, static: {value: no}}\n"
            "  a:\n    type: Filter\n",
        ),
        (
            "t.yml",
            "transforms: [b, a]\ntransforms.b.type: InsertField$Value\ntransforms.b.static.field: 007\n"
            "transforms.b.static.value: no\ntransforms.a.type: Filter\n",
        ),
        ("t.json", json.dumps({"name": "sink", "config": EXPECTED})),
    ],
)
def test_documents(name: str, text: str) -> None:
    found = parse_transforms(name, text)
    assert {key: value for key, value in found.items() if key != "name"} == EXPECTED
    assert [step.alias for step in build_chain(found).steps] == ["b", "a"]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("t.toml", "", "extension"),
        ("t.yaml", "", "empty"),
        ("t.yaml", "a: [", "YAML"),
        ("t.yaml", "a: 1\na: 2\n", "twice"),
        ("t.properties", "a=1\na=2\n", "twice"),
        ("t.yaml", "a: [[1]]", "t.yaml:1"),
        ("t.yaml", "[1]: 2", "t.yaml:1"),
        ("t.properties", "a=\\u00zz", "properties"),
    ],
)
def test_documents_that_cannot_be_read(name: str, text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_transforms(name, text)
    assert word in f"{caught.value.what} {caught.value.why}"
