"""Names of objects, built and parsed in one place (FORMAT.md, "Objects").

All keys are relative to the archive's root; a store puts its own prefix before them.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from index_format.errors import BadName, MalformedObject

ARCHIVE_OBJECT = "_archive.json"
INVENTORY_OBJECT = "_inventory.json"
TOPIC_OBJECT = "_topic.json"
TOPIC_CONFIG_OBJECT = "_topic_config.json"
MARKER_OBJECT = "last_chunk_index.json"
INDEX_SUFFIX = ".index.json"
SEED_INDEX_SUFFIX = ".meta.json"
SEED_HOME = "_blockgz/"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FOLDER = re.compile(rf"topic=({_TOPIC.pattern})(?:~([1-9][0-9]{{0,8}}))?")
_CONFLICT = r"(?:~e([1-9][0-9]{0,18})-([0-9a-f]{8}))?"
_ANY_CONFLICT = re.compile(_CONFLICT.removesuffix("?"))
_STEM = re.compile(rf"([0-9]{{20}}){_CONFLICT}")
_CATALOG = re.compile(rf"_catalog/([1-9][0-9]?)-([0-9]{{20}}){_CONFLICT}\.json")
_PARTITION_FOLDER = re.compile(r"partition=([0-9]{5,10})")
_PARTITION_OBJECT = re.compile(rf"{_FOLDER.pattern}/partition=([0-9]{{5,10}})/(.+)")
_ANCESTOR_OFFSET = re.compile(rb"-([0-9]{1,19})\.index\.json$")
_SEED_STEM = re.compile(
    rf"([0-9]{{4}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])){_CONFLICT}"
    rf"/({_TOPIC.pattern})-([0-9]{{5,10}})-([0-9]{{12,19}})"
)


class Conflict(NamedTuple):
    """Tells the objects of one writer from an orphan that took the plain name: the writer's epoch, 8 hex digits."""

    epoch: int
    token: str

    def __str__(self) -> str:
        return f"~e{self.epoch}-{self.token}"


class TopicFolder(NamedTuple):
    """One incarnation of a topic: the first is 1."""

    topic: str
    incarnation: int = 1

    def __str__(self) -> str:
        """`orders`, or `orders~2` for the second incarnation."""
        check_topic(self.topic)
        return self.topic if self.incarnation == 1 else f"{self.topic}~{self.incarnation}"


class ChunkStart(NamedTuple):
    """What a chunk's name is made of; the timestamp is the first record's, in ms."""

    position: int
    first_offset: int
    first_timestamp: int


def check_topic(topic: str) -> str:
    """The name itself where Kafka allows it; raises BadName."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise BadName(
            f"{topic[:80]!r} is not a topic name",
            why="Kafka allows 1 to 249 of a-z A-Z 0-9 . _ -, and neither '.' nor '..'",
        )
    return topic


def topic_folders(names: Iterable[str]) -> list[TopicFolder]:
    """The topics among the names of an archive's folders, each incarnation, in order; other names are passed over."""
    found = []
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match and match[1] not in (".", ".."):
            folder = TopicFolder(match[1], int(match[2] or 1))
            found += [folder] if f"topic={folder}" == name else []
    return sorted(found)


def partition_folders(layout: str, folder: TopicFolder, names: Iterable[str]) -> list["PartitionKeys"]:
    """The partitions among the names of a topic's sub-folders, in order; other names are passed over."""
    matches = [match for name in names if (match := _PARTITION_FOLDER.fullmatch(name))]
    numbers = sorted(int(match[1]) for match in matches if match[0] == f"partition={int(match[1]):05d}")
    return [LAYOUTS[layout](folder, number) for number in numbers]


def parse_topic_folder(name: str) -> TopicFolder:
    """The incarnation that `orders` or `orders~2` names; raises BadName."""
    match = _FOLDER.fullmatch(f"topic={name}")
    if not match:
        raise BadName(
            f"{name[:80]!r} is not a topic or one of its incarnations",
            why="write orders, or orders~2 for the second incarnation",
        )
    # `orders~1` names the first incarnation where a newer one exists; its folder is plain.
    return TopicFolder(check_topic(match[1]), int(match[2] or 1))


def catalog_name(level: int, position: int, conflict: Conflict | None = None) -> str:
    """A catalog's name relative to its partition's home."""
    return f"_catalog/{level}-{position:020d}{conflict or ''}.json"


def is_catalog_name(name: str, level: int, position: int) -> bool:
    """Whether `name` is one that a catalog of that level and position may have."""
    return _parsed_catalog_name(name) == (level, position)


def _parsed_catalog_name(name: str) -> tuple[int, int] | None:
    """Level and position; None for what is no catalog's name."""
    match = _CATALOG.fullmatch(name)
    if match and catalog_name(int(match[1]), int(match[2]), _conflict(match[3], match[4])) == name:
        return int(match[1]), int(match[2])
    return None


class PartitionKeys(Protocol):
    """Where the objects of one topic-partition are, in one layout."""

    layout: str
    folder: TopicFolder
    partition: int

    @property
    def home(self) -> str:
        """The folder of marker and catalogs, with a slash at its end."""

    @property
    def marker(self) -> str:
        """The marker's key."""

    @property
    def chunks(self) -> str:
        """The folder that data and index names are relative to, with a slash at its end; may be empty."""

    def data_name(self, start: ChunkStart, suffix: str, conflict: Conflict | None = None) -> str:
        """The name of a chunk's data; `suffix` is the record format's and codec's, such as `.gz`."""

    def index_name(self, start: ChunkStart, conflict: Conflict | None = None) -> str:
        """The name of a chunk's index."""

    def check_name(self, name: str, position: int, suffix: str) -> str:
        """The name itself where it is one that a chunk at that position may have; raises MalformedObject."""


class TopicLayoutKeys:
    """Layout `topic`: `topic=orders/partition=00003/00000000000000000000.gz`."""

    layout = "topic"

    def __init__(self, folder: TopicFolder, partition: int) -> None:
        self.folder = folder
        self.partition = partition

    @property
    def home(self) -> str:
        return f"topic={self.folder}/partition={self.partition:05d}/"

    @property
    def marker(self) -> str:
        return self.home + MARKER_OBJECT

    @property
    def chunks(self) -> str:
        return self.home

    def data_name(self, start: ChunkStart, suffix: str, conflict: Conflict | None = None) -> str:
        return f"{start.position:020d}{conflict or ''}{suffix}"

    def index_name(self, start: ChunkStart, conflict: Conflict | None = None) -> str:
        return self.data_name(start, INDEX_SUFFIX, conflict)

    def check_name(self, name: str, position: int, suffix: str) -> str:
        match = _STEM.fullmatch(name.removesuffix(suffix))
        if match and int(match[1]) == position:
            start = ChunkStart(position, 0, 0)
            if name == self.data_name(start, suffix, _conflict(match[2], match[3])):
                return name
        raise _bad_name(name, self.home)


class SeedLayoutKeys:
    """Layout `seed`: `2016-02-24/bar-00000-000000000000.gz`, with our own objects under `_blockgz/`."""

    layout = "seed"

    def __init__(self, folder: TopicFolder, partition: int) -> None:
        self.folder = folder
        self.partition = partition
        self._home = TopicLayoutKeys(folder, partition)

    @property
    def home(self) -> str:
        return SEED_HOME + self._home.home

    @property
    def marker(self) -> str:
        return SEED_HOME + self._home.marker

    @property
    def chunks(self) -> str:
        return ""

    @property
    def ancestor_marker(self) -> str:
        """The plain-text marker that readers of the ancestor look for."""
        return f"{ancestor_marker_prefix(self.folder.topic)}{self.partition:05d}.txt"

    def ancestor_index_name(self, start: ChunkStart, conflict: Conflict | None = None) -> str:
        """The sidecar that readers of the ancestor expect beside the data."""
        return self.data_name(start, INDEX_SUFFIX, conflict)

    def ancestor_position(self, marker_body: bytes) -> int:
        """The first offset of the chunk that a plain-text marker names; -1 where it names none."""
        match = _ANCESTOR_OFFSET.search(marker_body.strip())
        return int(match[1]) if match else -1

    def data_name(self, start: ChunkStart, suffix: str, conflict: Conflict | None = None) -> str:
        date = utc_date(start.first_timestamp)
        return f"{date}{conflict or ''}/{self.folder.topic}-{self.partition:05d}-{start.first_offset:012d}{suffix}"

    def index_name(self, start: ChunkStart, conflict: Conflict | None = None) -> str:
        return self.data_name(start, SEED_INDEX_SUFFIX, conflict)

    def check_name(self, name: str, position: int, suffix: str) -> str:
        """See PartitionKeys; the first offset may lie above the position."""
        match = _SEED_STEM.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if match:
            date, epoch, token, _topic, _partition, first_offset = match.groups()
            folder = f"{date}{_conflict(epoch, token) or ''}"
            stem = f"{folder}/{self.folder.topic}-{self.partition:05d}-{int(first_offset):012d}"
            if name == stem + suffix and int(first_offset) >= position:
                return name
        raise _bad_name(name, self.home)


LAYOUTS: dict[str, type[TopicLayoutKeys] | type[SeedLayoutKeys]] = {"topic": TopicLayoutKeys, "seed": SeedLayoutKeys}
INDEX_SUFFIXES = {"topic": INDEX_SUFFIX, "seed": SEED_INDEX_SUFFIX}
"""Of the names of our own chunk indexes, by layout."""


def archive_key(layout: str) -> str:
    return (SEED_HOME if layout == "seed" else "") + ARCHIVE_OBJECT


def inventory_key(layout: str) -> str:
    return (SEED_HOME if layout == "seed" else "") + INVENTORY_OBJECT


def topic_home(layout: str, folder: TopicFolder) -> str:
    """The folder of one incarnation of a topic, with a slash at its end."""
    return f"{SEED_HOME if layout == 'seed' else ''}topic={folder}/"


def ancestor_marker_prefix(topic: str) -> str:
    """What the keys of the ancestor's markers of a topic begin with, and maybe those of other topics."""
    return f"last_chunk_index.{topic}-"


def ancestor_marker_partition(key: str, topic: str) -> int | None:
    """The partition whose ancestor's marker a key names; None for other keys."""
    match = re.fullmatch(r"([0-9]{5,10})\.txt", key.removeprefix(ancestor_marker_prefix(topic)), re.ASCII)
    return int(match[1]) if match and key.startswith(ancestor_marker_prefix(topic)) else None


def data_suffix(record_format: str, codec: str) -> str:
    """What the name of a chunk's data ends with."""
    return (".arrows" if record_format == "arrow" else "") + {"gzip": ".gz", "zstd": ".zst"}.get(codec, f".{codec}")


class ObjectKind(Enum):
    """What an object of a partition is, other than its marker."""

    DATA = "data"
    INDEX = "index"
    ANCESTOR_INDEX = "ancestor index"
    """Layout `seed`: the sidecar for readers of the ancestor."""
    CATALOG = "catalog"


class ObjectKey(NamedTuple):
    """What the key of a partition's object says about it."""

    key: str
    kind: ObjectKind
    folder: TopicFolder
    """Layout `seed`: the first incarnation for all but catalogs, whatever incarnation wrote them."""
    partition: int
    number: int
    """The start position in the name; layout `seed`: the first record's offset, but for catalogs."""
    level: int
    """Of a catalog; 0 for all others."""
    stem: str
    """The key without what its kind adds; data and sidecar of one chunk share it."""


def parse_key(layout: str, key: str) -> ObjectKey | None:
    """What a key in an archive of that layout names; None for all but chunks and catalogs, and for free names."""
    seed = layout == "seed"
    home = SEED_HOME if seed else ""
    match = _PARTITION_OBJECT.fullmatch(key.removeprefix(home)) if key.startswith(home) else None
    if match:
        folder, partition, name = TopicFolder(match[1], int(match[2] or 1)), int(match[3]), match[4]
        try:
            keys = LAYOUTS[layout](folder, partition)
            if keys.home + name != key:
                return None
        except BadName:
            return None
        catalog = _catalog_key(keys, name)
        return catalog if catalog or seed else _chunk_key(keys, name)
    return _seed_chunk_key(key) if seed else None


def topic_of(key: str) -> str | None:
    """The topic whose object a key of either layout names, marker and catalogs included; None for all other keys."""
    match = _FOLDER.match(key.removeprefix(SEED_HOME))
    if match and key.removeprefix(SEED_HOME)[match.end() :].startswith("/"):
        return match[1]
    stem = _SEED_STEM.match(key)
    return stem[4] if stem else None


_CHUNK_SUFFIXES = tuple(data_suffix(form, codec) for form in ("json", "arrow") for codec in ("gzip", "zstd"))


def _catalog_key(keys: PartitionKeys, name: str) -> ObjectKey | None:
    parsed = _parsed_catalog_name(name)
    if parsed is None:
        return None
    level, position = parsed
    key = keys.home + name
    return ObjectKey(key, ObjectKind.CATALOG, keys.folder, keys.partition, position, level, key)


def _chunk_key(keys: PartitionKeys, name: str) -> ObjectKey | None:
    for suffix, kind in [(INDEX_SUFFIX, ObjectKind.INDEX), *((each, ObjectKind.DATA) for each in _CHUNK_SUFFIXES)]:
        match = _STEM.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if match and int(match[1]) < 2**63:
            key = keys.home + name
            return ObjectKey(key, kind, keys.folder, keys.partition, int(match[1]), 0, key.removesuffix(suffix))
    return None


def _seed_chunk_key(key: str) -> ObjectKey | None:
    suffixes = [(SEED_INDEX_SUFFIX, ObjectKind.INDEX), (INDEX_SUFFIX, ObjectKind.ANCESTOR_INDEX)]
    for suffix, kind in [*suffixes, *((each, ObjectKind.DATA) for each in _CHUNK_SUFFIXES)]:
        match = _SEED_STEM.fullmatch(key.removesuffix(suffix)) if key.endswith(suffix) else None
        if match:
            _, _, _, topic, partition, first_offset = match.groups()
            if topic in (".", "..") or not key.endswith(
                f"/{topic}-{int(partition):05d}-{int(first_offset):012d}{suffix}"
            ):
                return None
            stem = key.removesuffix(suffix)
            return ObjectKey(key, kind, TopicFolder(topic), int(partition), int(first_offset), 0, stem)
    return None


def utc_date(timestamp_ms: int) -> str:
    """The UTC date of a timestamp as yyyy-mm-dd; 1970-01-01 for none, and never beyond the year 9999."""
    # Here, because it loads slowly and who only reads markers does not need it.
    import numpy as np  # noqa: PLC0415

    bounded = min(max(timestamp_ms, 0), 253_402_300_799_999)
    return str(np.datetime64(bounded, "ms").astype("datetime64[D]"))


def conflict_in(key: str) -> Conflict | None:
    """What the key of a chunk's object carries because its plain name was taken."""
    match = _ANY_CONFLICT.search(key)
    return _conflict(match[1], match[2]) if match else None


def _conflict(epoch: str | None, token: str | None) -> Conflict | None:
    return Conflict(int(epoch), token) if epoch and token else None


def _bad_name(name: str, home: str) -> MalformedObject:
    return MalformedObject(
        f"the name {name[:120]!r} does not belong in {home}", why="names in an archive are always derived"
    )
