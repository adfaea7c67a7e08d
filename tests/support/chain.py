"""Reads a committed chain back with the standard library alone, so that it shares no fault with the code under test."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

Json = dict[str, Any]
MARKER = "last_chunk_index.json"


class Line(NamedTuple):
    """One archived record as far as every record format tells: where it stands and its value."""

    offset: int
    value: bytes | None


class Chain(NamedTuple):
    """What readers believe of a partition."""

    lines: list[Line]
    start_offset: int
    next_offset: int
    gaps: list[tuple[int, int]]
    marker: Json


def read_chain(objects: Mapping[str, bytes], home: str, chunks: str) -> Chain | None:
    """The chain of the partition whose marker lies in `home` and whose names are relative to `chunks`.

    None before the first commit. AssertionError where anything does not fit.
    """
    body = objects.get(home + MARKER)
    if body:
        content, _, checksum = body.rpartition(b',"crc32":')
        assert checksum == b"%d}" % zlib.crc32(content), "the marker's checksum"
    marker = _parsed(body) if body else {}
    if marker.get("next_offset") is None:
        assert not marker.get("tail") and not any(marker.get("catalogs", ()))
        return None
    entries, gaps = [], [(gap["from"], gap["to"]) for gap in marker["gaps"]]
    for level, references in reversed(list(enumerate(marker["catalogs"], 1))):
        for reference in references:
            entries += list(_catalog(objects, home, reference, level, gaps))
    entries += marker["tail"]
    _check_contiguity(marker, entries, gaps)
    lines = [line for entry in entries for line in _chunk(objects, chunks, entry)]
    assert all(before.offset < after.offset for before, after in pairwise(lines)), "records twice or out of order"
    assert not any(start <= line.offset < end for line in lines for start, end in gaps), "a record inside a gap"
    return Chain(lines, marker["start_offset"], marker["next_offset"], sorted(gaps), marker)


def check_history(versions: Mapping[str, Sequence[bytes]], home: str) -> None:
    """What was committed once stays: markers only go forward, and nothing else ever changes."""
    check_write_once(versions, home)
    check_markers(versions, home)


def check_write_once(versions: Mapping[str, Sequence[bytes]], home: str) -> None:
    """Nothing but the marker ever changes, not even an orphan."""
    changed = [key for key, bodies in versions.items() if len(bodies) > 1 and key != home + MARKER]
    assert not changed, f"write-once objects were written again: {changed}"


def check_markers(versions: Mapping[str, Sequence[bytes]], home: str) -> None:
    """Markers only go forward, and no entry is replaced."""
    marker_key = home + MARKER
    markers = [_parsed(body) for body in versions.get(marker_key, ())]
    committed: dict[int, tuple[str, str]] = {}
    for before, after in pairwise(markers):
        assert (after["next_offset"] or 0) >= (before["next_offset"] or 0), "next_offset went back"
        assert after["epoch"] >= before["epoch"], "the epoch went back"
    for entry in (entry for marker in markers for entry in marker["tail"]):
        known = committed.setdefault(entry["start_offset"], (entry["name"], entry["sha256"]))
        assert known == (entry["name"], entry["sha256"]), "a committed chunk was replaced"


def _catalog(
    objects: Mapping[str, bytes], home: str, reference: Json, level: int, gaps: list[tuple[int, int]]
) -> Iterator[Json]:
    body = objects[home + reference["name"]]
    assert hashlib.sha256(body).hexdigest() == reference["sha256"]
    catalog = json.loads(body)
    assert catalog["level"] == level and 1 <= len(catalog["entries"]) <= 64
    gaps += [(gap["from"], gap["to"]) for gap in catalog.get("gaps", ())]
    entries: list[Json] = []
    for entry in catalog["entries"]:
        entries += [entry] if level == 1 else _catalog(objects, home, entry, level - 1, gaps)
    assert (entries[0]["start_offset"], entries[-1]["next_offset"]) == (
        reference["start_offset"],
        reference["next_offset"],
    )
    assert sum(entry["num_records"] for entry in entries) == reference["num_records"]
    assert sum(entry["bytes"] for entry in entries) == reference["bytes"]
    assert len(entries) == reference["num_chunks"]
    yield from entries


def _check_contiguity(marker: Json, entries: list[Json], gaps: list[tuple[int, int]]) -> None:
    """Every entry starts where the one before ends, or gaps lie between: the first begins there, the last ends here."""
    end, in_order = marker["start_offset"], sorted(gaps)
    first = 0
    for entry in entries:
        start = entry["start_offset"]
        while first < len(in_order) and in_order[first][0] < end:
            first += 1
        behind = first
        while behind < len(in_order) and in_order[behind][0] < start:
            behind += 1
        if start != end:
            assert behind > first, f"nothing explains [{end}..{start})"
            assert (in_order[first][0], in_order[behind - 1][1]) == (end, start), in_order[first:behind]
        end, first = entry["next_offset"], behind
    assert end <= marker["next_offset"]
    if marker["tail"]:
        assert len(marker["tail"]) <= 64
        assert marker["last_chunk_index"] == marker["tail"][-1]["name"]


def _chunk(objects: Mapping[str, bytes], chunks: str, entry: Json) -> list[Line]:
    body = objects[chunks + entry["name"]]
    index = _parsed(body)
    digest, lines = _inflated(body, objects[chunks + index["data"]["name"]])
    assert digest == entry["sha256"], "the index is not the committed one"
    for name in ("start_offset", "first_offset", "last_offset", "num_records", "min_timestamp", "max_timestamp"):
        assert index[name] == entry[name], name
    assert index["next_offset"] <= entry["next_offset"]
    assert index["data"]["bytes"] == entry["bytes"]
    return lines


@lru_cache(maxsize=1000)
def _parsed(body: bytes) -> Json:
    """Simulations look at the same objects again and again."""
    parsed: Json = json.loads(body)
    return parsed


@lru_cache(maxsize=1000)
def _inflated(index_body: bytes, data: bytes) -> tuple[str, list[Line]]:
    """The index's SHA-256, and the lines of the data that it describes."""
    index = _parsed(index_body)
    assert hashlib.sha256(data).hexdigest() == index["data"]["sha256"], "the data is not the indexed one"
    assert len(data) == index["data"]["bytes"]
    position, lines = 0, list[Line]()
    for block in index["chunks"]:
        assert block["byte_offset"] == position
        position += block["byte_length"]
        inflater = zlib.decompressobj(31)
        raw = inflater.decompress(data[block["byte_offset"] : position])
        assert inflater.eof and not inflater.unused_data
        assert len(raw) == block["byte_length_uncompressed"] and zlib.crc32(raw) == block["crc32"]
        found = list(_lines(raw, index["record_format"], block["first_record_offset"]))
        assert len(found) == block["num_records"]
        assert (found[0].offset, found[-1].offset) == (block["first_record_offset"], block["last_record_offset"])
        lines += found
    assert position == len(data)
    assert (lines[0].offset, lines[-1].offset, len(lines)) == (
        index["first_offset"],
        index["last_offset"],
        index["num_records"],
    )
    return hashlib.sha256(index_body).hexdigest(), lines


def _lines(raw: bytes, record_format: str, first_offset: int) -> Iterator[Line]:
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n")):
        if record_format == "text":
            yield Line(first_offset + number, line)
            continue
        record = json.loads(line)
        value = record.get("value")
        encoded = record.get("value_base64")
        yield Line(
            record["offset"],
            base64.b64decode(encoded) if encoded is not None else None if value is None else value.encode(),
        )
