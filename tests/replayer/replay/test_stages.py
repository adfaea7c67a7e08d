"""Edits of records on their way to the target, against the same edits made record by record."""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from blockgz.errors import UsageError
from index_format.records import SCHEMA, Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit, ReplayRefused
from replayer.replay.pace import (
    CREDIT_SECONDS,
    TICK_SECONDS,
    Commands,
    Pace,
    SharedRate,
    make_pace,
    parse_rate,
    parse_speed,
    record_bytes,
)
from replayer.replay.pipeline import (
    LONGEST_VECTORISED,
    AddHeader,
    AddProvenance,
    DropTombstones,
    RoutedBatch,
    Router,
    Routing,
    ScannedBatch,
    Stage,
    StripHeaders,
    Timestamps,
    TransformStage,
    key_hashes,
    murmur2,
    parse_header,
    parse_routing,
    parse_timestamps,
)
from replayer.transforms.chain import build_chain
from tests.support.archives import records

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
        (AddHeader("a", b"1"), lambda r: r._replace(headers=(*r.headers, ("a", b"1")))),
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
    monkeypatch.setattr("replayer.replay.pipeline.wall_clock", lambda: NOW)
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


JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hash_in_java"), JAVA.items())
def test_hashes_are_those_of_java(key: bytes, hash_in_java: int) -> None:
    assert murmur2(key) == hash_in_java % 2**32
    assert key_hashes(pa.array([key], pa.binary())).tolist() == [hash_in_java % 2**32]


def test_many_keys_hash_as_each_of_them() -> None:
    chance = random.Random(SEED)
    lengths = [*range(17), 100, LONGEST_VECTORISED - 1, LONGEST_VECTORISED, LONGEST_VECTORISED + 1, 5000]
    keys = [None if chance.random() < 0.1 else chance.randbytes(chance.choice(lengths)) for _ in range(600)]
    whole = pa.array(keys, pa.binary())
    for start, length in ((0, 600), (7, 593), (7, 100), (600, 0)):
        hashes = key_hashes(whole.slice(start, length)).tolist()
        for key, found in zip(keys[start : start + length], hashes, strict=True):
            assert key is None or found == murmur2(key), f"seed {SEED}, key {key!r}"


def routed_records(count: int, keyless: float = 0.2) -> list[Record]:
    chance = random.Random(SEED)
    return [
        Record(2 * n, n, 0, None if chance.random() < keyless else b"k%d" % chance.randrange(50), b"%d" % n, ())
        for n in range(count)
    ]


def routed(router: Router, source: int, rows: Sequence[Record], size: int) -> dict[int, list[Record]]:
    """By target, the records of a source that is read in batches of `size`."""
    found: dict[int, list[Record]] = defaultdict(list)
    for start in range(0, len(rows), size):
        pieces: Sequence[RoutedBatch] = router.route(
            ScannedBatch(source, batch_from_records(rows[start : start + size]))
        )
        assert len({piece.target for piece in pieces}) == len(pieces)
        for target, batch in pieces:
            found[target] += iter_records(batch)
    return found


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_by_key_keeps_the_order_of_a_key_however_batches_are_cut(partitions: int) -> None:
    rows = routed_records(1000)
    router = Routing("by-key", partitions)
    found = routed(router, 5, rows, 1000)
    assert found == routed(router, 5, rows, 7)
    assert set(found) <= set(router.targets(5))
    for target, got in found.items():
        assert got == [row for row in rows if row in set(got)], "order is kept"
        for row in got:
            expected = (
                (row.offset + 5) % partitions if row.key is None else (murmur2(row.key) & 0x7FFFFFFF) % partitions
            )
            assert target == expected
    assert sum(map(len, found.values())) == len(rows)


def test_an_empty_key_is_a_key() -> None:
    batch = batch_from_records([Record(n, 0, 0, b"", b"", ()) for n in range(4)])
    ((target, together),) = Routing("by-key", 7).route(ScannedBatch(0, batch))
    assert (target, together.num_rows) == ((murmur2(b"") & 0x7FFFFFFF) % 7, 4)


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (Routing(), {0: 0, 5: 5}),
        (Routing("number", 3), {0: 0, 2: 2, 3: 0, 5: 2}),
        (Routing("map", places=tuple({0: 4, 5: 4}.items())), {0: 4, 5: 4}),
    ],
    ids=["keep", "number", "map"],
)
def test_whole_partitions(router: Router, expected: dict[int, int]) -> None:
    rows = routed_records(10)
    for source, target in expected.items():
        assert routed(router, source, rows, 4) == {target: rows}
        assert list(router.targets(source)) == [target]


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("keep", Routing("keep")),
        ("by-key", Routing("by-key")),
        ("by-key:12", Routing("by-key", 12)),
        ("6", Routing("number", 6)),
        ("0:5", Routing("map", places=((0, 5),))),
        ("2-3:1,0:2", Routing("map", places=((0, 2), (2, 1), (3, 1)))),
    ],
)
def test_requests(text: str, request_: Routing) -> None:
    assert parse_routing(text) == request_


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0", "orders:0,2-4"),
        ("0,2-4", "orders:0,2-4"),
        ("key", "by-key"),
        ("by-key:", "by-key"),
        ("by-key:x", "by-key"),
        ("-1", "orders:"),
        ("1:", "SOURCE:TARGET"),
        ("3-1:0", "FIRST-LAST"),
        ("1:2,1:3", "twice"),
        ("0-999999999:0", "FIRST-LAST"),
        ("", "by-key"),
    ],
)
def test_requests_that_mean_nothing(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_routing(text)
    assert word in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"


def test_by_key_takes_the_number_of_the_target() -> None:
    assert parse_routing("by-key").for_target("copy", 4) == Routing("by-key", 4)
    with pytest.raises(ReplayRefused) as caught:
        parse_routing("by-key:8").for_target("copy", 4)
    assert "has 4 partitions" in caught.value.what
    assert caught.value.remedy


def test_a_map_must_say_where_every_partition_goes() -> None:
    with pytest.raises(ReplayRefused, match="where partition 3 goes") as caught:
        parse_routing("0:1").for_target("copy", 4).targets(3)
    assert "3:TARGET" in str(caught.value.remedy)


def test_the_number_of_partitions_of_a_new_topic() -> None:
    wanted = {"keep": 6, "by-key": 6, "by-key:12": 12, "2": 2, "0:8,1:1": 9}
    assert {text: parse_routing(text).partitions_for(6) for text in wanted} == wanted


def seconds_for(pace: Pace, count: int, timestamps: list[int] | None = None) -> float:
    """How long it takes until all have gone, by a clock that jumps to when it is worth asking again."""
    batch = batch_from_records(records(range(count), timestamps=timestamps))
    elapsed = 0.0
    for _ in range(100_000):
        due = pace.due(batch, elapsed)
        assert due.rows <= batch.num_rows
        if due.rows:
            pace.sent(due.rows, due.rows * 100, elapsed)
            batch = batch.slice(due.rows)
            if not batch.num_rows:
                return elapsed
        else:
            assert due.seconds > 0
            elapsed += due.seconds
    raise AssertionError("it takes for ever")


@pytest.mark.parametrize(
    ("rate", "count", "seconds"),
    [("1000/s", 500, 0.5), ("2/s", 10, 5.0), ("0.5/s", 3, 6.0), ("1000000/s", 100, TICK_SECONDS), ("1/s", 1, 1.0)],
)
def test_records_a_second(rate: str, count: int, seconds: float) -> None:
    assert seconds_for(parse_rate(rate), count) == pytest.approx(seconds, abs=2 * TICK_SECONDS)


def test_bytes_a_second() -> None:
    assert seconds_for(parse_rate("10kB/s"), 1000) == pytest.approx(10, abs=0.2)


def test_a_record_larger_than_the_rate_goes_whole() -> None:
    assert seconds_for(parse_rate("10B/s"), 3) == pytest.approx(20, abs=1)


def test_a_stall_is_not_made_up_for_without_end() -> None:
    pace = parse_rate("100/s")
    batch = batch_from_records(records(range(1000)))
    pace.due(batch, 0.0)
    assert pace.due(batch, 3600.0).rows == 100 * CREDIT_SECONDS


@pytest.mark.parametrize("rate", ["1000/s", "10kB/s"])
def test_replays_that_share_a_rate_get_no_more_together(rate: str) -> None:
    now = 0.0
    shared = SharedRate(parse_rate(rate), lambda: now)
    batch = batch_from_records(records(range(100)))
    most = 1000 if rate == "1000/s" else 10_000 / record_bytes(batch).mean()
    gone = 0
    for tick in range(1001):
        now = tick / 100
        for replay in range(8):
            due = shared.due(batch, 5.0 * replay)
            shared.sent(due.rows, due.rows, 5.0 * replay)
            gone += due.rows
    assert 9 * most < gone < 11 * most + 100


@pytest.mark.parametrize(("speed", "seconds"), [("1x", 9.0), ("10x", 0.9), ("0.5x", 18.0)])
def test_records_follow_as_they_once_did(speed: str, seconds: float) -> None:
    times = [1_760_000_000_000 + 1000 * number for number in range(10)]
    assert seconds_for(parse_speed(speed), 10, times) == pytest.approx(seconds, abs=2 * TICK_SECONDS)


def test_times_that_go_back_or_are_missing_hold_nothing_up() -> None:
    assert seconds_for(parse_speed("1x"), 6, [-1, 5000, 3000, -1, 7000, 6000]) == pytest.approx(2, abs=0.1)


def test_both_hold() -> None:
    times = [1000 * number for number in range(10)]
    assert seconds_for(make_pace("1/s", "10x"), 10, times) == pytest.approx(10, abs=0.2)
    assert seconds_for(make_pace("100/s", "1x"), 10, times) == pytest.approx(9, abs=0.2)
    assert make_pace("100/s", "1x").by_time
    assert not make_pace("100/s", None).by_time


@pytest.mark.parametrize("text", ["5000", "0/s", "5000/m", "20mb/s", "-1/s", "/s", "1e3/s", "٣/s"])
def test_what_is_not_a_rate(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1", "0x", "x", "-1x", "1 x"])
def test_what_is_not_a_speed(text: str) -> None:
    with pytest.raises(UsageError, match="is not a speed"):
        parse_speed(text)


@pytest.mark.parametrize(
    ("rate", "speed", "seconds"),
    [("100/s", None, 40), ("2kB/s", None, 200), (None, "2x", 30), ("100/s", "1x", 60), (None, None, 0.015)],
)
def test_how_long_a_replay_takes_at_least(rate: str | None, speed: str | None, seconds: float) -> None:
    assert make_pace(rate, speed).seconds(4_000, 400_000, 60_000) == pytest.approx(seconds)


def test_lanes_share_one_rate() -> None:
    pace = make_pace("1000/s", "1000000x")
    batch = batch_from_records(records(range(1000)))
    sent = 0
    for tick in range(1, 41):
        for _lane in range(10):
            due = pace.due(batch, tick * TICK_SECONDS)
            pace.sent(due.rows, 0, tick * TICK_SECONDS)
            sent += due.rows
    assert sent == pytest.approx(1000 * 40 * TICK_SECONDS, rel=0.05)


@pytest.mark.slow
def test_another_rate_begins_with_nothing_to_catch_up_with() -> None:
    pace = make_pace("1/s", None)
    batch = batch_from_records(records(range(100_000)))
    pace.due(batch, 0.0)
    pace.limit(parse_rate("1000/s"))
    assert pace.due(batch, 500.0).rows == 0
    assert pace.due(batch, 500.5).rows == 500
    pace.limit(None)
    assert pace.due(batch, 500.5).rows == 100_000


def test_the_speed_stays_when_the_rate_changes() -> None:
    times = [1000 * number for number in range(10)]
    pace = make_pace("1/s", "10x")
    pace.limit(None)
    assert pace.by_time
    assert seconds_for(pace, 10, times) == pytest.approx(0.9, abs=0.2)


@pytest.mark.parametrize("told", [Commands.resume, Commands.end, Commands.wake])
def test_what_was_told_before_the_wait_ends_it(told: Callable[[Commands], None]) -> None:
    """A commit may lie between the look at `paused` and the wait."""

    async def waited() -> bool:
        commands = Commands()
        commands.pause()
        await commands.wait(0.0)
        told(commands)
        return await asyncio.wait_for(commands.wait(None), 10) is None

    assert asyncio.run(waited())
