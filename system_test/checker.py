"""An independent reader of archives, built from FORMAT.md alone: no code of the project.

The standard library is enough for it, but for chunks in Arrow (pyarrow) or zstd (zstandard).

It follows marker, catalogs, indexes and gzip members of one partition, holds every rule of the format on the way, and
gives the records in order. Judged against what a foreign client reads from the topic, that settles whether each record
stands in the archive exactly once. Also a program::

    python -m system_test.checker FOLDER TOPIC BOOTSTRAP_SERVER
"""

import base64
import gzip
import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from system_test.support.topics import Header, Record, partition_count, read

Fetch = Callable[[str], bytes]
"""The object of a key below the archive's root; raises where there is none."""

FAN_OUT = 64
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
ANCESTOR_FIELDS = ["byte_length_uncompressed", "num_records", "byte_length", "byte_offset", "first_record_offset"]
FIELDS_OF_A_LINE = ["offset", "timestamp", "timestamp_type", "key", "headers", "value"]
COPIED_FIELDS = ("start_offset", "first_offset", "last_offset", "num_records", "min_timestamp", "max_timestamp")
SUMMED_FIELDS = ("num_records", "bytes")
SEALED_FORMATS = ("block-gzip-marker", "block-gzip-archive")
MAINTAINED = 2
"""The version of a marker that maintainers changed."""


class CheckFailedError(AssertionError):
    """The archive breaks a rule of its format, or is not what the topic holds; the message says where."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) that the archive says it does not hold."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class CheckedPartition:
    """What an archive holds of one partition, every rule of the format checked."""

    marker: dict[str, Any]
    entries: list[dict[str, Any]]
    indexes: list[dict[str, Any]]
    records: list[Record]
    gaps: list[Gap]
    """Those below the floor left out."""
    erased: list[range]
    """Offsets whose records were erased, in order."""

    @property
    def floor(self) -> int:
        """Below it nothing is archived any more."""
        floor: int = self.marker.get("maintenance", {}).get("pruned_before", 0)
        return floor

    @property
    def next_offset(self) -> int | None:
        """Where the next run goes on."""
        offset: int | None = self.marker["next_offset"]
        return offset


def folder_fetch(folder: Path) -> Fetch:
    return lambda key: (folder / key).read_bytes()


def partition_home(topic: str, partition: int) -> str:
    """Where the objects of a partition lie, with a slash at its end."""
    return f"topic={topic}/partition={partition:05d}/"


def check_partition(fetch: Fetch, topic: str, partition: int = 0) -> CheckedPartition:
    """All that the archive holds of a partition; CheckFailedError where it breaks a rule of the format."""
    home = partition_home(topic, partition)
    marker = _object(fetch(home + "last_chunk_index.json"), "block-gzip-marker", (1, MAINTAINED))
    _equal("maintenance" in marker, marker["version"] == MAINTAINED, f"{home}: the marker's version")
    _equal((marker["topic"], marker["partition"]), (topic, partition), f"{home}: the marker's owner")
    identity = _object(fetch("_archive.json"), "block-gzip-archive")
    _equal(marker["archive_id"], identity["archive_id"], f"{home}: the archive's id")
    floor = marker.get("maintenance", {}).get("pruned_before", 0)
    gaps = [*marker["gaps"]]
    entries = [entry for entry in _entries(fetch, home, marker, gaps) if entry["next_offset"] > floor]
    above = [Gap(max(gap["from"], floor), gap["to"], gap["reason"]) for gap in gaps if gap["to"] > floor]
    gaps_in_order = sorted(above, key=lambda gap: gap.start)
    _check_chain(home, marker, entries, gaps_in_order)
    indexes, records = [], list[Record]()
    for entry in entries:
        index = _index(fetch, home, entry)
        _equal((index["topic"], index["partition"]), (topic, partition), f"{entry['name']}: owner")
        _equal(index["archive_id"], identity["archive_id"], f"{entry['name']}: archive")
        indexes.append(index)
        records += records_of_chunk(fetch(home + index["data"]["name"]), index, entry["name"])
    offsets = [record.offset for record in records]
    _equal(offsets, sorted(set(offsets)), f"{home}: offsets in order, each once")
    for gap in gaps_in_order:
        inside = [record.offset for record in records if gap.start <= record.offset < gap.end]
        _require(not inside, f"{home}: records {inside[:3]} lie inside {gap}")
    erased = [range(gap.start, gap.end) for gap in gaps_in_order if gap.reason == "erased"]
    erased += [range(each["from"], each["to"]) for index in indexes for each in index.get("erased", ())]
    checked = CheckedPartition(marker, entries, indexes, records, gaps_in_order, erased)
    _check_tail_hash(home, checked)
    return checked


def check_against(checked: CheckedPartition, topic_records: Sequence[Record]) -> None:
    """The archive holds exactly these records of the topic, each once and in order, outside its recorded gaps.

    `topic_records` are all that can be read from the topic. What lies at or above the marker's next_offset is not
    archived yet and not asked for; CheckFailedError names the first offset that is wrong.
    """
    end = checked.next_offset or 0
    expected = [
        record
        for record in topic_records
        if record.offset < end and not any(gap.start <= record.offset < gap.end for gap in checked.gaps)
    ]
    check_equal(checked.records, expected)


def check_equal(archived: Sequence[Record], expected: Sequence[Record]) -> None:
    """Both are the same records; CheckFailedError names the first that differs."""
    for mine, theirs in zip(archived, expected, strict=False):
        _equal(mine, theirs, "an archived record")
    longer = max(archived, expected, key=len)
    alone = longer[min(len(archived), len(expected)) :]
    if alone:
        where = "the archive" if longer is archived else "the topic"
        raise CheckFailedError(f"{len(alone)} records stand in {where} only, the first is {_short(alone[0])}")


def tail_hash(record: Record) -> str:
    parts = [struct.pack(">qqb", record.offset, record.timestamp, record.timestamp_type)]
    for content in (record.key, record.value):
        parts.append(_hashed(content))
    parts.append(struct.pack(">I", len(record.headers)))
    for key, value in record.headers:
        parts += [_hashed(key.encode()), _hashed(value)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def record_of_line(line: bytes, timestamp_type: str) -> Record:
    """The record on one line of record format `json`."""
    fields = json.loads(line)
    names = [name.removesuffix("_base64") for name in fields]
    _equal(names, [name for name in FIELDS_OF_A_LINE if name in names], "the order of fields on a line")
    return Record(
        offset=fields["offset"],
        timestamp=fields["timestamp"],
        timestamp_type=TIMESTAMP_TYPES[fields.get("timestamp_type", timestamp_type)],
        key=_content(fields, "key"),
        value=_content(fields, "value"),
        headers=tuple(_header(header) for header in fields.get("headers", ())),
    )


def _check_tail_hash(home: str, checked: CheckedPartition) -> None:
    """It is of the newest record, which may have been erased, pruned or lost since."""
    marker, records = checked.marker, checked.records
    named = marker["tail"][-1]["last_offset"] if marker["tail"] else marker.get("last_offset")
    if records and records[-1].offset == named:
        _equal(marker["tail_hash"], tail_hash(records[-1]), f"{home}: tail_hash")
    elif named is not None and named >= checked.floor:
        gone = [*checked.erased, *(range(gap.start, gap.end) for gap in checked.gaps if gap.reason == "lost")]
        _require(any(named in each for each in gone), f"{home}: no record at {named}, which tail_hash is of")


def _entries(fetch: Fetch, home: str, marker: dict[str, Any], gaps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Chunk entries in offset order: the deepest catalogs first, the tail last. Adds the catalogs' gaps to `gaps`."""
    for level in range(len(marker["catalogs"]), 0, -1):
        references = marker["catalogs"][level - 1]
        _require(len(references) <= FAN_OUT, f"{home}: {len(references)} references of level {level}")
        for reference in references:
            yield from _below(fetch, home, reference, level, gaps)
    _require(len(marker["tail"]) <= FAN_OUT, f"{home}: a tail of {len(marker['tail'])} entries")
    yield from marker["tail"]


def _below(
    fetch: Fetch, home: str, reference: dict[str, Any], level: int, gaps: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    name = reference["name"]
    body = fetch(home + name)
    _equal(hashlib.sha256(body).hexdigest(), reference["sha256"], f"{name}: sha256")
    catalog = _object(body, "block-gzip-catalog")
    entries = catalog["entries"]
    _equal(catalog["level"], level, f"{name}: level")
    _require(len(entries) <= FAN_OUT, f"{name}: {len(entries)} entries")
    _require(bool(entries or (level == 1 and catalog["gaps"])), f"{name}: neither entries nor gaps")
    spans = [(each["start_offset"], each["next_offset"]) for each in entries]
    spans = sorted(spans + [(gap["from"], gap["to"]) for gap in catalog["gaps"]])
    start, end = reference["start_offset"], reference["next_offset"]
    if level == 1 and catalog["gaps"]:
        _require(start <= spans[0][0] and spans[-1][1] <= end, f"{name}: offsets outside [{start}, {end})")
    else:
        _equal((start, end), (spans[0][0], spans[-1][1]), f"{name}: start_offset and next_offset")
    timed = [entry for entry in entries if entry["num_records"]]
    times = [entry["min_timestamp"] for entry in timed], [entry["max_timestamp"] for entry in timed]
    bounds = (min(times[0], default=-1), max(times[1], default=-1))
    _equal((reference["min_timestamp"], reference["max_timestamp"]), bounds, f"{name}: timestamps")
    for field in SUMMED_FIELDS:
        _equal(reference[field], sum(entry[field] for entry in entries), f"{name}: {field}")
    _equal(reference["num_chunks"], sum(entry.get("num_chunks", 1) for entry in entries), f"{name}: num_chunks")
    gaps += catalog["gaps"]
    for entry in entries:
        if level == 1:
            yield entry
        else:
            yield from _below(fetch, home, entry, level - 1, gaps)


def _check_chain(home: str, marker: dict[str, Any], entries: list[dict[str, Any]], gaps: list[Gap]) -> None:
    """Each chunk starts where the one before ends, or where a recorded gap behind it does."""
    for gap, next_gap in pairwise(gaps):
        _require(gap.end <= next_gap.start, f"{home}: {gap} and {next_gap} overlap")
    for before, after in pairwise(entries):
        _check_joint(home, before["next_offset"], after["start_offset"], gaps)
    if marker["start_offset"] is None or (marker["version"] < MAINTAINED and not entries):
        return
    start = max(marker["start_offset"], marker.get("maintenance", {}).get("pruned_before", 0))
    _check_joint(home, start, entries[0]["start_offset"] if entries else marker["next_offset"], gaps)
    if entries:
        _check_joint(home, entries[-1]["next_offset"], marker["next_offset"], gaps)
    if marker["tail"] or marker["version"] < MAINTAINED:
        _equal(marker["last_chunk_index"], entries[-1]["name"], f"{home}: last_chunk_index")


def _check_joint(home: str, end: int, start: int, gaps: list[Gap]) -> None:
    if end == start:
        return
    between = [gap for gap in gaps if end <= gap.start and gap.end <= start]
    bridged = bool(between) and between[0].start == end and between[-1].end == start
    _require(bridged, f"{home}: nothing explains the offsets [{end}, {start})")


def _index(fetch: Fetch, home: str, entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["name"]
    body = fetch(home + name)
    _equal(hashlib.sha256(body).hexdigest(), entry["sha256"], f"{name}: sha256")
    index = _object(body, "block-gzip")
    for field in COPIED_FIELDS:
        _equal(index[field], entry[field], f"{name}: {field}")
    _equal(index["data"]["bytes"], entry["bytes"], f"{name}: bytes")
    _equal(
        sum(block["byte_length_uncompressed"] for block in index["chunks"]), entry["raw_bytes"], f"{name}: raw_bytes"
    )
    _require(index["next_offset"] <= entry["next_offset"], f"{name}: next_offset lies above its entry's")
    in_order = index["start_offset"] <= index["first_offset"] <= index["last_offset"] < index["next_offset"]
    _require(in_order, f"{name}: offsets out of order")
    _require(name.startswith(f"{index['start_offset']:020d}"), f"{name}: is not named by {index['start_offset']}")
    return index


def records_of_chunk(data: bytes, index: dict[str, Any], name: str) -> Iterator[Record]:
    """The records of a chunk, every block checked; and the chunk as a whole is what `zcat` or `zstd -d` makes of it.

    Raises CheckFailedError.
    """
    blocks, codec = index["chunks"], index["codec"]
    erased = [range(each["from"], each["to"]) for each in index.get("erased", ())]
    _equal(len(data), index["data"]["bytes"], f"{name}: bytes of data")
    _equal(hashlib.sha256(data).hexdigest(), index["data"]["sha256"], f"{name}: sha256 of data")
    position, contents, num_records = 0, list[bytes](), 0
    for block in blocks:
        _equal(list(block)[: len(ANCESTOR_FIELDS)], ANCESTOR_FIELDS, f"{name}: fields of a block")
        _equal(block["byte_offset"], position, f"{name}: byte_offset of a block")
        position += block["byte_length"]
        contents.append(_content_of_block(data[block["byte_offset"] : position], block, codec, name))
        records = list(records_of_content(contents[-1], index["record_format"], index["timestamp_type"]))
        _check_block(records, block, name)
        inside = [record.offset for record in records if any(record.offset in each for each in erased)]
        _require(not inside, f"{name}: records {inside[:3]} were erased")
        num_records += len(records)
        yield from records
    _equal(position, len(data), f"{name}: the end of the last block")
    _equal(num_records, index["num_records"], f"{name}: num_records")
    _equal(decompressed(data, codec), b"".join(contents), f"{name}: zcat and the blocks")
    bounds = (blocks[0]["first_record_offset"], blocks[-1]["last_record_offset"])
    _equal((index["first_offset"], index["last_offset"]), bounds, f"{name}: first and last offset")


def decompressed(data: bytes, codec: str) -> bytes:
    if codec == "gzip":
        return gzip.decompress(data)
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def records_of_content(content: bytes, record_format: str, timestamp_type: str = "CreateTime") -> Iterator[Record]:
    """The records of one block's contents, or of several blocks' in a row; of `json` or `arrow`."""
    if record_format == "arrow":
        source = pa.BufferReader(content)
        while source.tell() < len(content):
            for row in pa.ipc.open_stream(source).read_all().to_pylist():
                headers = tuple((header["key"], header["value"]) for header in row.pop("headers"))
                yield Record(**row, headers=headers)
        return
    _require(content.endswith(b"\n"), "a block does not end with a line")
    for line in content[:-1].split(b"\n"):
        yield record_of_line(line, timestamp_type)


def _content_of_block(stored: bytes, block: dict[str, Any], codec: str, name: str) -> bytes:
    inflater = zlib.decompressobj(31) if codec == "gzip" else zstandard.ZstdDecompressor().decompressobj()
    content = inflater.decompress(stored)
    _require(inflater.eof and not inflater.unused_data, f"{name}: a block is not exactly one member or frame")
    _equal(len(content), block["byte_length_uncompressed"], f"{name}: byte_length_uncompressed")
    _equal(zlib.crc32(content), block["crc32"], f"{name}: crc32")
    return content


def _check_block(records: list[Record], block: dict[str, Any], name: str) -> None:
    _equal(len(records), block["num_records"], f"{name}: num_records of a block")
    _equal(records[0].offset, block["first_record_offset"], f"{name}: first_record_offset")
    _equal(records[-1].offset, block["last_record_offset"], f"{name}: last_record_offset")
    timestamps = [record.timestamp for record in records]
    _equal(min(timestamps), block["min_timestamp"], f"{name}: min_timestamp")
    _equal(max(timestamps), block["max_timestamp"], f"{name}: max_timestamp")


def _object(body: bytes, expected: str, versions: Sequence[int] = (1,)) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(body)
    _equal(parsed["format"], expected, "format")
    _require(parsed["version"] in versions, f"{expected}: version {parsed['version']}")
    _equal(list(parsed)[:2], ["format", "version"], "the first two fields")
    if expected in SEALED_FORMATS:
        content, _, checksum = body.rpartition(b',"crc32":')
        _equal(checksum, b"%d}" % zlib.crc32(content), f"{expected}: the object's own checksum")
    return parsed


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    _require((name in fields) != (f"{name}_base64" in fields), f"{name} must stand exactly once in a record")
    if name not in fields:
        content = base64.b64decode(fields[f"{name}_base64"], validate=True)
        _require(not _is_utf8(content), f"{name} stands as base64 though it is UTF-8")
        return content
    text = fields[name]
    return None if text is None else text.encode()


def _header(fields: dict[str, Any]) -> Header:
    return fields["key"], _content({name: value for name, value in fields.items() if name != "key"}, "value")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hashed(content: bytes | None) -> bytes:
    return b"\0" if content is None else b"\1" + struct.pack(">Q", len(content)) + content


def _equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise CheckFailedError(f"{what}: expected {_short(expected)}, found {_short(found)}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailedError(message)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:400]}… ({len(text)} characters)"


def main(arguments: Iterable[str]) -> None:
    """Check a whole topic in a folder against the topic itself, and print a line for each partition."""
    folder, topic, bootstrap = arguments
    fetch = folder_fetch(Path(folder))
    for partition in range(partition_count(bootstrap, topic)):
        checked = check_partition(fetch, topic, partition)
        check_against(checked, read(bootstrap, topic, partition))
        chunks, records = len(checked.entries), len(checked.records)
        print(f"{topic}:{partition}: {records} records in {chunks} chunks, each exactly once and in order")


if __name__ == "__main__":
    main(sys.argv[1:])
