"""Compacting partitions as planned: one rewrite for each run of catalogs, more where the buffer has too little room."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from archiver.commit.continuation import turn_of
from archiver.commit.driver import Driver
from archiver.commit.operations import Protocol
from archiver.ingest.buffer import BufferFolder
from archiver.maintain.compact.planning import PartitionPlan, PlannedRun
from archiver.maintain.contents.compact import CompactedContents, Compaction
from archiver.maintain.contents.data import RangeStore, data_in
from archiver.maintain.rewrite.intent import Outcome
from archiver.maintain.rewrite.replacing import Rewrite, rewrite
from archiver.maintain.rewrite.tree import Run, find_run
from blockgz.store.opening import default_buffer_root
from index_format.errors import BlockgzError
from index_format.keys import PartitionKeys
from index_format.marker import Marker


class Compacted(NamedTuple):
    """How the compaction of one partition ended."""

    plan: PartitionPlan
    done: tuple[PlannedRun, ...]
    """The runs that were committed."""
    outcome: Outcome
    """COMMITTED where all were; else how the last of the others ended."""
    error: BlockgzError | None = None


class Room(NamedTuple):
    """What a compaction may use."""

    buffers: BufferFolder
    buffer_bytes: int
    """Of chunks that are stored again at once, unless a single new one has more."""
    max_block_bytes: int


@contextmanager
def room_of(archive: str, buffer_dir: Path | None, buffer_bytes: int, max_block_bytes: int) -> Iterator[Room]:
    """A room in `buffer_dir`, or where the buffer of that archive is, given back at the end; raises BufferFailed."""
    buffers = BufferFolder(buffer_dir or default_buffer_root(archive))
    try:
        yield Room(buffers, buffer_bytes, max_block_bytes)
    finally:
        buffers.close()


def carry_out(
    store: RangeStore,
    plans: Sequence[PartitionPlan],
    compaction: Compaction,
    driver: Driver,
    room: Room,
    on_done: Callable[[Compacted], None],
) -> None:
    """Compact each partition as planned; `on_done` gets how each ended. Trouble with one does not keep others back."""
    for plan in plans:
        done, outcome, failure = list[PlannedRun](), Outcome.COMMITTED, None
        try:
            for run in plan.runs:
                ended = _compact(store, plan.keys, run, compaction, driver, room)
                if ended is Outcome.COMMITTED:
                    done.append(run)
                else:
                    outcome = ended
                if ended not in (Outcome.COMMITTED, Outcome.NOTHING):
                    break
        except BlockgzError as error:
            failure = error
        on_done(Compacted(plan, tuple(done), outcome, failure))


def _compact(
    store: RangeStore, keys: PartitionKeys, run: PlannedRun, compaction: Compaction, driver: Driver, room: Room
) -> Outcome:
    """Rewrite one run, in parts if the buffer has no room for the whole of it."""

    def choose(marker: Marker) -> Protocol[Run | None]:
        work.turn = yield from turn_of(keys, marker)
        return (yield from find_run(keys, marker, run.start, run.end))

    start: int | None = run.start
    while start is not None:
        data_of = data_in(store, keys, compaction.keys.keyring)
        new_contents = partial(CompactedContents, data_of, room.buffers, compaction, start=start)
        work = new_contents(buffer_bytes=room.buffer_bytes, max_block_bytes=room.max_block_bytes)
        try:
            outcome = driver.run(
                rewrite(keys, choose, Rewrite(compaction.kind, work.contents, work.check, is_repacked=True))
            )
        finally:
            work.discard()
        if outcome is not Outcome.COMMITTED:
            return outcome
        start = work.left_from
    return Outcome.COMMITTED
