"""Who works on a simulated archive: what the product does, put together as its services and commands do it."""

import random
from functools import partial

from msgspec.structs import replace

from archiver.commit.commit import Held, commit_chunk, commit_progress, read_marker
from archiver.commit.operations import CompareAndSwap, Get, Protocol
from archiver.commit.recovery import claim_and_fold, close_folder, take_over
from archiver.commit.repairs import insert_chunk
from archiver.errors import FolderClosed, OwnedByAnother, SalvageRefused
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, Lost, Outcome, look_up_all
from blockgz.archive.partition import ArchivedPartition
from blockgz.errors import StoreUnavailable
from blockgz.store.writer import StoredObject
from index_format import marker as markers
from index_format.keys import LAYOUTS, TopicFolder
from index_format.marker import Maintenance
from tests.support.chunks import POLICY, finished_chunk
from tests.support.lifecycle.coroutines import AskingReader, as_process
from tests.support.lifecycle.monitor import SAID, Harm, Json, body_of, parsed, records_of, sha256_of
from tests.support.lifecycle.world import PROMISE, Partition, World, is_hole
from tests.support.simulator import Run

READER_PATIENCE = 30


class MissedPromise(Harm):
    """A reader did not find what the marker leads to that it read."""


def writer(world: World, partition: Partition, name: str, goal: int, *, fair: bool = False) -> Run:
    """Archives the log up to `goal`; one that is fair takes over again whenever it was fenced."""
    rng = world.rng
    while True:
        try:
            claimed = yield from take_over(partition.identity, name, POLICY)
            held, position = claimed.held, claimed.position
            while position < goal:
                held = yield from _some_more(rng, partition, held, position, goal)
                assert held.marker.next_offset is not None
                position = held.marker.next_offset
            return "done"
        except FolderClosed:
            return "closed"
        except OwnedByAnother:
            if not fair:
                return "fenced"


def _some_more(rng: random.Random, partition: Partition, held: Held, position: int, goal: int) -> Protocol[Held]:
    """The next chunk, or progress over offsets without a record."""
    upto = min(goal, position + rng.randint(1, 3))
    here = tuple(record for record in partition.log.records if position <= record.offset < upto)
    if not here or (is_hole(position) and rng.random() < 0.5):
        end = here[0].offset if here else upto
        return (yield from commit_progress(partition.identity, held, end))
    chain_end = held.marker.chain_end
    start = position if chain_end is None else chain_end
    chunk = finished_chunk(partition.identity.record_format, here, start, upto)
    return (yield from commit_chunk(partition.identity, held, chunk))


def salvager(world: World, partition: Partition, name: str) -> Run:
    """Puts records that a gap of the marker lists as lost in its place."""
    found: StoredObject | None = yield Get(partition.identity.keys.marker)
    gaps = parsed(found.body)["gaps"] if found is not None else []
    if not gaps:
        return "nothing"
    gap = world.rng.choice([gap for gap in gaps if gap["reason"] == "retention"] or gaps)
    start = world.rng.randrange(gap["from"], gap["to"])
    end = world.rng.randint(start + 1, gap["to"])
    here = tuple(record for record in partition.log.records if start <= record.offset < end)
    if not here:
        return "nothing"
    chunk = finished_chunk(partition.identity.record_format, here, start, end)
    try:
        yield from insert_chunk(partition.identity, chunk, name)
    except SalvageRefused:
        return "refused"
    except OwnedByAnother:
        return "fenced"
    return "done"


def folder(partition: Partition, name: str) -> Run:
    """Folds what a maintainer asked for, where nobody writes."""
    try:
        yield from claim_and_fold(partition.identity.keys, name)
    except OwnedByAnother:
        return "fenced"
    return "done"


def asker(partition: Partition) -> Run:
    """A maintainer that asks the writer to fold its tail early; one swap, whatever becomes of it."""
    keys = partition.identity.keys
    held = yield from read_marker(keys.marker)
    if held is None or held.marker.next_offset is None:
        return "nothing"
    before = held.marker.maintenance or Maintenance()
    asked = replace(before, fold_before=held.marker.next_offset, revision=before.revision + 1)
    body = markers.encode(replace(held.marker, version=2, maintenance=asked))
    try:
        swapped = yield CompareAndSwap(keys.marker, body, held.etag)
    except StoreUnavailable:
        return "not answered"
    return "done" if swapped else "overtaken"


def closer(partition: Partition, name: str) -> Run:
    """Names the partition's successor: its topic was created again."""
    following = LAYOUTS[partition.identity.keys.layout](TopicFolder(partition.identity.topic, 2), 0)
    keys = partition.identity.keys
    try:
        held = yield from read_marker(keys.marker)
        if held is None or held.marker.successor is not None:
            return "nothing"
        yield from close_folder(keys, held, str(following.folder), name)
    except OwnedByAnother:
        return "fenced"
    return "done"


def reader(world: World, partition: Partition) -> Run:
    """Reads all offsets one after another from a marker that it read once, as long as that is good."""
    key = partition.identity.keys.marker
    found: StoredObject | None = yield Get(key)
    if found is None:
        return "nothing"
    marker, read_at, again = parsed(found.body), world.store.now, 0
    offset = marker.get("start_offset") or 0
    end, said = marker.get("next_offset") or 0, dict[int, bytes | str]()
    while offset < end:
        floor = body_of(marker).get("pruned_before", 0)
        if offset < floor:
            said |= dict.fromkeys(range(offset, floor), "pruned")
            offset = floor
            continue
        answer = yield from _look_up(partition, marker, offset)
        if answer is not None:
            offset, records = answer
            said |= records
            continue
        if world.store.now <= read_at + PROMISE or again > READER_PATIENCE:
            raise MissedPromise(f"a reader misses what it was promised, at offset {offset}")
        found = yield Get(key)
        assert found is not None
        marker, read_at, again = parsed(found.body), world.store.now, again + 1
        world.count("a reader read the marker again")
    truth = partition.monitor.truth
    for offset, what in said.items():
        right = offset < partition.monitor.floor if what == "pruned" else truth.fits(offset, what)
        if not right and truth.values.get(offset) != what:  # an old marker still tells what was erased since
            raise Harm(f"a reader was told {what!r} of offset {offset}")
    return "done"


def look_ups(world: World, partition: Partition) -> Run:
    """The replayer's look-ups of all offsets, from a marker that it read once, as long as that is good."""
    if not partition.monitor.next_offset:
        return "nothing"
    keys, truth, read_at = partition.identity.keys, partition.monitor.truth, world.store.now

    async def opened(reader: AskingReader) -> ArchivedPartition:
        return await ArchiveReader(reader).open_partition(f"{keys.folder}~1", keys.partition)

    async def look_up(reader: AskingReader, archived: ArchivedPartition, offset: int) -> Outcome:
        archived.reader = reader
        outcome = (await look_up_all(archived, [offset]))[offset]
        if keys.marker in reader.read:
            if world.store.now <= read_at + PROMISE and not isinstance(outcome, Lost):
                raise MissedPromise(
                    f"a look-up had to read the marker again for offset {offset}, sooner than was promised"
                )
            world.count("a look-up read the marker again by itself")
        return outcome

    archived = yield from as_process(opened)
    again = 0
    offset, end = archived.start_offset, archived.next_offset
    while offset < end:
        outcome = yield from as_process(partial(look_up, archived=archived, offset=offset))
        if isinstance(outcome, Lost):
            if world.store.now <= read_at + PROMISE or again > READER_PATIENCE:
                raise MissedPromise(f"a look-up misses what it was promised, at offset {offset}: {outcome.error!r}")
            archived, again, read_at = (yield from as_process(opened)), again + 1, world.store.now
            world.count("a look-up read the marker again")
            continue
        what = _told(outcome)
        right = offset < partition.monitor.floor if what == "pruned" else truth.fits(offset, what)
        if not right and truth.values.get(offset) != what:
            raise Harm(f"a look-up of offset {offset} was told {outcome}")
        offset += 1
    return "done"


def _told(outcome: Outcome) -> bytes | str:
    if isinstance(outcome, FoundRecord):
        return outcome.record.value or b""
    is_lost = isinstance(outcome, Lost) or outcome.why.endswith(": lost")  # unreadable, or in a gap of that reason
    return "lost" if is_lost else outcome.kind.replace(" ", "")


def _look_up(partition: Partition, marker: Json, offset: int) -> Protocol[tuple[int, dict[int, bytes | str]] | None]:
    """The chunk or gap at an offset: where it ends, and what it says; None where an object is not what it must be."""
    keys = partition.identity.keys
    gaps = list(marker["gaps"])
    spans = [(each, level) for level, list_ in enumerate(marker["catalogs"], 1) for each in list_]
    spans += [(each, 0) for each in marker["tail"]]
    while True:
        hit = next(
            ((each, level) for each, level in spans if each["start_offset"] <= offset < each["next_offset"]), None
        )
        if hit is None:
            gap = next((gap for gap in gaps if gap["from"] <= offset < gap["to"]), None)
            if gap is None:  # progress behind a gap, where no entry can be raised
                return marker["next_offset"], dict.fromkeys(range(offset, marker["next_offset"]), "hole")
            what = SAID.get(gap["reason"], "gap")
            return gap["to"], dict.fromkeys(range(offset, gap["to"]), what)
        span, level = hit
        body = yield from _sound((keys.home if level else keys.chunks) + span["name"], span["sha256"])
        if body is None:
            return None
        content = parsed(body)
        if level:
            gaps += content.get("gaps", ())
            spans = [(each, level - 1) for each in content["entries"]]
            continue
        data = yield from _sound(keys.chunks + content["data"]["name"], content["data"]["sha256"])
        if data is None:
            return None
        said: dict[int, bytes | str] = dict.fromkeys(range(offset, span["next_offset"]), "hole")
        said |= {at: what for at, what in records_of(body, data).items() if at >= offset}
        return span["next_offset"], said


def _sound(key: str, sha256: str) -> Protocol[bytes | None]:
    """The object where it is the one that was meant: a name that gc freed may be taken again, by a late upload."""
    found: StoredObject | None = yield Get(key)
    return found.body if found is not None and sha256_of(found.body) == sha256 else None
