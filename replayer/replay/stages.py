"""Stages that change records on request: timestamps, headers, tombstones, and a chain of transforms.

Each is a stage of `pipeline`. A batch in which nothing changes is handed on as it is.
"""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import UsageError
from blockgz.units import MILLISECONDS
from index_format.records import HEADER_TYPE, SCHEMA, Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit
from replayer.replay.pipeline import ScannedBatch
from replayer.transforms.chain import Effect, TransformChain
from replayer.transforms.record import CannotTransform, ConnectRecord, RecordPart

SEND_INSTEAD_OF_ZERO = 1
"""librdkafka takes timestamp 0 for "now", so such a record gets the next millisecond."""


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
LONGEST_SHIFT = 10**15
"""Over 30,000 years, in ms; sums with it stay within 64 bits."""


def wall_clock() -> int:
    """Return the time, ms since the epoch."""
    return time.time_ns() // 1_000_000


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
