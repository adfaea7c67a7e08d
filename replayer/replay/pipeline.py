"""Stages that change or drop records between scan and sink, and routers that choose each record's partition.

The core writes a transaction's records and the position after them together, and after a crash it scans again from
the lowest position of any lane. All of exactly-once rests on three promises of stages and routers:

- the `offset` column stays the source's own, in rising order: rows may go away, none is added or moved;
- what happens to a record depends on that record and its source partition alone, never on its neighbours, on a
  counter, or on the clock: batches begin and end elsewhere on the next run;
- the same `fingerprint` means the same outcome for every record: a job with another one is not resumed.

What a stage drops counts as done: the position moves past it.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blockgz.errors import UsageError
from replayer.errors import ReplayRefused


class ScannedBatch(NamedTuple):
    """Records of one source partition, in offset order, as a batch of `records.SCHEMA`."""

    partition: int
    records: pa.RecordBatch


class RoutedBatch(NamedTuple):
    """Records for one target partition, in the source's order; `offset` is still the source's."""

    target: int
    records: pa.RecordBatch


class Stage(Protocol):
    """A filter, a transform or a policy: from records to fewer or other ones. Called by one thread at a time."""

    @property
    def fingerprint(self) -> str:
        """Say in one line what the stage does to any record, settings included."""

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        """The changed batch, perhaps empty; the partition stays. Raises a BlockgzError to end the replay."""


class Router(Protocol):
    """A rule that gives each record its target partition."""

    @property
    def fingerprint(self) -> str:
        """Say in one line where any record goes, settings included."""

    @property
    def divides(self) -> bool:
        """True if records of one source partition go to several targets."""

    def targets(self, partition: int) -> Sequence[int]:
        """Return the target partitions that may get records of this source partition."""

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        """The batch split by target; every record in one piece, every target at most once."""


TOO_MANY_PARTITIONS = 100_000


@dataclass(frozen=True)
class Routing:
    """The value of `--partitions`, and the router of a target that it fits.

    `partitions` is the number that it names, None if it names none; `places` is its map. By key, records go where
    Java's default partitioner puts them in a topic of that many partitions, by the key's murmur2 hash: records with the
    same key from one source partition keep their order.
    """

    rule: Literal["keep", "by-key", "number", "map"] = "keep"
    partitions: int | None = None
    places: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a number of partitions that no topic has."""
        if self.partitions is not None and self.partitions < 1:
            raise ValueError(f"a topic has no {self.partitions} partitions")

    @property
    def fingerprint(self) -> str:
        match self.rule:
            case "keep":
                return "keep"
            case "number":
                return f"modulo {self.partitions}"
            case "map":
                return f"map {self._map_text}"
            case "by-key":
                return f"murmur2 modulo {self.partitions}"

    @property
    def divides(self) -> bool:
        return self.rule == "by-key"

    def targets(self, partition: int) -> Sequence[int]:
        """Raise ReplayRefused for a partition that has no place in the map."""
        match self.rule:
            case "keep":
                return (partition,)
            case "number":
                return (partition % (self.partitions or 1),)
            case "by-key":
                return range(self.partitions or 1)
        place = dict(self.places).get(partition)
        if place is None:
            raise ReplayRefused(
                f"--partitions {self._map_text[:200]} does not say where partition {partition} goes",
                why="a replay drops nothing without being told to",
                remedy=f"add {partition}:TARGET, or name the partitions to read after the topic",
            )
        return (place,)

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        source, records = batch
        if not self.divides:
            return (RoutedBatch(self.targets(source)[0], records),)
        partitions = self.partitions or 1
        keys = records.column("key")
        places = (key_hashes(keys) & 0x7FFFFFFF).astype(np.int64) % partitions
        if keys.null_count:
            # Java sends these to the partition of its open batch; here the same record always goes to the same place.
            turns = (records.column("offset").to_numpy() + source) % partitions
            places = np.where(keys.is_null().to_numpy(zero_copy_only=False), turns, places)
        return _split(records, places)

    def partitions_for(self, archived: int) -> int:
        """How many partitions a target gets that is made for this; `archived` is the source topic's own number."""
        if self.rule == "map":
            return max((target for _, target in self.places), default=0) + 1
        return archived if self.partitions is None else self.partitions

    def for_target(self, name: str, num_partitions: int) -> "Routing":
        """Return the router for a target of `num_partitions` partitions.

        Raises ReplayRefused if another number was requested: keys would not be where producers put them.
        """
        if self.rule != "by-key":
            return self
        if self.partitions not in (None, num_partitions):
            raise ReplayRefused(
                f"topic {name!r} has {num_partitions} partitions",
                why=f"--partitions by-key:{self.partitions} puts keys where a topic of {self.partitions} has "
                "them, and what producers add later would go elsewhere",
                remedy=f"use by-key, or choose a topic with {self.partitions} partitions",
            )
        return replace(self, partitions=num_partitions)

    @property
    def _map_text(self) -> str:
        return ",".join(f"{source}:{target}" for source, target in sorted(self.places))


@dataclass(frozen=True)
class Pipeline:
    """Stages in order, then the router; the default changes nothing."""

    stages: tuple[Stage, ...] = ()
    router: Router = field(default_factory=Routing)

    @property
    def fingerprint(self) -> str:
        """Text of everything that decides about a record."""
        return "\n".join([*(stage.fingerprint for stage in self.stages), self.router.fingerprint])

    def targets(self, partition: int) -> Sequence[int]:
        return self.router.targets(partition)

    def feeding(self, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Return by target partition which of these source partitions may go there, in order."""
        found: dict[int, list[int]] = {}
        for source in sorted(partitions):
            for lane in self.targets(source):
                found.setdefault(lane, []).append(source)
        return found

    def __call__(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        """Return the pieces of a batch after all stages, at most one for each target, none empty."""
        for stage in self.stages:
            batch = stage(batch)
            if not batch.records.num_rows:
                return ()
        return [piece for piece in self.router.route(batch) if piece.records.num_rows]


def _split(records: pa.RecordBatch, places: npt.NDArray[np.int64]) -> list[RoutedBatch]:
    order = np.argsort(places, kind="stable")
    found, starts = np.unique(places[order], return_index=True)
    if len(found) == 1:
        return [RoutedBatch(int(found[0]), records)]
    ordered = records.take(pa.array(order))
    ends = [*starts[1:].tolist(), records.num_rows]
    return [
        RoutedBatch(place, ordered.slice(start, end - start))
        for place, start, end in zip(found.tolist(), starts.tolist(), ends, strict=False)
    ]


def parse_routing(text: str) -> Routing:
    """Parse a routing: `keep`, `by-key`, `by-key:N`, `N`, or `S:T,S-S:T` (source partitions to a target); raises
    UsageError.
    """
    if text == "keep":
        return Routing("keep")
    if text == "by-key":
        return Routing("by-key")
    if text.startswith("by-key:"):
        return Routing("by-key", _count(text, text.removeprefix("by-key:")))
    if ":" in text:
        return Routing("map", places=_places(text))
    return Routing("number", _count(text, text))


def _places(text: str) -> tuple[tuple[int, int], ...]:
    places: dict[int, int] = {}
    for part in text.split(","):
        span, _, target = part.partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, last] if dash else [first, first]
        if not all(map(_is_number, [*numbers, target])) or not (
            int(numbers[0]) <= int(numbers[1]) < TOO_MANY_PARTITIONS and int(target) < TOO_MANY_PARTITIONS
        ):
            raise UsageError(
                f"{part[:80]!r} in --partitions sends no partition anywhere",
                why="it is not SOURCE:TARGET or FIRST-LAST:TARGET",
                remedy="write a map such as 0:2,1-3:0",
            )
        for source in range(int(numbers[0]), int(numbers[1]) + 1):
            if source in places:
                raise UsageError(
                    f"--partitions sends partition {source} twice",
                    why=f"to {places[source]} and to {target}",
                    remedy="give each partition one target",
                )
            places[source] = int(target)
    return tuple(sorted(places.items()))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _count(text: str, number: str) -> int:
    if _is_number(number) and 0 < int(number) <= TOO_MANY_PARTITIONS:
        return int(number)
    raise UsageError(
        f"--partitions {text[:80]} does not say where records go",
        why=f"it takes keep, by-key, by-key:N, a number up to {TOO_MANY_PARTITIONS}, or a map such as 0:2,1-3:0",
        remedy="to choose the partitions to read, name them after the topic: orders:0,2-4",
    )


SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
SHIFT = 24
LONGEST_VECTORISED = 512
"""Bytes. Longer keys are rare, and one of them would make everything wait for its every word."""
_MASK = 0xFFFFFFFF

Hashes = npt.NDArray[np.uint32]


def murmur2(key: bytes) -> int:
    """Return the hash of one key, as the 32 bits that Java has in an int, unsigned here."""
    end = len(key) & ~3
    state = SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:end]):
        mixed = word * MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> SHIFT) * MULTIPLIER & _MASK
        state = (state * MULTIPLIER & _MASK) ^ mixed
    if end < len(key):
        state = (state ^ int.from_bytes(key[end:], "little")) * MULTIPLIER & _MASK
    state = (state ^ state >> 13) * MULTIPLIER & _MASK
    return state ^ state >> 15


def key_hashes(keys: pa.BinaryArray) -> Hashes:
    """Return the hash of each key of a binary array; the hashes of null keys are meaningless."""
    starts, lengths, content = _layout(keys)
    hashes = np.empty(len(keys), np.uint32)
    # By falling length, the keys that still have a word at some position are a slice from the front.
    order = np.argsort(-lengths, kind="stable")
    num_long = int(np.count_nonzero(lengths > LONGEST_VECTORISED))
    for row in order[:num_long].tolist():
        hashes[row] = murmur2(content[starts[row] : starts[row] + lengths[row]].tobytes())
    short = order[num_long:]
    hashes[short] = _vectorised(starts[short], lengths[short], content)
    return hashes


def _layout(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return starts and lengths of keys, and the bytes of all, padded so that a word can be read anywhere."""
    _, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    if len(offsets) == 0:
        offsets = np.zeros(1, np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    content = np.zeros(end - first + 4, np.uint8)
    if data is not None:
        content[:-4] = np.frombuffer(data, np.uint8)[first:end]
    return offsets[:-1] - first, np.diff(offsets), content


def _vectorised(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]
) -> Hashes:
    """Return the hashes of keys that are in falling order of length."""
    multiplier, shift = np.uint32(MULTIPLIER), np.uint32(SHIFT)
    state: Hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths // 4
    for position in range(int(words[0]) if len(words) else 0):
        count = int(np.searchsorted(-words, -position, side="left"))
        mixed = _words_at(content, starts[:count] + 4 * position) * multiplier
        mixed ^= mixed >> shift
        mixed *= multiplier
        state[:count] = state[:count] * multiplier ^ mixed
    left = lengths % 4
    last = _words_at(content, starts + 4 * words) & (np.uint32(1) << (8 * left).astype(np.uint32)) - np.uint32(1)
    state = np.where(left > 0, (state ^ last) * multiplier, state)
    state ^= state >> np.uint32(13)
    state *= multiplier
    state ^= state >> np.uint32(15)
    return state


def _words_at(content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> Hashes:
    """Return the little-endian words that begin at these bytes."""
    word = content[places].astype(np.uint32)
    for byte in range(1, 4):
        word |= content[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word
