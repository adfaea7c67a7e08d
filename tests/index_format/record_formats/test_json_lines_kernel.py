"""Record format json in C: equal to Python, within bounds of memory, whatever the bytes are."""

import base64
import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index_format.errors import CorruptBlock
from index_format.kernel_choice import KERNEL
from index_format.record_formats import JsonLines, decode_in_python
from index_format.records import SCHEMA, Record, batch_from_capsules, batch_from_records
from tests.index_format.builders import record
from tests.support.kernel_campaign import changed, check_batch, check_lines, rounds

pytestmark = pytest.mark.skipif(not KERNEL, reason=KERNEL.why_not)

CASES = 100_000


def lines_of(*rows: Record, timestamp_type: int = 0) -> bytes:
    return JsonLines().encode_in_python(batch_from_records(rows), timestamp_type)[0]


@pytest.mark.slow
def test_c_and_python_give_the_same() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for _ in rounds(CASES, seed):
        pass


@pytest.mark.slow
def test_every_length_about_a_block_of_the_processors_and_every_place_in_it() -> None:
    """Each byte that is written otherwise than it is stands at each place of texts of each length."""
    rows = [
        record(offset, b"a" * place + special + b"b" * (length - place - 1), b"k" * length)
        for offset, (special, length, place) in enumerate(
            (special, length, place)
            for special in (b'"', b"\\", b"\n", b"\x01", "é".encode(), b"\xff")
            for length in range(1, 50)
            for place in range(length)
        )
    ]
    check_batch(batch_from_records(rows), 0)
    for row in (*rows[:200], rows[-1]):
        check_batch(batch_from_records([row]), 0)


def test_no_records_are_left_to_python() -> None:
    empty = batch_from_records([])
    assert KERNEL.module.encode_json_lines(empty, 0) is None
    assert JsonLines().encode(empty, 0)[0] == b""
    assert KERNEL.module.decode_json_lines(b"", 0) is None
    check_batch(empty, 0)
    check_batch(batch_from_records([record(1), record(2)]).slice(1, 0), 0)


def test_columns_of_other_types_are_left_to_python() -> None:
    batch = batch_from_records([record(1, b"v")])
    at = SCHEMA.names.index("value")
    other = batch.set_column(at, "value", batch.column("value").cast(pa.large_binary()))
    assert KERNEL.module.encode_json_lines(other, 0) is None
    assert KERNEL.module.canonical_stream(other) is None
    assert KERNEL.module.digest_streams(other) is None
    assert KERNEL.module.encode_json_lines(batch.rename_columns([*SCHEMA.names[:-1], "others"]), 0) is None


@pytest.mark.parametrize("wrong", [None, 7, b"", object()])
def test_what_is_not_a_batch_is_an_error(wrong: object) -> None:
    with pytest.raises(AttributeError, match="__arrow_c_array__"):
        KERNEL.module.encode_json_lines(wrong, 0)


def test_what_lies_about_being_a_batch_is_an_error() -> None:
    class Liar:
        def __init__(self, answer: object) -> None:
            self.answer = answer

        def __arrow_c_array__(self) -> object:
            return self.answer

    for answer in (None, (), (1, 2), batch_from_records([]).__arrow_c_array__()[::-1]):
        with pytest.raises((TypeError, ValueError)):
            KERNEL.module.canonical_stream(Liar(answer))


def test_an_unknown_timestamp_type_is_left_to_python() -> None:
    batch = batch_from_records([record(1, timestamp_type=5)])
    assert KERNEL.module.encode_json_lines(batch, 0) is None
    assert KERNEL.module.encode_json_lines(batch, 5) is not None


def test_a_line_that_is_cut_anywhere_is_left_to_python() -> None:
    whole = lines_of(
        record(1, b'a "quoted" value\xc3\xa9', b"\xff\xfe", [("h", b"\xff"), ("i", None)], timestamp_type=1)
    )
    for length in range(len(whole)):
        assert not check_lines(whole[:length], 0)
        assert not check_lines(whole + whole[:length], 0) or length == 0
    assert check_lines(whole, 0)


@pytest.mark.parametrize("key", ['"key_base64":"aA=="', '"key":null', '"key":"\\ud800"', '"key":1', '"k":"h"'])
def test_a_header_whose_key_is_not_text_is_left_to_python(key: str) -> None:
    whole = lines_of(record(1, headers=[("h", b"x")]))
    assert check_lines(whole, 0)
    assert not check_lines(whole.replace(b'"key":"h"', key.encode()), 0)


def test_nothing_after_the_bytes_is_read() -> None:
    """A text that does not end is not ended by what lies behind it in memory."""
    whole = lines_of(record(1, b"v" * 100))
    for length in range(1, len(whole)):
        assert KERNEL.module.decode_json_lines(memoryview(whole)[:length], 0) is None


def test_an_error_is_that_of_python() -> None:
    wrong = lines_of(record(1, b"v")).replace(b'"v"', b'"\\ud800"')
    with pytest.raises(CorruptBlock) as in_python:
        decode_in_python(wrong, 0)
    with pytest.raises(CorruptBlock) as found:
        JsonLines().decode(wrong, 0, 0)
    assert found.value.why == in_python.value.why


@pytest.mark.slow
def test_a_large_record_is_equal() -> None:
    """20 MB: of text with much to escape, and of bytes."""
    for value in (b'{"a":"b\\n"}' * 1_900_000, bytes(range(256)) * 80_000):
        check_batch(batch_from_records([record(0), record(1, value), record(2)]), 0)


def test_changed_lines_of_a_block_are_equal_or_left_to_python() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = lines_of(*(record(offset, b'{"a":"%d"}' % offset) for offset in range(50)))
    for _ in range(300):
        check_lines(changed(whole, chance), 0)


@pytest.mark.slow
def test_lines_are_made_in_their_own_size() -> None:
    """Nothing is allocated for what might have been escaped: 64 MB of text take the lines and little beside them."""
    program = """
import resource
from index_format.kernel_choice import KERNEL
from index_format.records import batch_from_columns
batch = batch_from_columns(range(64), [0] * 64, [0] * 64, [None] * 64, [b"v" * 1024 * 1024] * 64, [None] * 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines, _ = KERNEL.module.encode_json_lines(batch, 0)
between = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
capsules = KERNEL.module.decode_json_lines(lines, 0)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(between - before, after - between)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    scale = 1024 if sys.platform == "darwin" else 1
    for grown in run.stdout.split():
        assert int(grown) / scale < 70 * 1024


@pytest.mark.slow
def test_a_block_of_empty_lines_takes_no_memory_for_records() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert KERNEL.module.decode_json_lines(b"\n" * 64_000_000, 0) is None
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (80 * 1024 * 1024 if sys.platform == "darwin" else 80 * 1024)


def test_what_the_fuzzer_kept_is_equal_or_left_to_python() -> None:
    """Inputs that each reached code that none before them did; `make fuzz` adds to them."""
    kept = json.loads(Path(__file__).with_name("decode_corpus.json").read_text())
    decoded = [check_lines(base64.b64decode(each), 0) for each in kept]
    assert any(decoded)
    assert not all(decoded)


def test_newlines_are_counted() -> None:
    chance = random.Random(1)
    for length in (*range(70), 4080, 4081, 100_000):
        raw = bytes(chance.choice(b"\n\nab") for _ in range(length))
        assert KERNEL.module.count_lines(raw) == raw.count(b"\n")
        assert KERNEL.module.count_lines(bytearray(raw)) == raw.count(b"\n")


def test_a_batch_outlives_the_lines_and_the_capsules() -> None:
    raw = bytearray(lines_of(record(7, b"v" * 100, b"k", [("h", b"x")])))
    batch = batch_from_capsules(KERNEL.module.decode_json_lines(raw, 0))
    raw[:] = b"\0" * len(raw)
    assert batch.to_pylist()[0]["value"] == b"v" * 100
    assert np.array_equal(batch.column("offset").to_numpy(), [7])


def test_capsules_that_nobody_takes_are_freed() -> None:
    raw = lines_of(record(7, b"v" * 1_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        KERNEL.module.decode_json_lines(raw, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (60 * 1024 * 1024 if sys.platform == "darwin" else 60 * 1024)
