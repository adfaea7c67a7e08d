"""Stages that change or drop records between scan and sink, and routers that choose each record's partition.

The core writes a transaction's records and the position after them together, and after a crash it scans again from
the lowest position of any lane. All of exactly-once rests on three promises of stages and routers:

- the `offset` column stays the source's own, in rising order: rows may go away, none is added or moved;
- what happens to a record depends on that record and its source partition alone, never on its neighbours, on a
  counter, or on the clock: batches begin and end elsewhere on the next run;
- the same `fingerprint` means the same outcome for every record: a job with another one is not resumed.

What a stage drops counts as done: the position moves past it.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import UsageError
from blockgz.units import MILLISECONDS, wall_clock
from index_format.records import HEADER_TYPE, SCHEMA, Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit, ReplayRefused
from replayer.transforms.chain import Effect, TransformChain
from replayer.transforms.record import CannotTransform, ConnectRecord, RecordPart


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
# Bytes. Longer keys are rare, and one of them would make everything wait for its every word.
LONGEST_VECTORISED = 512
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


# librdkafka takes timestamp 0 for "now", so such a record gets the next millisecond.
SEND_INSTEAD_OF_ZERO = 1


def sendable(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The batch without timestamps of 0, and how many there were."""
    timestamps = batch.column("timestamp").to_numpy()
    zeros = int(np.count_nonzero(timestamps == 0))
    if not zeros:
        return batch, 0
    sent = pa.array(np.where(timestamps == 0, SEND_INSTEAD_OF_ZERO, timestamps))
    return batch.set_column(SCHEMA.get_field_index("timestamp"), SCHEMA.field("timestamp"), sent), zeros


PROVENANCE_HEADER = "blockgz-source"
NO_TIMESTAMP = -1

_SHIFT = re.compile(r"shift=([+-]?)([0-9]{1,15})(ms|s|m|h|d)", re.ASCII)
# Over 30,000 years, in ms; sums with it stay within 64 bits.
LONGEST_SHIFT = 10**15


@dataclass(frozen=True)
class Timestamps:
    """A policy for timestamps: keep them, shift them `by` ms, or use the time of sending.

    That time is the one thing that a second run does not repeat. A shifted record without a timestamp stays without.
    """

    rule: Literal["keep", "now", "shift"] = "keep"
    by: int = 0

    @property
    def fingerprint(self) -> str:
        return f"timestamps {self.by:+d} ms" if self.rule == "shift" else f"timestamps {self.rule}"

    def __str__(self) -> str:
        return f"shift={self.by:+d}ms" if self.rule == "shift" else self.rule

    def moved(self, timestamp: int, now: int) -> int:
        """The timestamp that a record gets that is sent at `now`; all in ms."""
        if self.rule == "now":
            return now
        return timestamp if timestamp == NO_TIMESTAMP else timestamp + self.by

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        """Raise RecordUnfit if a timestamp would leave what Kafka can hold."""
        times = batch.records.column("timestamp").to_numpy()
        if self.rule == "keep":
            return batch
        if self.rule == "now":
            return _with_column(batch, "timestamp", pa.array(np.full(len(times), wall_clock(), np.int64)))
        known = times != NO_TIMESTAMP
        moved = np.where(known, times + self.by, times)
        outside = known & ((moved < 0) | ((self.by > 0) & (moved < times)))
        if outside.any():
            row = int(np.argmax(outside))
            offset = batch.records.column("offset")[row].as_py()
            why = f"its timestamp {times[row]} cannot be shifted by {self.by} ms"
            raise RecordUnfit(batch.partition, offset, why, "choose another --timestamps")
        return _with_column(batch, "timestamp", pa.array(moved))


def parse_timestamps(text: str) -> Timestamps:
    """`keep`, `now`, or `shift=` and a duration such as `+30d` or `-1h`; raises UsageError."""
    if text in ("keep", "now"):
        return Timestamps("keep" if text == "keep" else "now")
    match = _SHIFT.fullmatch(text)
    duration = int(match[2]) * MILLISECONDS[match[3]] if match else 0
    if match is None or duration > LONGEST_SHIFT:
        raise UsageError(
            f"--timestamps {text[:80]} is not known",
            why="it takes keep, now, or shift= and a duration",
            remedy="write shift=+30d or shift=-90m; units are ms, s, m, h and d",
        )
    return Timestamps("shift", -duration if match[1] == "-" else duration)


@dataclass(frozen=True)
class StripHeaders:
    """A stage that removes headers by name."""

    names: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        return f"without headers {list(self.names)!r}"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        column = batch.records.column("headers")
        flat = column.flatten()
        gone = pc.is_in(flat.field("key"), pa.array(self.names, pa.string())).to_numpy(zero_copy_only=False)
        if not gone.any():
            return batch
        before = np.concatenate([[0], np.cumsum(~gone)])
        return _with_headers(batch, before[_bounds(column)], flat.filter(pa.array(~gone)))


@dataclass(frozen=True)
class AddHeader:
    """A stage that adds a header after a record's own."""

    key: str
    value: bytes

    @property
    def fingerprint(self) -> str:
        return f"with header {self.key!r} {self.value!r}"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        return _with_header(batch, self.key, pa.array([self.value] * batch.records.num_rows, pa.binary()))


def parse_header(text: str) -> AddHeader:
    """Parse `NAME=VALUE`; raises UsageError."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"{text[:80]!r} is not a header", why="it is not NAME=VALUE", remedy="write NAME=VALUE")
    return AddHeader(name, value.encode())


@dataclass(frozen=True)
class AddProvenance:
    """A header with each record's origin: `blockgz-source: topic/partition/offset`."""

    topic: str

    @property
    def fingerprint(self) -> str:
        return f"provenance {self.topic}"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        offsets = pc.cast(batch.records.column("offset"), pa.string())
        places = pc.binary_join_element_wise(f"{self.topic}/{batch.partition}/", offsets, "")
        return _with_header(batch, PROVENANCE_HEADER, pc.cast(places, pa.binary()))


class DropTombstones:
    """A stage that drops records whose value is null."""

    fingerprint = "without tombstones"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        values = batch.records.column("value")
        return batch._replace(records=batch.records.filter(values.is_valid())) if values.null_count else batch


def _with_header(batch: ScannedBatch, key: str, values: pa.BinaryArray) -> ScannedBatch:
    """Add a header to each record, after its own."""
    column = batch.records.column("headers")
    own, bounds, num_rows = column.flatten(), _bounds(column), batch.records.num_rows
    keys = pa.array([key] * num_rows, pa.string())
    added = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    # A row's own headers move back by one for each row before it; the new one comes right after them.
    taken = np.zeros(len(own) + num_rows, bool)
    taken[bounds[1:] + np.arange(num_rows)] = True
    order = np.empty(len(taken), np.int64)
    order[taken] = len(own) + np.arange(num_rows)
    order[~taken] = np.arange(len(own))
    both = pa.concat_arrays([own, added]).take(pa.array(order))
    return _with_headers(batch, bounds + np.arange(num_rows + 1), both)


def _bounds(column: pa.ListArray) -> npt.NDArray[np.int64]:
    """Return the start of each row's headers among the flattened ones, and the end of the last."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    return np.asarray(offsets - offsets[0], np.int64)


def _with_headers(batch: ScannedBatch, bounds: npt.NDArray[np.int64], flat: pa.StructArray) -> ScannedBatch:
    offsets = pa.array(bounds.astype(np.int32))
    return _with_column(batch, "headers", pa.ListArray.from_arrays(offsets, flat, type=SCHEMA.field("headers").type))


def _with_column(batch: ScannedBatch, name: str, column: pa.Array) -> ScannedBatch:
    place = SCHEMA.get_field_index(name)
    return batch._replace(records=batch.records.set_column(place, SCHEMA.field(place), column))


@dataclass
class LeftOut:
    """The counts of records that transforms left out and changed, as far as this run has read."""

    dropped: int = 0
    """Records that Filter dropped."""
    routed_elsewhere: int = 0
    """Because a router sends them to another topic than the replay's."""
    unfit: int = 0
    """Because a transform could not handle them."""
    changed: dict[str, int] = field(default_factory=dict)
    """Records that each transform changed or dropped, by its name."""

    def added(self, other: "LeftOut") -> "LeftOut":
        """Return the sums of both."""
        names = {**self.changed, **other.changed}
        return LeftOut(
            self.dropped + other.dropped,
            self.routed_elsewhere + other.routed_elsewhere,
            self.unfit + other.unfit,
            {name: self.changed.get(name, 0) + other.changed.get(name, 0) for name in names},
        )


@dataclass(frozen=True)
class TransformStage:
    """Applies a chain to records of `topic`; where the chain routes, only records that end in `target` stay."""

    chain: TransformChain
    topic: str
    target: str
    on_error: Literal["fail", "skip"] = "fail"
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)

    def __post_init__(self) -> None:
        self.left_out.changed.update(dict.fromkeys((step.alias for step in self.chain.steps), 0))

    @property
    def fingerprint(self) -> str:
        return f"{self.chain.fingerprint} from {self.topic} to {self.target}, on error {self.on_error}"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        """See Stage; raises RecordUnfit."""
        return batch._replace(records=batch_from_records(list(self._transformed(batch))))

    def _transformed(self, batch: ScannedBatch) -> Iterator[Record]:
        for record in iter_records(batch.records):
            try:
                made = self._made(batch.partition, record)
            except CannotTransform as error:
                if self.on_error == "fail":
                    remedy = "give the transform a predicate, or skip such records with --on-transform-error skip"
                    raise RecordUnfit(batch.partition, record.offset, str(error), remedy) from error
                self.left_out.unfit += 1
                continue
            if made is not None:
                yield made

    def unchanged(self, records: Iterable[tuple[int, Record]]) -> tuple[str, str] | None:
        """Return the first transform that would not do what it is there for in these records, and why.

        They come with their partitions. A record that a transform cannot handle ends the look-ahead, if it ends the
        replay.
        """
        effects = [Effect(step) for step in self.chain.steps]
        for number, (partition, record) in enumerate(records):
            given: ConnectRecord | None = self._given(partition, record)
            try:
                for effect in effects:
                    if given is not None:
                        effect.see(given)
                        given = effect.step(given)
            except CannotTransform:
                if self.on_error == "fail" and number == 0:
                    return None
                if self.on_error == "fail":
                    break
        found = ((effect.step.alias, effect.missing) for effect in effects)
        return next(((alias, why) for alias, why in found if why is not None), None)

    def _given(self, partition: int, record: Record) -> ConnectRecord:
        return ConnectRecord(
            self.topic,
            partition,
            record.offset,
            None if record.timestamp == NO_TIMESTAMP else record.timestamp,
            RecordPart(record.key, self.chain.key_converter),
            RecordPart(record.value, self.chain.value_converter),
            record.headers,
        )

    def _made(self, partition: int, record: Record) -> Record | None:
        result = self.chain(self._given(partition, record), self.left_out.changed)
        if result is None:
            self.left_out.dropped += 1
            return None
        if self.chain.routes and result.topic != self.target:
            self.left_out.routed_elsewhere += 1
            return None
        return record._replace(key=result.key.encoded(), value=result.value.encoded(), headers=result.headers)
