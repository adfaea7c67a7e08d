"""Names of objects, built and parsed in one place (FORMAT.md, "Objects").

All keys are relative to the archive's root; a store puts its own prefix before them.
"""

import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from index_format.errors import BadName, MalformedObject

ARCHIVE_OBJECT = "_archive.json"
INVENTORY_OBJECT = "_inventory.json"
TOPIC_OBJECT = "_topic.json"
TOPIC_CONFIG_OBJECT = "_topic_config.json"
MARKER_OBJECT = "last_chunk_index.json"
GROUPS_FOLDER = "_groups/"
CONFIGS_FOLDER = "_configs/"
FLOORS_FOLDER = "_pruned/"
CATALOGS_FOLDER = "_catalog/"
INDEX_SUFFIX = ".index.json"
SEED_INDEX_SUFFIX = ".meta.json"
ENCRYPTED_SUFFIX = ".enc"
SEED_HOME = "_blockgz/"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FOLDER = re.compile(rf"topic=({_TOPIC.pattern})(?:~([1-9][0-9]{{0,8}}))?")
# Kafka's longest topic fills a file name with `topic=`; behind `t~2=` its later incarnations fit, too.
_LONG_FOLDER = re.compile(rf"t~([1-9][0-9]{{0,8}})=({_TOPIC.pattern})")
_NAME_BYTES = 255
_CONFLICT = r"(?:~e([1-9][0-9]{0,18})-([0-9a-f]{8}))?"
_ANY_CONFLICT = re.compile(_CONFLICT.removesuffix("?"))
_MARK = r"(~e[1-9][0-9]{0,18}-[0-9a-f]{8}|~r[0-9a-f]{32}-(?:0|[1-9][0-9]{0,9}))?"
_REWRITTEN = re.compile(r"~r[0-9a-f]{32}-[0-9]")
_STEM = re.compile(rf"([0-9]{{20}}){_MARK}")
_CATALOG = re.compile(rf"_catalog/([1-9][0-9]?)-([0-9]{{20}}){_MARK}\.json")
_DATED_OBJECT = re.compile(rf"{_FOLDER.pattern}/(?:{GROUPS_FOLDER}|{CONFIGS_FOLDER})[0-9]{{20}}\.json")
_DATED = re.compile(r"([0-9]{20})\.json")
_PARTITION_FOLDER = re.compile(r"partition=([0-9]{5,10})")
_FLOOR = re.compile(rf"{_FOLDER.pattern}/partition=([0-9]{{5,10}})/{FLOORS_FOLDER}([0-9]{{20}})")
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


class Rewritten(NamedTuple):
    """Tells the objects of one rewrite from all others: the token of its intent, 32 hex digits, and a number."""

    token: str
    number: int

    def __str__(self) -> str:
        return f"~r{self.token}-{self.number}"


# The part of a name behind its position, unless it is the plain one.
Mark = Conflict | Rewritten


class TopicPartition(NamedTuple):
    """A partition of a topic of Kafka's, whichever incarnation it is."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class TopicFolder(NamedTuple):
    """One incarnation of a topic: the first is 1."""

    topic: str
    incarnation: int = 1

    def __str__(self) -> str:
        """`orders`, or `orders~2` for the second incarnation."""
        check_topic(self.topic)
        return self.topic if self.incarnation == 1 else f"{self.topic}~{self.incarnation}"


class IndexedChunk(Protocol):
    """The fields of a `ChunkIndex` that name its data: the module that defines a `ChunkIndex` imports this one."""

    @property
    def start_offset(self) -> int: ...
    @property
    def record_format(self) -> str: ...
    @property
    def codec(self) -> str: ...
    @property
    def encryption(self) -> Any: ...
    @property
    def data(self) -> Any: ...


class Named(Protocol):
    """A chunk's entry or a reference to a catalog: something with a name and an offset at which it starts."""

    @property
    def name(self) -> str: ...
    @property
    def start_offset(self) -> int: ...


class ChunkStart(NamedTuple):
    """The parts of a chunk's name; the timestamp is the first record's, in ms."""

    position: int
    first_offset: int
    first_timestamp: int


def check_topic(topic: str) -> str:
    """Return the name if Kafka allows it; raises BadName."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise BadName(
            f"{topic[:80]!r} is not a topic name",
            why="Kafka allows 1 to 249 of a-z A-Z 0-9 . _ -, and neither '.' nor '..'",
        )
    return topic


def topic_folders(names: Iterable[str]) -> list[TopicFolder]:
    """Return the topics among the names of folders, each incarnation, in order; other names are passed over."""
    found = []
    for name in names:
        match = _FOLDER.fullmatch(_spelled_out(name))
        if match and match[1] not in (".", ".."):
            folder = TopicFolder(match[1], int(match[2] or 1))
            found += [folder] if _folder_name(folder) == name else []
    return sorted(found)


def partition_folders(layout: str, folder: TopicFolder, names: Iterable[str]) -> list["PartitionKeys"]:
    """Return the partitions among the names of a topic's sub-folders, in order; other names are passed over."""
    matches = [match for name in names if (match := _PARTITION_FOLDER.fullmatch(name))]
    numbers = sorted(int(match[1]) for match in matches if match[0] == f"partition={int(match[1]):05d}")
    return [LAYOUTS[layout](folder, number) for number in numbers]


def parse_topic_folder(name: str) -> TopicFolder:
    """Return the incarnation that `orders` or `orders~2` names; raises BadName."""
    match = _FOLDER.fullmatch(f"topic={name}")
    if not match:
        raise BadName(
            f"{name[:80]!r} is not a topic or one of its incarnations",
            why="write orders, or orders~2 for the second incarnation",
        )
    # `orders~1` names the first incarnation where a newer one exists; its folder is plain.
    return TopicFolder(check_topic(match[1]), int(match[2] or 1))


def catalog_name(level: int, position: int, mark: Mark | None = None) -> str:
    """Return a catalog's name relative to its partition's home."""
    return f"_catalog/{level}-{position:020d}{mark or ''}.json"


def is_catalog_name(name: str, level: int, position: int) -> bool:
    """Return whether a catalog of that level and position may have this name."""
    match = _CATALOG.fullmatch(name)
    return match is not None and (int(match[1]), int(match[2])) == (level, position)


def catalog_level(name: str) -> int:
    match = _CATALOG.fullmatch(name)
    return int(match[1]) if match else 0


def floor_name(pruned_before: int) -> str:
    """Return the name, relative to the partition's home, of the object that declares a floor."""
    return f"{FLOORS_FOLDER}{pruned_before:020d}"


class PartitionKeys:
    """The keys of one topic-partition's objects, in one layout."""

    layout: ClassVar[str]

    def __init__(self, folder: TopicFolder, partition: int) -> None:
        self.folder = folder
        self.partition = partition

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionKeys):
            return NotImplemented
        return (self.layout, self.folder, self.partition) == (other.layout, other.folder, other.partition)

    def __hash__(self) -> int:
        return hash((self.layout, self.folder, self.partition))

    def __str__(self) -> str:
        """`orders:3`, or `orders~2:3` for the second incarnation."""
        return f"{self.folder}:{self.partition}"

    @cached_property
    def home(self) -> str:
        """The folder of marker and catalogs, with a slash at its end."""
        return f"{topic_home(self.layout, self.folder)}partition={self.partition:05d}/"

    @property
    def marker(self) -> str:
        return self.home + MARKER_OBJECT

    @property
    def chunks(self) -> str:
        """The folder that data and index names are relative to, with a slash at its end; may be empty."""
        raise NotImplementedError

    def data_name(self, start: ChunkStart, suffix: str, mark: Mark | None = None) -> str:
        """Return the name of a chunk's data; `suffix` is the record format's and codec's, such as `.gz`."""
        raise NotImplementedError

    def index_name(self, start: ChunkStart, mark: Mark | None = None) -> str:
        return self.data_name(start, INDEX_SUFFIXES[self.layout], mark)

    def check_name(self, name: str, position: int, suffix: str) -> str:
        """Return the name if a chunk at that position may have it; raises MalformedObject."""
        raise NotImplementedError

    def index_key(self, entry: Named) -> str:
        """Return the key of a chunk's index, by its entry; raises MalformedObject for a name that is not derived."""
        return self.chunks + self.check_name(entry.name, entry.start_offset, INDEX_SUFFIXES[self.layout])

    def data_key(self, index: IndexedChunk) -> str:
        """Return the key of a chunk's data, by its index; raises MalformedObject for a name that is not derived."""
        suffix = data_suffix(index.record_format, index.codec, encrypted=bool(index.encryption))
        return self.chunks + self.check_name(index.data.name, index.start_offset, suffix)

    def catalog_key(self, reference: Named, level: int) -> str:
        """Return the key of a catalog, by its reference; raises MalformedObject for a name that is not derived."""
        if not is_catalog_name(reference.name, level, reference.start_offset):
            raise _bad_name(reference.name, self.home)
        return self.home + reference.name


class TopicLayoutKeys(PartitionKeys):
    """Layout `topic`: `topic=orders/partition=00003/00000000000000000000.gz`."""

    layout = "topic"

    @property
    def chunks(self) -> str:
        return self.home

    def data_name(self, start: ChunkStart, suffix: str, mark: Mark | None = None) -> str:
        return f"{start.position:020d}{mark or ''}{suffix}"

    def check_name(self, name: str, position: int, suffix: str) -> str:
        match = _STEM.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if match and int(match[1]) == position:
            return name
        raise _bad_name(name, self.home)


class SeedLayoutKeys(PartitionKeys):
    """Layout `seed`: `2016-02-24/bar-00000-000000000000.gz`, with our own objects under `_blockgz/`."""

    layout = "seed"

    @property
    def chunks(self) -> str:
        return ""

    @property
    def ancestor_marker(self) -> str:
        """The plain-text marker that readers of the ancestor look for."""
        return f"{ancestor_marker_prefix(self.folder.topic)}{self.partition:05d}.txt"

    def ancestor_index_name(self, start: ChunkStart, conflict: Conflict | None = None) -> str:
        """Return the name of the sidecar that readers of the ancestor expect next to the data."""
        return self.data_name(start, INDEX_SUFFIX, conflict)

    def ancestor_position(self, marker_body: bytes) -> int:
        """Return the first offset of the chunk that a plain-text marker names, or -1 if it names none."""
        match = _ANCESTOR_OFFSET.search(marker_body.strip())
        return int(match[1]) if match else -1

    def data_name(self, start: ChunkStart, suffix: str, mark: Mark | None = None) -> str:
        date = utc_date(start.first_timestamp)
        return f"{date}{mark or ''}/{self.folder.topic}-{self.partition:05d}-{start.first_offset:012d}{suffix}"

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


LAYOUTS: dict[str, type[PartitionKeys]] = {"topic": TopicLayoutKeys, "seed": SeedLayoutKeys}
# The suffixes of our own chunk indexes, by layout.
INDEX_SUFFIXES = {"topic": INDEX_SUFFIX, "seed": SEED_INDEX_SUFFIX}


def archive_home(layout: str) -> str:
    """Return the folder of all topics, with a slash at its end; may be empty."""
    return SEED_HOME if layout == "seed" else ""


def archive_key(layout: str) -> str:
    return archive_home(layout) + ARCHIVE_OBJECT


def inventory_key(layout: str) -> str:
    return archive_home(layout) + INVENTORY_OBJECT


def topic_home(layout: str, folder: TopicFolder) -> str:
    """Return the folder of one incarnation of a topic, with a slash at its end."""
    return f"{archive_home(layout)}{_folder_name(folder)}/"


def _folder_name(folder: TopicFolder) -> str:
    name = f"topic={folder}"
    return name if len(name) <= _NAME_BYTES else f"t~{folder.incarnation}={folder.topic}"


def _spelled_out(key: str) -> str:
    """Return a key as it would be if names could be longer."""
    return _LONG_FOLDER.sub(r"topic=\2~\1", key, count=1) if key.startswith("t~") else key


def topic_prefixes(topic: str) -> list[str]:
    """Return prefixes that cover all keys of a topic in layout `topic`, and maybe keys of other topics."""
    return [f"topic={topic}/", f"topic={topic}~"] + (["t~"] if len(f"topic={topic}~999999999") > _NAME_BYTES else [])


def groups_home(layout: str, folder: TopicFolder) -> str:
    """Return the folder of the tables of consumer groups, with a slash at its end."""
    return topic_home(layout, folder) + GROUPS_FOLDER


def configs_home(layout: str, folder: TopicFolder) -> str:
    """Return the folder of the dated versions of a topic's configuration, with a slash at its end."""
    return topic_home(layout, folder) + CONFIGS_FOLDER


def dated_key(home: str, at_ms: int) -> str:
    """Return the key of an object of `groups_home` or `configs_home`, which sorts by its time."""
    return f"{home}{at_ms:020d}.json"


def parse_dated_key(home: str, key: str) -> int | None:
    """Return the time that names an object of `home`, in ms; None for other keys."""
    match = _DATED.fullmatch(key.removeprefix(home)) if key.startswith(home) else None
    return int(match[1]) if match and int(match[1]) < 2**63 else None


def parse_groups_key(layout: str, key: str) -> tuple[TopicFolder, int] | None:
    """Return the topic and the slot of a table of consumer groups; None for other keys."""
    return _parse_dated_object(layout, key, groups_home)


def parse_configs_key(layout: str, key: str) -> tuple[TopicFolder, int] | None:
    """Return the topic and the time of a dated version of its configuration; None for other keys."""
    return _parse_dated_object(layout, key, configs_home)


def _parse_dated_object(
    layout: str, key: str, home: Callable[[str, TopicFolder], str]
) -> tuple[TopicFolder, int] | None:
    match = _DATED_OBJECT.fullmatch(_spelled_out(key.removeprefix(archive_home(layout))))
    folder = TopicFolder(match[1], int(match[2] or 1)) if match and match[1] not in (".", "..") else None
    at_ms = None if folder is None else parse_dated_key(home(layout, folder), key)
    return None if folder is None or at_ms is None else (folder, at_ms)


def ancestor_marker_prefix(topic: str) -> str:
    """Return the prefix of the ancestor's markers of a topic, and maybe of other topics."""
    return f"last_chunk_index.{topic}-"


def ancestor_marker_partition(key: str, topic: str) -> int | None:
    """Return the partition whose ancestor's marker a key names; None for other keys."""
    match = re.fullmatch(r"([0-9]{5,10})\.txt", key.removeprefix(ancestor_marker_prefix(topic)), re.ASCII)
    return int(match[1]) if match and key.startswith(ancestor_marker_prefix(topic)) else None


def data_suffix(record_format: str, codec: str, *, encrypted: bool = False) -> str:
    """Return the end of the name of a chunk's data."""
    plain = (".arrows" if record_format == "arrow" else "") + {"gzip": ".gz", "zstd": ".zst"}.get(codec, f".{codec}")
    return plain + ENCRYPTED_SUFFIX if encrypted else plain


class ObjectKind(Enum):
    """The kinds of a partition's objects, other than its marker."""

    DATA = "data"
    INDEX = "index"
    ANCESTOR_INDEX = "ancestor index"
    """Layout `seed`: the sidecar for readers of the ancestor."""
    CATALOG = "catalog"


class ObjectKey(NamedTuple):
    """The parts of a key of a partition's object."""

    key: str
    kind: ObjectKind
    folder: TopicFolder
    """In layout `seed` the first incarnation for all but catalogs, even if another incarnation wrote them."""
    partition: int
    number: int
    """The start position in the name; in layout `seed` the first record's offset, except for catalogs."""
    level: int
    """The level of a catalog; 0 for all others."""
    stem: str
    """The key without what its kind adds; data and sidecar of one chunk share it."""
    token: str | None = None
    """The token of the rewrite that stored it; None for writers' objects."""


def parse_key(layout: str, key: str) -> ObjectKey | None:
    """Return the parts of a key of a chunk's object or a catalog; None for all others, and for free names."""
    seed = layout == "seed"
    home = SEED_HOME if seed else ""
    match = _PARTITION_OBJECT.fullmatch(_spelled_out(key.removeprefix(home))) if key.startswith(home) else None
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


def parse_floor_key(layout: str, key: str) -> tuple[TopicFolder, int, int] | None:
    """Topic, partition and offset of an object that `floor_name` names; None for other keys."""
    match = _FLOOR.fullmatch(_spelled_out(key.removeprefix(archive_home(layout))))
    if match is None or match[1] in (".", "..") or int(match[4]) >= 2**63:
        return None
    folder, partition, pruned_before = TopicFolder(match[1], int(match[2] or 1)), int(match[3]), int(match[4])
    is_derived = LAYOUTS[layout](folder, partition).home + floor_name(pruned_before) == key
    return (folder, partition, pruned_before) if is_derived else None


def topic_of(key: str) -> str | None:
    """Return the topic of a key in either layout, markers and catalogs included; None for all other keys."""
    name = _spelled_out(key.removeprefix(SEED_HOME))
    match = _FOLDER.match(name)
    if match and name[match.end() :].startswith("/"):
        return match[1]
    stem = _SEED_STEM.match(key)
    return stem[4] if stem else None


_CHUNK_SUFFIXES = tuple(
    data_suffix(form, codec, encrypted=encrypted)
    for form in ("json", "arrow")
    for codec in ("gzip", "zstd")
    for encrypted in (False, True)
)


def _catalog_key(keys: PartitionKeys, name: str) -> ObjectKey | None:
    match = _CATALOG.fullmatch(name)
    if match is None:
        return None
    key = keys.home + name
    level, position = int(match[1]), int(match[2])
    return ObjectKey(key, ObjectKind.CATALOG, keys.folder, keys.partition, position, level, key, _token(match[3]))


def _chunk_key(keys: PartitionKeys, name: str) -> ObjectKey | None:
    for suffix, kind in [(INDEX_SUFFIX, ObjectKind.INDEX), *((each, ObjectKind.DATA) for each in _CHUNK_SUFFIXES)]:
        match = _STEM.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if match and int(match[1]) < 2**63:
            key = keys.home + name
            stem, token = key.removesuffix(suffix), _token(match[2])
            return ObjectKey(key, kind, keys.folder, keys.partition, int(match[1]), 0, stem, token)
    return None


def _token(mark: str | None) -> str | None:
    return mark[2:].partition("-")[0] if mark and mark.startswith("~r") else None


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
    """Return the UTC date of a timestamp as yyyy-mm-dd; 1970-01-01 for none, and never beyond the year 9999."""
    # Here, because it loads slowly and who only reads markers does not need it.
    import numpy as np  # noqa: PLC0415

    bounded = min(max(timestamp_ms, 0), 253_402_300_799_999)
    return str(np.datetime64(bounded, "ms").astype("datetime64[D]"))


def is_rewritten(name: str) -> bool:
    """Return whether a maintainer stored the object of that name or key."""
    return _REWRITTEN.search(name) is not None


def conflict_in(key: str) -> Conflict | None:
    """Return the part of a chunk's key that says that its plain name was taken; None without one."""
    match = _ANY_CONFLICT.search(key)
    return _conflict(match[1], match[2]) if match else None


def _conflict(epoch: str | None, token: str | None) -> Conflict | None:
    return Conflict(int(epoch), token) if epoch and token else None


def _bad_name(name: str, home: str) -> MalformedObject:
    return MalformedObject(
        f"the name {name[:120]!r} does not belong in {home}", why="names in an archive are always derived"
    )
