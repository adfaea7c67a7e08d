"""The answer to a fetch: record batches of many partitions, waited for as long as the client wants to wait."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from blockgz.archive.partition import MOST_REWRITES, ArchivedPartition, Chunk, Damaged
from blockgz.errors import BlockgzError, KeyMissing, NotInArchive
from index_format.marker import block_at_or_after
from index_format.objects import ERASED, Gap
from replayer.broker.batches import RecordBatch, empty_batch
from replayer.broker.block_cache import BlockCache
from replayer.broker.partition_logs import Log

log = logging.getLogger(__name__)
T = TypeVar("T")

# Kafka's error codes.
OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 2, 3
TOPIC_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR = 29, 56
MOST_RESPONSE_BYTES = 8 * 1024 * 1024
# Gaps and damage that were already logged, at most.
_MOST_ANNOUNCED = 10_000
_READING_SECONDS = 5.0
# Steps that are running, or failed when nobody waited for them.
_MOST_STEPS = 10_000


class GapInTheWayError(Exception):
    """A recorded gap at which reading stops."""


def error_code(error: BlockgzError) -> int:
    """Return Kafka's code: one that clients retry if the store may answer later, none that makes them jump."""
    if isinstance(error, Damaged):
        return CORRUPT_MESSAGE
    if isinstance(error, NotInArchive):
        return UNKNOWN_TOPIC_OR_PARTITION
    return TOPIC_AUTHORIZATION_FAILED if isinstance(error, KeyMissing) else KAFKA_STORAGE_ERROR


class Allowance:
    """The bytes of all responses that are being made or sent; what finds no room waits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._given_back = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Return when there is room for `size` bytes, or no other response."""
        async with self._given_back:
            await self._given_back.wait_for(lambda: not self._held or self._held + size <= self._most)
            self._held += size

    async def give_back(self, size: int) -> None:
        async with self._given_back:
            self._held -= size
            self._given_back.notify_all()


@dataclass
class FetchState:
    """The state that all fetches of a broker share."""

    blocks: BlockCache
    allowance: Allowance
    stops_at_gaps: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    _announced: OrderedDict[tuple[str, int, str], None] = field(default_factory=OrderedDict)
    _steps: OrderedDict[tuple[Log, int], asyncio.Task[Any]] = field(default_factory=OrderedDict)

    def announce(self, kind: str, place: Log, offset: int, text: str) -> None:
        """Count it, and log it once."""
        self.counts[kind] += 1
        key = str(place), offset, kind
        if key not in self._announced:
            self._announced[key] = None
            log.warning("%s of %s at offset %d: %s", kind, place, offset, text)
        if len(self._announced) > _MOST_ANNOUNCED:
            self._announced.popitem(last=False)

    async def step(self, place: Log, offset: int, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work at an offset, which continues if its caller is cancelled.

        Otherwise, a slow store would get the same requests again with each fetch of an impatient client.
        """
        key = place, offset
        task = self._steps.get(key)
        if task is None:
            task = self._steps[key] = asyncio.create_task(work)
            task.add_done_callback(partial(self._ended, key))
        else:
            work.close()
        try:
            found: T = await asyncio.shield(task)
            return found
        finally:
            if task.done():
                self._steps.pop(key, None)

    def _ended(self, key: tuple[Log, int], task: asyncio.Task[Any]) -> None:
        # An error that nobody waits for is kept for the next fetch at that offset.
        if task.cancelled() or task.exception() is None:
            self._steps.pop(key, None)
        if len(self._steps) > _MOST_STEPS:
            self._steps.popitem(last=False)

    async def close(self) -> None:
        """Cancel all steps."""
        for task in self._steps.values():
            task.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)


class Room:
    """The bytes that one response may still take; its first batch may be larger."""

    def __init__(self, most: int, enough: int, allowance: Allowance) -> None:
        self._most, self._enough = most, enough
        self.taken = 0
        self._allowance = allowance
        self._admitting = asyncio.Lock()
        self.allowed = 0
        """The bytes to give back when the response is sent."""
        self.is_enough = asyncio.Event()

    async def take(self, size: int) -> bool:
        """Return whether a batch of `size` bytes fits in; wait until the broker has memory for the response."""
        async with self._admitting:
            if not self.allowed:
                await self._allowance.take(self._most)
                self.allowed = self._most
        fits = not self.taken or self.taken + size <= self._most
        if fits:
            self.taken += size
        if not fits or self.taken >= self._enough:
            self.is_enough.set()
        return fits


class PartitionFetch:
    """One partition's part of a fetch: filled until its room is used up."""

    def __init__(self, topic: str, number: int, offset: int, most: int, place: Log | None) -> None:
        self.topic, self.number, self.offset = topic, number, offset
        self._most = most
        self._log = place
        self._is_full = False
        self.error = 0 if place is not None else UNKNOWN_TOPIC_OR_PARTITION
        self.start = self.end = -1
        self.batches: list[RecordBatch] = []

    @property
    def position(self) -> int:
        """The offset from which a client that has this answer fetches next."""
        return self.batches[-1].end if self.batches else self.offset

    def look(self, changed: asyncio.Event) -> bool:
        """Return whether there is something to do now; if not, have `changed` set when there may be."""
        if self._log is None or self.error or self._is_full:
            return False
        self._log.follow(changed)
        known = self._log.known
        if known is None:
            return True
        self.start, self.end = known.start_offset, known.next_offset
        return self.position != self.end

    def unfollow(self, changed: asyncio.Event) -> None:
        if self._log is not None:
            self._log.unfollow(changed)

    async def fill(self, reading: FetchState, room: Room, ahead: int) -> None:
        """Read until the room is full, or all that is archived is read."""
        assert self._log is not None
        try:
            await self._fill(self._log, reading, room, ahead)
        except BlockgzError as error:
            reading.announce("damage" if isinstance(error, Damaged) else "error", self._log, self.position, str(error))
            self._fail(error_code(error), room)
        except GapInTheWayError:
            self._fail(CORRUPT_MESSAGE, room)

    def _fail(self, code: int, room: Room) -> None:
        """Answer with an error, unless there are batches: then the next fetch comes to it."""
        self.error = 0 if self.batches else code
        room.is_enough.set()

    async def _fill(self, place: Log, reading: FetchState, room: Room, ahead: int) -> None:
        partition = await self._looked(place)
        if not self.start <= self.offset <= self.end:
            self._fail(OFFSET_OUT_OF_RANGE, room)
            return
        rewrites = 0
        while self.position < self.end:
            try:
                work = self._next(place, partition, reading, ahead)
                batches = await reading.step(place, self.position, work)
            except Damaged:
                # The objects may have been rewritten, and deleted, since the marker was read.
                newer = await place.partition(most_age=0)
                rewrites += 1
                if newer is partition or rewrites > MOST_REWRITES:
                    raise
                partition = await self._looked(place)
                continue
            self._is_full = not await self._take([batch for batch in batches if batch.end > self.position], room)
            if self._is_full:
                return

    async def _looked(self, place: Log) -> ArchivedPartition:
        partition = await place.partition()
        self.start, self.end = partition.start_offset, partition.next_offset
        return partition

    async def _take(self, batches: Sequence[RecordBatch], room: Room) -> bool:
        for batch in batches:
            size = len(batch.data)
            if (self.batches and size > self._most) or not await room.take(size):
                return False
            self._most -= size
            self.batches.append(batch)
        return self._most > 0

    async def _next(
        self, place: Log, partition: ArchivedPartition, reading: FetchState, ahead: int
    ) -> Sequence[RecordBatch]:
        at = self.position
        found = await _block_from(partition, at)
        first = self.end if found is None else found[0].index.blocks[found[1]].first_record_offset
        if first > at:
            await self._cross(place, partition, reading, found and found[0], first)
        if found is None:
            # Otherwise a client that waits for the end would wait forever.
            return [empty_batch(at, self.end)]
        return await reading.blocks.block(partition, *found, ahead)

    async def _cross(
        self, place: Log, partition: ArchivedPartition, reading: FetchState, chunk: Chunk | None, first: int
    ) -> None:
        """Announce what the archive lacks of [position, first); raise GapInTheWayError if reading stops there."""
        at = self.position
        inside: list[Gap | None] = [gap for gap in (chunk.gaps if chunk else ()) if gap.start < first and gap.end > at]
        inside += [await partition.gap_at(at), await partition.gap_at(first - 1)]
        for gap in inside:
            if gap is not None and gap.reason != ERASED and partition.telling([gap]):
                reading.announce("gap", place, gap.start, f"[{gap.start}..{gap.end}) is not archived: {gap.reason}")
                if reading.stops_at_gaps:
                    raise GapInTheWayError


async def _block_from(partition: ArchivedPartition, offset: int) -> tuple[Chunk, int] | None:
    entry = await partition.chunk_at_or_after(offset)
    while entry is not None:
        chunk = await partition.chunk(entry)
        number = block_at_or_after(chunk.index.blocks, offset)
        if number is not None:
            return chunk, number
        entry = await partition.chunk_at_or_after(entry.next_offset)
    return None


async def fetched(
    parts: Sequence[PartitionFetch], request: dict[str, Any], reading: FetchState, ahead: Sequence[int]
) -> Room:
    """Fill the parts of a request: until there is enough, an error, or the client's time is over.

    Return the room, of which the caller gives back what was allowed.
    """
    most = max(1, min(request["max_bytes"], MOST_RESPONSE_BYTES))
    room = Room(most, max(1, request["min_bytes"]), reading.allowance)
    if any(part.error for part in parts):
        room.is_enough.set()
    changed = asyncio.Event()
    fills: dict[asyncio.Task[None], int] = {}
    idle = set(range(len(parts)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request["max_wait_ms"] / 1000
    is_filled = False
    try:
        while True:
            for number in [number for number in idle if parts[number].look(changed)]:
                idle.discard(number)
                fills[asyncio.create_task(parts[number].fill(reading, room, ahead[number]))] = number
            # As from a disk: what is archived is read, however short the client's time is.
            longest = deadline + _READING_SECONDS if fills and not room.taken else deadline
            if room.is_enough.is_set() or loop.time() >= longest:
                break
            ended = await _first([room.is_enough, changed], fills, longest - loop.time())
            idle |= {fills.pop(task) for task in ended}
            changed.clear()
        await asyncio.sleep(0)  # what is read already is taken along
        is_filled = True
    finally:
        for part in parts:
            part.unfollow(changed)
        for task in fills:
            task.cancel()
        await asyncio.gather(*fills, return_exceptions=True)
        if not is_filled:
            await reading.allowance.give_back(room.allowed)
    return room


async def _first(
    events: Sequence[asyncio.Event], tasks: Iterable[asyncio.Task[None]], seconds: float
) -> list[asyncio.Task[None]]:
    """Wait until an event is set or a task ends, at most some seconds; return those tasks, or raise their error."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait({*waits, *tasks}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    ended = [task for task in tasks if task.done()]
    for task in ended:
        task.result()
    return ended
