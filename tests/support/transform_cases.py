"""What Connect's transforms do with records that have no schema: given and expected, judged by Connect itself as well.

The unit tests hold our transforms against this table, the system tests Connect's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Header = tuple[str, str | None]
Outcome = Mapping[str, Any] | Literal["error", "dropped"]
"""What changes of the given record (topic, key, value, headers), or what becomes of it instead."""


@dataclass(frozen=True)
class Given:
    """A record in texts, None for null."""

    value: str | None = None
    key: str | None = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = 1_763_701_629_042
    """2025-11-21T05:07:09.042Z"""
    topic: str = "orders"
    partition: int = 3
    offset: int = 17


@dataclass(frozen=True)
class Case:
    """A configuration, and what it does. `ours`: why Connect does something else; its own answer is not asked then."""

    name: str
    config: Mapping[str, str]
    outcomes: Sequence[tuple[Given, Outcome]]
    ours: str = field(default="")


def one(type_: str, outcomes: Sequence[tuple[Given, Outcome]], ours: str = "", **settings: str) -> Case:
    """A case of one transform; underscores in the names of settings are dots."""
    named = {f"transforms.t.{name.replace('_', '.')}": value for name, value in settings.items()}
    name = " ".join([type_, *settings.values()])
    return Case(name, {"transforms": "t", "transforms.t.type": type_, **named}, outcomes, ours)


def value(given: str | None, expected: str | None) -> tuple[Given, Outcome]:
    """A value and what becomes of it."""
    return Given(given), {"value": expected}


def key(given: str | None, expected: str | None) -> tuple[Given, Outcome]:
    """A key and what becomes of it; the value is not JSON and must not be looked at."""
    return Given(key=given), {"key": expected}


def fails(*values: str | None) -> list[tuple[Given, Outcome]]:
    """Values that the transform cannot handle."""
    return [(Given(each), "error") for each in values]


DAY = '{"a":1763701629042,"b":2}'
CASES: list[Case] = [
    # InsertField
    one(
        "InsertField$Value",
        [value('{"a":1}', '{"a":1,"x":"y"}'), value(None, None)],
        static_field="x",
        static_value="y",
    ),
    one("InsertField$Value", [value('{"x":1}', '{"x":"y"}')], static_field="x!", static_value="y"),
    one("InsertField$Value", fails("[1]", '"text"', "5"), static_field="x", static_value="y"),
    one(
        "InsertField$Value",
        [
            value("{}", '{"t":"orders","p":3,"o":17,"ts":1763701629042}'),
            (Given("{}", timestamp=None), {"value": '{"t":"orders","p":3,"o":17}'}),
        ],
        topic_field="t",
        partition_field="p?",
        offset_field="o!",
        timestamp_field="ts",
    ),
    one("InsertField$Key", [key('{"a":1}', '{"a":1,"x":"y"}'), key(None, None)], static_field="x", static_value="y"),
    # ReplaceField
    one("ReplaceField$Value", [value('{"a":1,"b":2,"c":null}', '{"b":2,"c":null}'), value(None, None)], exclude="a,z"),
    one("ReplaceField$Value", [value('{"a":1,"b":2}', '{"a":1}')], include="a, z"),
    one("ReplaceField$Value", [value('{"a":1,"b":2,"c":3}', '{"x":1,"c":3}')], exclude="b", renames="a:x,b:y"),
    one("ReplaceField$Value", [value('{"a":1,"b":2}', "{}")], include="a", exclude="a"),
    one("ReplaceField$Key", [key('{"a":1,"b":2}', '{"b":2}')], exclude="a"),
    one("ReplaceField$Value", fails("[1]", "true"), exclude="a"),
    # MaskField
    one(
        "MaskField$Value",
        [
            value(
                '{"a":7,"b":true,"c":"s","d":[1],"e":{"x":1},"f":1.5,"g":null,"h":1}',
                '{"a":0,"b":false,"c":"","d":[],"e":{},"f":0.0,"g":null,"h":1,"none":null}',
            )
        ],
        fields="a,b,c,d,e,f,g,none",
    ),
    one(
        "MaskField$Value",
        [
            value('{"a":7,"c":"s","f":1.5}', '{"a":12,"c":"12.75","f":12.75}'),
            *fails('{"a":true}', '{"a":[1]}', '{"a":{}}'),
        ],
        fields="a,c,f",
        replacement="12.75",
    ),
    one(
        "MaskField$Value",
        [value('{"a":"s"}', '{"a":"***"}'), *fails('{"a":1}', '{"a":1.0}')],
        fields="a",
        replacement="***",
    ),
    one("MaskField$Value", fails(None, "[1]"), fields="a"),
    one(
        "MaskField$Value",
        fails('{"a":1}', '{"a":1.5}'),
        ours="Connect makes a number of it that JSON has not",
        fields="a",
        replacement="1e999999999",
    ),
    one("MaskField$Key", [key('{"a":"s"}', '{"a":""}')], fields="a"),
    # ValueToKey
    one(
        "ValueToKey",
        [
            (Given('{"a":1,"b":{"c":2}}', key='"old"'), {"key": '{"a":1,"b":{"c":2},"z":null}'}),
            *fails(None, "[1]", '"a"'),
        ],
        fields="a,b,z",
    ),
    # HoistField
    one(
        "HoistField$Value",
        [value("5", '{"f":5}'), value('{"a":1}', '{"f":{"a":1}}'), value(None, '{"f":null}')],
        field="f",
    ),
    one("HoistField$Key", [key('"k"', '{"f":"k"}'), key(None, '{"f":null}')], field="f"),
    # ExtractField
    one(
        "ExtractField$Value",
        [
            value('{"a":{"b":2}}', '{"b":2}'),
            value('{"z":1}', None),
            value('{"a":null}', None),
            value(None, None),
            *fails("[1]", "1"),
        ],
        field="a",
    ),
    one("ExtractField$Value", [value('{"a.b":1,"a":{"b":2}}', "1")], field="a.b"),
    one(
        "ExtractField$Value",
        [value('{"a.b":1,"a":{"b":2}}', "2"), value('{"a":null}', None), value('{"a":{}}', None), *fails('{"a":1}')],
        field="a.b",
        field_syntax_version="V2",
    ),
    one("ExtractField$Value", [value('{"a.b":{"c":3}}', "3")], field="`a.b`.c", field_syntax_version="v2"),
    one("ExtractField$Value", [value('{"a`b":{"":3}}', "3")], field="a`b.", field_syntax_version="V2"),
    one("ExtractField$Value", [value('{"a`.b":4}', "4")], field="`a\\`.b`", field_syntax_version="V2"),
    one("ExtractField$Value", [value('{"a`b":{"c":4}}', "4")], field="`a`b`.c", field_syntax_version="V2"),
    one("ExtractField$Key", [key('{"id":"7"}', '"7"')], field="id"),
    # SetSchemaMetadata
    one("SetSchemaMetadata$Value", [value(None, None), *fails("{}", "1")], schema_name="n", schema_version="2"),
    one(
        "SetSchemaMetadata$Value",
        [
            value(
                '{"schema":{"type":"struct","version":1,"fields":[]},"payload":{}}',
                '{"schema":{"type":"struct","name":"n","version":2,"fields":[]},"payload":{}}',
            ),
            *fails('{"schema":null,"payload":1}'),
        ],
        ours="with schemas.enable=true Connect sees a schema there, without it never",
        schema_name="n",
        schema_version="2",
    ),
    # TimestampRouter
    one("TimestampRouter", [(Given(), {"topic": "orders-20251121"}), (Given(timestamp=None), "error")]),
    one(
        "TimestampRouter",
        [(Given(topic="$1"), {"topic": "foo-$1-2025.11.21 at ' o'clock 05:07"})],
        topic_format="foo-${topic}-${timestamp}",
        timestamp_format="yyyy.MM.dd 'at' '' 'o''clock' HH:mm",
    ),
    one(
        "TimestampRouter",
        [
            (Given(), {"topic": "25/Nov/November/11/11/05/5 AM Fri Friday 7 042 000042 325 5 UTC +0000 Z"}),
            (
                Given(timestamp=951_827_696_789),
                {"topic": "00/Feb/February/2/02/12/12 PM Tue Tuesday 34 789 000789 060 2 UTC +0000 Z"},
            ),
            (Given(timestamp=0), {"topic": "70/Jan/January/1/01/00/12 AM Thu Thursday 0 000 000000 001 4 UTC +0000 Z"}),
        ],
        topic_format="${timestamp}",
        timestamp_format="yy/MMM/MMMM/M/MM/HH/h a EEE EEEE m SSS SSSSSS DDD u z Z X",
    ),
    # RegexRouter
    one("RegexRouter", [(Given(), {"topic": "new-orders"})], regex="(.*)", replacement="new-$1"),
    one("RegexRouter", [(Given(), {})], regex="order", replacement="no"),
    one("RegexRouter", [(Given(), {"topic": "so-rde"})], regex="(?<a>or)(de)r(s)", replacement="$3o-r$2"),
    one("RegexRouter", [(Given(), {"topic": "or0$x"})], regex="(?<a>or).*", replacement="${a}0\\$x"),
    one("RegexRouter", [(Given(), {"topic": "ors0"})], regex="(or).*(s)", replacement="$1$20"),
    one("RegexRouter", [(Given(), {"topic": "Xrders"})], regex="o.*?", replacement="X"),
    one(
        "RegexRouter",
        [(Given(topic="a.b"), {"topic": "c"}), (Given(topic="axb"), {})],
        regex="\\Qa.b\\E",
        replacement="c",
    ),
    # Cast
    one(
        "Cast$Value",
        [
            value(
                '{"a":300,"b":"7","c":1.9,"d":0,"e":"TRUE","f":12,"g":true,"h":null,"other":"x"}',
                '{"a":44,"b":7,"c":1,"d":false,"e":true,"f":"12","g":1,"h":null,"none":null,"other":"x"}',
            ),
            value(None, None),
            *fails('{"b":"x"}', '{"b":"1.5"}', '{"a":[1]}', '{"f":{}}', "[]", '{"b":"40000"}'),
        ],
        spec="a:int8,b:int16,c:int32,d:boolean,e:boolean,f:string,g:int64,h:string,none:int8",
    ),
    one("Cast$Value", [value("1e300", "-1"), value("-1e300", "0"), value("70000.9", "112")], spec="int8"),
    one("Cast$Value", [value("1e300", "2147483647"), value("4294967297", "1"), value('"+5"', "5")], spec="int32"),
    one("Cast$Value", [value("1e300", "9223372036854775807"), value("false", "0"), *fails('" 5"', '""')], spec="int64"),
    one("Cast$Value", [value("0.1", "0.1"), value("16777217", "16777216.0"), value('"1.5f"', "1.5")], spec="float32"),
    one(
        "Cast$Value",
        [value("5", "5.0"), value("true", "1.0"), value('" 2.5e3 "', "2500.0"), *fails('"1_0"', '"x"')],
        spec="float64",
    ),
    one("Cast$Value", [value("0.5", "false"), value("-1", "true"), value('"yes"', "false")], spec="boolean"),
    one(
        "Cast$Value",
        [
            value("1.5", '"1.5"'),
            value("100000000.0", '"1.0E8"'),
            value("1234567.5", '"1234567.5"'),
            value("12345678.9", '"1.23456789E7"'),
            value("0.001", '"0.001"'),
            value("0.00012", '"1.2E-4"'),
            value("true", '"true"'),
            value('"s"', '"s"'),
        ],
        spec="string",
    ),
    one("Cast$Key", [key("5", '"5"'), key(None, None)], spec="string"),
    one(
        "Cast$Value",
        fails("123456789012345678901"),
        ours="Connect wraps an integer beyond 64 bits when it reads it",
        spec="int64",
    ),
    one("Cast$Value", fails('"NaN"'), ours='Connect writes "NaN" with quotes', spec="float64"),
    # DropHeaders, InsertHeader, HeaderFrom
    one(
        "DropHeaders",
        [(Given(headers=(("a", "1"), ("b", None), ("a", "x"), ("c", "y"))), {"headers": (("b", None),)})],
        headers="a,c",
    ),
    one(
        "InsertHeader",
        [(Given(headers=(("h", "1"),)), {"headers": (("h", "1"), ("h", "text 1"))})],
        header="h",
        value_literal="text 1",
    ),
    one(
        "InsertHeader",
        [(Given(), {"headers": (("h", "007"),)})],
        ours="Connect takes the literal for a number and writes 7",
        header="h",
        value_literal="007",
    ),
    one(
        "HeaderFrom$Value",
        [
            (
                Given('{"a":"s","b":5,"c":1.5e10,"d":true,"e":[1,"x"],"f":{"y":null},"z":1}', headers=(("h1", "old"),)),
                {
                    "value": '{"z":1}',
                    "headers": (
                        ("h1", "old"),
                        ("h1", "s"),
                        ("h2", "5"),
                        ("h3", "1.5E10"),
                        ("h4", "true"),
                        ("h5", '[1,"x"]'),
                        ("h6", '{"y":null}'),
                        ("h7", None),
                    ),
                },
            ),
            *fails(None, "[1]"),
        ],
        fields="a,b,c,d,e,f,g",
        headers="h1,h2,h3,h4,h5,h6,h7",
        operation="move",
    ),
    one(
        "HeaderFrom$Key",
        [(Given(key='{"a":1}'), {"headers": (("h", "1"),)})],
        fields="a",
        headers="h",
        operation="copy",
    ),
    # Flatten
    one(
        "Flatten$Value",
        [
            value(
                '{"a":{"b":{"c":1,"d":[{"e":1}]},"n":null},"f":{},"g":2}',
                '{"a.b.c":1,"a.b.d":[{"e":1}],"a.n":null,"g":2}',
            ),
            value(None, None),
            *fails("[1]", "1"),
        ],
    ),
    one("Flatten$Value", [value('{"a":{"b":1}}', '{"a_b":1}')], delimiter="_"),
    one("Flatten$Key", [key('{"a":{"b":1}}', '{"a.b":1}')]),
    # TimestampConverter
    one(
        "TimestampConverter$Value",
        [
            value(DAY, '{"a":"2025-11-21T05:07:09.042Z","b":2}'),
            value('{"a":"1969-12-31T23:59:59.999Z"}', '{"a":"1969-12-31T23:59:59.999Z"}'),
            value('{"b":1}', '{"a":null,"b":1}'),
            value(None, None),
            *fails('{"a":1.5}', '{"a":true}', '{"a":"yesterday"}', "[1]"),
        ],
        field="a",
        target_type="string",
        format="yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
    ),
    one(
        "TimestampConverter$Value",
        [
            value('"2025-11-21 05:07:09"', "1763701629000"),
            value('"2025-1-2 3:4:5 and more"', "1735787045000"),
            value('"2025-13-32 25:61:61"', "1769997721000"),
            *fails('"2025-11-21"'),
        ],
        target_type="unix",
        format="yyyy-MM-dd HH:mm:ss",
    ),
    one(
        "TimestampConverter$Value",
        [
            value('"21 Nov 2025 05:07 PM +0130"', "1763739420000"),
            value('"1 march 2025 12:00 am +0000"', "1740787200000"),
        ],
        target_type="unix",
        format="d MMM yyyy hh:mm a Z",
    ),
    one(
        "TimestampConverter$Value",
        [value('"20251121050709"', "1763701629000")],
        target_type="unix",
        format="yyyyMMddHHmmss",
    ),
    one(
        "TimestampConverter$Value",
        [value('"2025-11-21T05:07:09+02:00"', "1763694429000")],
        target_type="unix",
        format="yyyy-MM-dd'T'HH:mm:ssXXX",
    ),
    one("TimestampConverter$Value", [value('"2025 325"', "1763683200000")], target_type="unix", format="yyyy D"),
    one("TimestampConverter$Value", [value("1763701629042", "1763701629042"), *fails('"2025"')], target_type="unix"),
    one(
        "TimestampConverter$Value",
        [value("1763701629042", "1763701629042"), value("-1500", "-1500")],
        target_type="unix",
        unix_precision="seconds",
    ),
    one(
        "TimestampConverter$Value",
        [value("-1500001", '"1969-12-31T23:59:58.500"'), value("1763701629042999", '"2025-11-21T05:07:09.042"')],
        target_type="string",
        format="yyyy-MM-dd'T'HH:mm:ss.SSS",
        unix_precision="microseconds",
    ),
    one(
        "TimestampConverter$Value",
        [value('"1969-12-31T23:59:58.500"', "-1"), value('"2025-11-21T05:07:09.042"', "1763701629")],
        target_type="unix",
        format="yyyy-MM-dd'T'HH:mm:ss.SSS",
        unix_precision="seconds",
    ),
    one("TimestampConverter$Key", [key("0", '"1970"')], target_type="string", format="yyyy"),
    one(
        "TimestampConverter$Value",
        [value("1763701629042", "20413")],
        target_type="Date",
        ours="Connect's converter cannot write a date without a schema; with one it writes this number",
    ),
    one("TimestampConverter$Value", [value("1763701629042", "18429042")], target_type="Time", ours="as Date"),
    one("TimestampConverter$Value", [value("1763701629042", "1763701629042")], target_type="Timestamp", ours="as Date"),
    # Predicates and Filter
    Case(
        "Filter with RecordIsTombstone",
        {
            "transforms": "f",
            "transforms.f.type": "org.apache.kafka.connect.transforms.Filter",
            "transforms.f.predicate": "p",
            "predicates": "p",
            "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
        },
        [(Given(None), "dropped"), (Given('""'), {}), (Given("{}"), {})],
    ),
    Case(
        "Filter with HasHeaderKey, negated",
        {
            "transforms": "f",
            "transforms.f.type": "Filter",
            "transforms.f.predicate": "p",
            "transforms.f.negate": "true",
            "predicates": "p",
            "predicates.p.type": "HasHeaderKey",
            "predicates.p.name": "keep",
        },
        [
            (Given("1"), "dropped"),
            (Given("1", headers=(("keep", None),)), {}),
            (Given("1", headers=(("k", "1"),)), "dropped"),
        ],
    ),
    one("Filter", [(Given("1"), "dropped")]),
    Case(
        "TopicNameMatches sees what routers before it did",
        {
            "transforms": "r, i, n",
            "transforms.r.type": "RegexRouter",
            "transforms.r.regex": "orders",
            "transforms.r.replacement": "copy",
            "transforms.i.type": "InsertField$Value",
            "transforms.i.static.field": "x",
            "transforms.i.static.value": "y",
            "transforms.i.predicate": "copied",
            "transforms.n.type": "InsertField$Value",
            "transforms.n.topic.field": "t",
            "transforms.n.predicate": "other",
            "transforms.n.negate": "true",
            "predicates": "copied,other",
            "predicates.copied.type": "TopicNameMatches",
            "predicates.copied.pattern": "co(py)?",
            "predicates.other.type": "TopicNameMatches",
            "predicates.other.pattern": "cop",
        },
        [(Given("{}"), {"topic": "copy", "value": '{"x":"y","t":"copy"}'})],
    ),
    Case(
        "ValueToKey and ExtractField make a plain key",
        {
            "transforms": "k,e",
            "transforms.k.type": "ValueToKey",
            "transforms.k.fields": "id",
            "transforms.e.type": "ExtractField$Key",
            "transforms.e.field": "id",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        },
        [(Given('{"id":"a-7"}', key="not json"), {"key": "a-7"}), (Given('{"id":7}'), {"key": "7"})],
    ),
]
