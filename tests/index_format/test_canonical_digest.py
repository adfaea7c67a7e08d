"""The digest against a second program that knows FORMAT.md alone."""

import hashlib
import random
import struct

import pytest

from index_format.records import Record, RecordsDigest, batch_from_records, canonical_bytes


def content(record: Record) -> bytes:
    """As FORMAT.md says it, record by record."""

    def field(part: bytes | None) -> bytes:
        return b"\0" if part is None else b"\1" + struct.pack(">Q", len(part)) + part

    parts = [struct.pack(">q", record.timestamp), field(record.key), field(record.value)]
    parts.append(struct.pack(">I", len(record.headers)))
    parts += [field(key.encode()) + field(value) for key, value in record.headers]
    return b"".join(parts)


def some_records(rng: random.Random, count: int, most_headers: int) -> list[Record]:
    def text() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 1, 5, 300]))

    offset, made = 0, []
    for _ in range(count):
        offset += rng.randint(1, 3)
        headers = [(rng.choice(["", "h", "ü"]), text()) for _ in range(rng.randint(0, most_headers))]
        made.append(Record(offset, rng.randint(-1, 2**62), rng.choice([-1, 0, 1]), text(), text(), headers))
    return made


@pytest.mark.parametrize("most_headers", [0, 1, 4])
def test_the_digest_is_that_of_the_records_however_they_are_cut(most_headers: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    made = some_records(rng, 200, most_headers)
    digest = RecordsDigest()
    whole, start = batch_from_records(made), 0
    while start < len(made):
        digest.update(whole.slice(start, step := rng.randint(0, 40)))
        start += step
    assert digest.content == hashlib.sha256(b"".join(map(content, made))).hexdigest(), seed
    places = b"".join(struct.pack(">qb", record.offset, record.timestamp_type) for record in made)
    assert digest.positions == hashlib.sha256(places).hexdigest(), seed


def test_the_content_is_the_canonical_form_without_the_place() -> None:
    (record,) = some_records(random.Random(1), 1, 3)
    whole = canonical_bytes(record)
    assert content(record) == whole[8:16] + whole[17:]


def test_no_records_have_the_hash_of_nothing() -> None:
    digest = RecordsDigest()
    digest.update(batch_from_records([]))
    assert digest.content == digest.positions == hashlib.sha256().hexdigest()
