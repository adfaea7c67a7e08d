"""What a batch of Spark's Kafka source read, by the files that Spark keeps of it in the checkpoint.

A batch reads from where the one before it ended to offsets that Spark writes down before it begins. With
`failOnDataLoss` it fails where it cannot have all of them, and where a partition that came does not begin at 0.
"""

import json
from collections.abc import Callable, Mapping

from archiver.commit.batch import Reading
from archiver.spark.sorting import Place

ReadFile = Callable[[str], str | None]
"""A file of the checkpoint by its path inside, None where it cannot be had."""

INITIAL_OFFSETS = "sources/0/0"
VERSION = "v1"
"""Of both kinds of files; in another one what is read here may mean anything."""

Offsets = Mapping[Place, int]


def readings_of(read_file: ReadFile, batch_id: int) -> dict[Place, Reading]:
    """What the batch read of each partition; empty where the files do not say so for certain."""
    after = logged_offsets(read_file(f"offsets/{batch_id}"))
    if batch_id > 0:
        before = logged_offsets(read_file(f"offsets/{batch_id - 1}"))
    else:
        before = initial_offsets(read_file(INITIAL_OFFSETS))
    if before is None or after is None:
        return {}
    ranges = {place: Reading(before.get(place, 0), end) for place, end in after.items()}
    return {place: reading for place, reading in ranges.items() if reading.start < reading.end}


def logged_offsets(text: str | None) -> Offsets | None:
    """Where a batch ends, of a file `offsets/N`: version, metadata, and a line for the only source."""
    match (text or "").splitlines():
        case [version, _, source] if version == VERSION:
            return _offsets(source)
    return None


def initial_offsets(text: str | None) -> Offsets | None:
    """Where the first batch begins: the source's own file, which starts with a zero byte."""
    match (text or "").removeprefix("\0").splitlines():
        case [version, source] if version == VERSION:
            return _offsets(source)
    return None


def _offsets(line: str) -> Offsets | None:
    try:
        found = {
            Place(topic, int(partition)): offset
            for topic, partitions in json.loads(line).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError):
        return None
    # Below zero stand words such as latest, of which nobody knows what they meant.
    return found if all(type(offset) is int and offset >= 0 for offset in found.values()) else None
