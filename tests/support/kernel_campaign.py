"""The C extension of index_format against Python, on records by chance and on lines that were changed.

`python -m tests.support.kernel_campaign --cases N --seed S`. Prints its rate as it goes; the first difference ends it
with exit code 1, the seed of its round and what differs.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from index_format import records
from index_format.errors import CorruptBlock
from index_format.kernel_choice import KERNEL
from index_format.record_formats import JsonLines, decode_in_python

ROUND_RECORDS = 500
"""Records of a batch by chance. As many changed lines are decoded beside it."""
ROUND_CASES = 2 * ROUND_RECORDS
SECONDS_BETWEEN_LINES = 10.0
EDGES = (-(2**63), -(2**63) + 1, -1, 0, 1, 9, 10, 99, 100, 12345, 10**18, 2**63 - 1)
PIECES = (
    *(b'"', b"\\", b"\\u0041", b"\\ud83d\\ude00", b"\\ud83d", b'\\"', b"\n", b"\x00", b"\x1f", b"\x7f", b"\x80"),
    *(b"\xff", b"\xc3\xa9", b"\xc3", b"\xe2\x82\xac", b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf0\x9f\x98\x80"),
    *(b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"plain text of some length ", b'{"a":1,"b":"x"}', b"_base64"),
    *(b'key_base64":"', b'value_base64":"', b"null", b"YQ==", b"=", b",", b"}", b"]"),
    *(b'"headers":[{"key":"h","value":null}],', b"-", b"0", b"18446744073709551616", b" "),
)


class Difference(Exception):
    """C and Python do not give the same."""


def content(chance: random.Random) -> bytes | None:
    """A key or a value of any kind: often text, often as long as a block of the processor's, or nearly."""
    kind = chance.randrange(10)
    if kind == 0:
        return None
    if kind == 1:
        return chance.randbytes(chance.randrange(40))
    if kind <= 4:
        return b"".join(chance.choice(PIECES) for _ in range(chance.randrange(12)))
    plain = b"abcdefgh" * (chance.choice((0, 1, 2, 4, 8, 40)))
    plain = plain[: max(len(plain) - chance.randrange(8), 0)]
    if kind <= 6:
        return plain
    at = chance.randrange(len(plain) + 1)
    return plain[:at] + chance.choice(PIECES) + plain[at:]


def headers(chance: random.Random) -> records.Headers:
    keys = ("", "a", "é", "\x00", 'q"', "a long name of a header, longer than 32 bytes")
    return [(chance.choice(keys), content(chance)) for _ in range(chance.choice((0, 0, 0, 1, 3)))]


def batch(chance: random.Random, rows: int) -> pa.RecordBatch:
    """Records by chance, sometimes without nulls, headers or other timestamp types at all."""
    contents = [content(chance) for _ in range(120)]
    if chance.random() < 0.3:
        contents = [each or b"" for each in contents]
    header_lists = [headers(chance) for _ in range(20)] if chance.random() < 0.5 else [[]]
    types = chance.choice(((0,), (1,), (-1, 0, 1)))
    numbers = [chance.choice(EDGES) if chance.random() < 0.3 else chance.getrandbits(41) for _ in range(2 * rows)]
    return records.batch_from_columns(
        numbers[:rows],
        numbers[rows:],
        chance.choices(types, k=rows),
        chance.choices(contents, k=rows),
        chance.choices(contents, k=rows),
        chance.choices(header_lists, k=rows),
    )


def changed(line: bytes, chance: random.Random) -> bytes:
    """A line with one to three changes, or cut."""
    found = bytearray(line)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                found[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                found[at:at] = chance.choice(PIECES)
            case 2:
                del found[at : at + chance.randrange(1, 6)]
            case 3:
                found[at : at + 1] = chance.choice(PIECES)
            case _:
                found[at:] = b"" if chance.random() < 0.5 else found[chance.randrange(len(found) + 1) :]
    return bytes(found)


def check_batch(whole: pa.RecordBatch, timestamp_type: int) -> bytes:
    """Compares lines, their ends, what they are decoded to, and the canonical bytes; gives the lines."""
    expected, expected_ends = JsonLines().encode_in_python(whole, timestamp_type)
    if whole.num_rows:
        data, ends = KERNEL.module.encode_json_lines(whole, timestamp_type)
        _same("lines", data, expected)
        _same("ends of lines", np.frombuffer(ends, np.int64).tolist(), expected_ends.tolist())
        check_lines(data, timestamp_type, must_decode=True)
    _same("canonical stream", KERNEL.module.canonical_stream(whole), bytes(records.canonical_stream_in_python(whole)))
    content_bytes, positions = records.digest_streams_in_python(whole)
    _same("digest streams", KERNEL.module.digest_streams(whole), (bytes(content_bytes), positions))
    return expected


def check_lines(raw: bytes, timestamp_type: int, *, must_decode: bool = False) -> bool:
    """Compares what bytes are decoded to, where C does not leave them to Python; whether it did decode them."""
    capsules = KERNEL.module.decode_json_lines(raw, timestamp_type)
    if capsules is None:
        if must_decode:
            raise Difference(f"C does not decode what Python encoded: {raw[:2000]!r}")
        return False
    found = records.batch_from_capsules(capsules)
    found.validate(full=True)
    try:
        expected = decode_in_python(raw, timestamp_type)
    except CorruptBlock as error:
        raise Difference(f"C decodes what Python refuses ({error.why}): {raw[:2000]!r}") from error
    if not found.equals(expected) or not found.schema.equals(expected.schema):
        raise Difference(f"decoded: {found.to_pylist()[:3]} of {raw[:2000]!r}")
    return True


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Difference(f"{what}: C gives {str(found)[:2000]}, Python {str(expected)[:2000]}")


def run_round(seed: int) -> None:
    """One batch, parts of it, and changed lines; raises Difference."""
    chance = random.Random(seed)
    whole = batch(chance, ROUND_RECORDS)
    first = chance.randrange(ROUND_RECORDS)
    for part in (whole, whole.slice(first, chance.randrange(ROUND_RECORDS - first + 1))):
        timestamp_type = chance.choice(tuple(records.TIMESTAMP_TYPES))
        data = check_batch(part, timestamp_type)
    lines = (data or check_batch(whole, 0)).splitlines(keepends=True)
    for _ in range(ROUND_RECORDS):
        check_lines(changed(chance.choice(lines), chance), chance.choice(tuple(records.TIMESTAMP_TYPES)))


def rounds(cases: int, seed: int) -> Iterator[int]:
    """Runs rounds until there were so many cases; gives how many there were after each. Raises Difference."""
    for number in range(-(-cases // ROUND_CASES)):
        try:
            run_round(seed + number)
        except Difference as error:
            raise Difference(f"seed {seed + number}: {error}") from error
        yield (number + 1) * ROUND_CASES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.kernel_campaign", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the others follow")
    arguments = parser.parse_args()
    if not KERNEL:
        print(f"the C extension is not in use: {KERNEL.why_not}")
        return 1
    begun = told = time.monotonic()
    done = 0
    try:
        for done in rounds(arguments.cases, arguments.seed):
            now = time.monotonic()
            if now - told >= SECONDS_BETWEEN_LINES:
                told = now
                print(f"{done} cases, {done / (now - begun):.0f} a second", flush=True)
    except Difference as error:
        print(error)
        return 1
    print(f"{done} cases without a difference, seed {arguments.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
