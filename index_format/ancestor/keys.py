"""Names in an old archive: `{date}/{topic}-{partition}-{first offset}.gz`, `.index.json` beside it, and the marker."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from index_format.keys import INDEX_SUFFIX, SEED_HOME, archive_key

DATA_SUFFIX = ".gz"
_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
# Numbers have at least the ancestor's digits, its forks' have more. A date is whatever the writer's zone made of it,
# and may carry the suffix of a name that was taken (profile seed).
_OBJECT = re.compile(
    r"(?P<folder>[0-9]{4}-[0-9]{2}-[0-9]{2}(?:~e[0-9]{1,19}-[0-9a-f]{8})?)/"
    rf"(?P<topic>{_TOPIC})-(?P<partition>[0-9]{{5,10}})-(?P<offset>[0-9]{{12,20}})(?P<suffix>\.gz|\.index\.json)"
)
_MARKER = re.compile(rf"last_chunk_index\.(?P<topic>{_TOPIC})-(?P<partition>[0-9]{{5,10}})\.txt")
_MARKER_BODY = re.compile(rb"(?:.*-)?([0-9]{1,20})(?:\.index\.json|\.gz)?", re.DOTALL)
MAX_OFFSET = 2**63 - 1


class Place(NamedTuple):
    """A topic-partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class FoundData(NamedTuple):
    """A data object and the indexes that may be its, the one beside it first."""

    key: str
    first_offset: int
    index_keys: tuple[str, ...]

    @property
    def own_index_key(self) -> str:
        return self.key.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX


@dataclass
class FoundPartition:
    """What a listing shows of one partition."""

    data: list[FoundData] = field(default_factory=list)
    marker_key: str | None = None
    indexes_without_data: list[str] = field(default_factory=list)


def marker_offset(body: bytes) -> int | None:
    """The first offset of the chunk that a marker names, by its key or as a plain number; None where it names none."""
    match = _MARKER_BODY.fullmatch(body.strip())
    return int(match[1]) if match and int(match[1]) <= MAX_OFFSET else None


def has_current_objects(keys: Iterable[str]) -> bool:
    """Whether a listing is that of a current archive of either layout."""
    identities = {archive_key("topic"), archive_key("seed")}
    return any(key in identities or key.startswith((SEED_HOME, "topic=")) for key in keys)


def found_partitions(keys: Iterable[str]) -> dict[Place, FoundPartition]:
    """The partitions that a listing of an old archive shows, in order; other names are passed over.

    Data and index belong together by topic, partition and offset, also where midnight put them into two folders.
    """
    found: dict[Place, FoundPartition] = {}
    data: dict[tuple[Place, int], list[str]] = {}
    indexes: dict[tuple[Place, int], list[str]] = {}
    for key in keys:
        if match := _OBJECT.fullmatch(key):
            place, offset = Place(match["topic"], int(match["partition"])), int(match["offset"])
            if place.topic not in (".", "..") and offset <= MAX_OFFSET:
                kind = data if match["suffix"] == DATA_SUFFIX else indexes
                kind.setdefault((place, offset), []).append(key)
                found.setdefault(place, FoundPartition())
        elif match := _MARKER.fullmatch(key):
            place = Place(match["topic"], int(match["partition"]))
            if place.topic not in (".", ".."):
                found.setdefault(place, FoundPartition()).marker_key = key
    for (place, offset), names in sorted(data.items()):
        candidates = sorted(indexes.pop((place, offset), []))
        beside = {name.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX for name in names}
        strays = tuple(key for key in candidates if key not in beside)
        for name in sorted(names):
            own = name.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX
            found[place].data.append(FoundData(name, offset, (own,) if own in candidates else strays))
    for (place, _), names in sorted(indexes.items()):
        found[place].indexes_without_data += sorted(names)
    return dict(sorted(found.items()))
