"""Objects that are lost or damaged behind everybody's back, and the commands that repair it beside all others.

The commands are the product's own. Some objects only seem to be missing, for less than ten minutes, and some are
refused to the commands. At the end nothing that could be read may be gone, nothing damaged may be left, and an erase
completes.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.operations import Driver
from archiver.maintain import erase
from archiver.maintain.repair import losses as product
from archiver.maintain.repair import refetch
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.plan import RepairPlan, RepairTarget
from archiver.maintain.repair.refetch import RefetchSource
from archiver.maintain.rewrite import replace as replacing
from archiver.maintain.rewrite.chunks import EmptiedRun
from blockgz.errors import AccessDenied, BlockgzError
from index_format.objects import LOST, Gap
from index_format.records import batch_from_records
from tests.support.lifecycle import maintainers
from tests.support.lifecycle.blocking import as_steps
from tests.support.lifecycle.broken import retired_not_spared
from tests.support.lifecycle.monitor import Harm, parsed
from tests.support.lifecycle.roles import MissedPromise
from tests.support.lifecycle.schedule import (
    ASKER,
    COLLECTOR,
    EXTRA,
    FOLDER,
    LOOK_UPS,
    NARROW,
    READER,
    Kind,
    Schedule,
    fan_out,
    finish,
    writer_to,
)
from tests.support.lifecycle.world import CLUSTER, STEP, Partition, World
from tests.support.memory_store import Kept
from tests.support.simulator import Fate, Run, Violation, is_write

MAX = 1 << 20
ROUNDS = 12
"""So often the repair is begun again before it has to be done."""
CommandKind = Literal["accept-loss", "refetch"]


class Hidden:
    """Objects that the store does not find for a while, although it has them."""

    def __init__(self, world: World) -> None:
        self._world, self._kept, self._hidden = world, dict[str, Kept](), set[str]()
        self.compacted = set[int]()
        """Offsets of records that Kafka no longer has."""
        self.changed = set[int]()
        """Offsets at which the log has another record by now."""
        self.copies = dict[str, Kept]()
        """Indexes that are lost or damaged, as they were."""

    def hide(self, key: str) -> None:
        """Hide it, but once: what the store does not find twice, ten minutes apart, is lost."""
        if key not in self._hidden:
            self._hidden.add(key)
            self._kept[key] = self._world.store.objects.pop(key)

    def show(self) -> None:
        """All of them are found again."""
        self._world.store.objects |= self._kept
        self._kept.clear()


def repairer(world: World, hidden: Hidden, kind: CommandKind, partition: Partition, folder: Path) -> Run:
    """`archiver repair accept-loss` or `refetch`, agreed to."""
    log, keys = partition.log, partition.identity.keys

    def read(topic: str, number: int, level: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        found = [each for each in log.records if start <= each.offset < end and each.offset not in hidden.compacted]
        found = [each._replace(value=b"another") if each.offset in hidden.changed else each for each in found]
        yield from [batch_from_records(found)] if found else []

    def work(store: Any) -> str:
        def wait(seconds: float) -> None:
            if seconds:
                world.store.now += seconds
                hidden.show()
            store.head(keys.marker)

        source = RefetchSource(lambda: CLUSTER, lambda topic: partition.identity.topic_id, read)
        try:
            plan = product.PlannedLossRepair(
                *(RepairTarget(store, keys, MAX), "memory:", folder),
                kind=kind,
                source=source if kind == "refetch" else None,
                driver=Driver(store, wait=lambda *_: None, clock=store.clock),
                clock=lambda: 0.0,
                wait=wait,
            )
        except BlockgzError as error:
            return f"not planned: {type(error).__name__}"
        if not plan.planned:
            return "nothing" if not plan.problems else "refused"
        plan.carry_out()
        return "troubled" if plan.problems else "done"

    return (yield from as_steps(work))


def index_repairer(partition: Partition) -> Run:
    """`archiver repair index`."""

    def work(store: Any) -> str:
        try:
            plan = plan_indexes(RepairTarget(store, partition.identity.keys, MAX))
        except BlockgzError as error:
            return f"not planned: {type(error).__name__}"
        plan.carry_out()
        return "done" if plan.steps else "nothing"

    return (yield from as_steps(work))


def tolerant(run: Run, *forgiven: type[Exception]) -> Run:
    """What somebody does who may come upon what is damaged."""
    try:
        return (yield from run)
    except (BlockgzError, *forgiven):
        return "troubled"


def tolerant_reader(kind: Kind) -> Kind:
    """One that may miss what it was promised, and may still be told nothing wrong."""
    return kind._replace(make=lambda *given: tolerant(kind.make(*given), MissedPromise), share=0.0)


def damage(world: World, hidden: Hidden, partition: Partition) -> None:
    """One chunk of the chain loses a block, its data, its index, or both objects, or seems to."""
    rng, keys, monitor = world.rng, partition.identity.keys, partition.monitor
    assert monitor.marker is not None
    indexes = [key for key in monitor._reach if key.endswith(".index.json") and key in world.store.objects]
    indexes = [key for key in indexes if key not in monitor.damaged]
    if not indexes:
        return
    name = rng.choice(indexes)
    index = parsed(world.store.objects[name].body)
    data = keys.chunks + index["data"]["name"]
    if data in monitor.damaged or data not in world.store.objects:
        return
    # Without its index, what comes back is not proved: the log has no other records there then.
    what = rng.choice(["block", "block", "data", "index", "seems", "refused", "block" if hidden.changed else "both"])
    world.count(f"damage: {what}")
    if what == "seems":
        hidden.hide(data)
        return
    if what == "refused":
        world.refused.add(data)
        return
    if what == "index":  # and nothing that it lists
        kept = hidden.copies[name] = world.store.objects.pop(name)
        body = kept.body[1:] if rng.random() < 0.5 else None
        if body is not None:
            world.store.objects[name] = kept._replace(body=body)
        # That records were erased, only the index told: an acceptance makes holes of them.
        erased = index.get("erased") or ()
        monitor.damage(name, body, {at for each in erased for at in range(each["from"], each["to"])})
        return
    blocks = index["chunks"]
    hit = [rng.choice(blocks)] if what == "block" else blocks
    lost = {at for block in hit for at in range(block["first_record_offset"], block["last_record_offset"] + 1)}
    kept = world.store.objects.pop(data)
    body = None
    if what == "block":
        at = hit[0]["byte_offset"] + hit[0]["byte_length"] // 2
        body = kept.body[:at] + bytes([kept.body[at] ^ 0xFF]) + kept.body[at + 1 :]
        world.store.objects[data] = kept._replace(body=body)
    monitor.damage(data, body, lost)
    if what == "both":
        hidden.copies[name] = world.store.objects.pop(name)
        # What was erased in it, only its index told.
        monitor.damage(name, None, set(range(index["start_offset"], index["next_offset"])))


def run(seed: int, _: bool = True, __: Any = None) -> Counter[str]:
    """One schedule; raises Violation."""
    rng = random.Random(seed)
    goal = rng.choice((8, 11, 14))
    world = World(rng, fan_out=NARROW, log_end=goal + EXTRA)
    schedule = Schedule(world)
    try:
        with fan_out(NARROW), tempfile.TemporaryDirectory(prefix="blockgz-") as folder:
            _run(schedule, goal, Path(folder))
    except (Harm, AssertionError, ValueError, KeyError) as error:
        raise Violation(seed, f"{type(error).__name__}: {error}", schedule.moved) from error
    return Counter(world.counts) + Counter(world.partitions[0].monitor.counts)


def _run(schedule: Schedule, goal: int, folder: Path) -> None:
    world, rng = schedule.world, schedule.world.rng
    (partition,) = world.partitions
    hidden = Hidden(world)

    def of(kind: str, make: Callable[[World, Partition, str], Run]) -> Kind:
        return Kind(kind, "maintainer", make)

    simple = {
        kind: of(kind, partial(_tolerant_maintainer, maintainers.Maintenance(kind, is_patient=True)))
        for kind in ("merge", "erase", "convert", "prune")
    }
    commands: dict[str, Kind] = {
        kind: Kind(kind, "command", lambda w, p, n, kind=kind: repairer(w, hidden, kind, p, folder))  # type: ignore[misc]
        for kind in ("accept-loss", "refetch")
    }
    commands["index"] = Kind("index", "command", lambda _, partition, __: index_repairer(partition))
    schedule.start(writer_to(goal, fair=True), partition)
    schedule.run_to_end()
    for kind in rng.sample([*simple], 2):
        schedule.start(simple[kind], partition)
        schedule.run_to_end()
    hidden.compacted = {at for at in range(goal) if rng.random() < 0.2} if rng.random() < 0.3 else set()
    hidden.changed = {at for at in range(goal) if rng.random() < 0.5} if rng.random() < 0.2 else set()
    for _ in range(rng.choice((1, 1, 2))):
        damage(world, hidden, partition)
    last = rng.choice(["accept-loss", "accept-loss", "refetch"])
    world.count(f"by {last}")
    kinds = [commands[last], commands["index"], *simple.values(), COLLECTOR, writer_to(goal + 2, name="writer")]
    kinds += [tolerant_reader(READER), tolerant_reader(LOOK_UPS)]
    for _ in range(rng.choice((60, 150))):
        world.store.now += STEP
        if not schedule.live or rng.random() < 0.06:
            schedule.start(rng.choice(kinds), partition)
        elif rng.random() < 0.005:
            damage(world, hidden, partition)
        elif rng.random() < 0.02:
            schedule.crash(rng.choice(schedule.live))
        elif world.late and rng.random() < 0.05:
            schedule.deliver(rng.randrange(len(world.late)))
        else:
            process = rng.choice(schedule.live)
            fates = (Fate.NORMAL,) * 12 + (Fate.ANSWER_LOST, Fate.LATE, Fate.DOUBLED, Fate.REPEATED)
            schedule.step(process, rng.choice(fates) if is_write(process.operation) else Fate.NORMAL)
    while schedule.live:
        schedule.crash(schedule.live[0])
    while world.late:
        schedule.deliver(0)
    _finish(schedule, commands, last, hidden)


def _finish(schedule: Schedule, commands: dict[str, Kind], last: str, hidden: Hidden) -> None:
    """Repair what is left, erase and collect: what the archive has then is what it must have."""
    world = schedule.world
    world.refused.clear()
    (partition,) = world.partitions
    monitor = partition.monitor

    def damaged() -> list[str]:
        return sorted(key for key in monitor.damaged & monitor._reach.keys() if not monitor.is_sound(key))

    schedule.start(commands["index"], partition)
    schedule.run_to_end()
    for key in set(damaged()) & hidden.copies.keys():
        data = monitor._chunks + parsed(hidden.copies[key].body)["data"]["name"]
        if monitor.is_sound(data):  # also if a late request stored it again
            world.count("index from a copy")
            world.store.objects[key] = hidden.copies[key]
            monitor.stored(key, hidden.copies[key].body)
    for key in damaged():
        # Somebody has to see that data without an index, of a writer that died here, is not what was lost.
        beside = [each for each in world.store.objects if each.startswith(key[: len(monitor._chunks) + 20])]
        for other in set(beside) - monitor._reach.keys() if key.endswith(".json") else ():
            del world.store.objects[other], monitor.digests[other]
    for kind in [*([last] * ROUNDS), "accept-loss"]:
        world.store.now += 3 * 3600
        before = Counter(world.counts)
        schedule.start(commands[kind], partition)
        schedule.run_to_end()
        if (Counter(world.counts) - before)[f"{kind} nothing"]:
            break
    hidden.show()
    if left := damaged():
        raise Harm(f"{left[0]} is damaged, and still part of the archive")
    _erase_all(schedule)
    finish(schedule)


def _erase_all(schedule: Schedule) -> None:
    """Erase what is to be erased, as is possible in a sound archive."""
    partition = schedule.world.partitions[0]
    erase = maintainers.Maintenance("erase", is_patient=True)
    eraser = Kind(
        "last erase", "maintainer", lambda world, partition, _: maintainers.maintainer(world, partition, erase)
    )
    for _ in range(2 * ROUNDS):
        if not partition.monitor.secrets_left():
            return
        for kind in (ASKER, FOLDER, eraser):
            schedule.world.store.now += 3 * 3600
            schedule.start(kind._replace(in_all=99), partition)
            schedule.run_to_end()
    raise Harm("an erase does not complete")


def _tolerant_maintainer(what: maintainers.Maintenance, world: World, partition: Partition, _: str) -> Run:
    return tolerant(maintainers.maintainer(world, partition, what), Harm, AssertionError)


@contextmanager
def chunk_lost_with_its_block() -> Iterator[None]:
    """A chunk with an unreadable block is lost as a whole."""

    def changed(rewrite: Any, chunk: Any, buffer: Any) -> Any:
        new = real(rewrite, chunk, buffer)
        return new if new is chunk else EmptiedRun(chunk.entry.start_offset, chunk.entry.next_offset, "lost")

    real = product.LossRewrite.changed
    with (
        patch.object(product.LossRewrite, "changed", changed),
        patch.object(product.LossRewrite, "check", lambda *_: None),
    ):
        yield


@contextmanager
def gap_not_in_the_catalog() -> Iterator[None]:
    """What is lost inside a chunk is listed by its index alone."""

    def stored(*arguments: Any) -> Any:
        items = yield from real(*arguments)
        return [each for each in items if not (isinstance(each, EmptiedRun) and _is_inside(each, items))]

    real = replacing._stored_chunks
    with patch.object(replacing, "_stored_chunks", stored):
        yield


def _is_inside(gap: EmptiedRun, items: Any) -> bool:
    entries = [each for each in items if not isinstance(each, EmptiedRun)]
    return any(each.start_offset <= gap.start_offset < each.next_offset for each in entries)


@contextmanager
def refetch_unchecked() -> Iterator[None]:
    """Whatever Kafka has at these offsets comes back."""
    with (
        patch.object(refetch, "facts", lambda blocks: ()),
        patch.object(refetch, "is_provable", lambda index, **_: False),
    ):
        yield


@contextmanager
def tail_not_folded() -> Iterator[None]:
    """Nobody folds the newest chunks first."""

    def nothing(*_: Any) -> Any:
        yield from ()

    with patch.object(erase, "fold_tail", nothing):
        yield


@contextmanager
def loss_is_not_looked_at_again() -> Iterator[None]:
    """The rewrite believes its plan."""

    def look_at(search: Any, chunk: Any) -> Any:
        known = seen.setdefault(id(search), {})
        key = product.identity_of(chunk.entry)
        if key not in known:
            known[key] = real(search, chunk)
        return known[key]

    seen: dict[int, dict[Any, Any]] = {}
    real = product.LossSearch.look_at
    with patch.object(product.LossSearch, "look_at", look_at):
        yield


@contextmanager
def refused_is_lost() -> Iterator[None]:
    """What the store refuses is taken for missing."""

    def look_at(search: Any, chunk: Any) -> Any:
        try:
            return real(search, chunk)
        except AccessDenied:
            key = search._keys.data_key(chunk.index)
            return product.Loss(chunk, key, is_missing=True, blocks=frozenset(range(len(chunk.index.blocks))))

    real = product.LossSearch.look_at
    with patch.object(product.LossSearch, "look_at", look_at):
        yield


@contextmanager
def erased_comes_back() -> Iterator[None]:
    """A rewritten chunk without its index comes back, and its data is not compared with what does."""
    with (
        patch.object(refetch, "is_rewritten", lambda _: False),
        patch.object(product.PlannedLossRepair, "_check_data", lambda *_: None),
    ):
        yield


@contextmanager
def refetch_takes_what_was_erased() -> Iterator[None]:
    """Records that were erased from a block come back with it."""

    def encoded(log: Any, builder: Any, index: Any, entry: Any) -> Any:
        return real(log, builder, replace(index, erased=UNSET), entry)

    real = refetch.RefetchLog._encoded
    with refetch_unchecked(), patch.object(refetch.RefetchLog, "_encoded", encoded):
        yield


def lost_gaps_cut(first: int, last: int) -> AbstractContextManager[Any]:
    """Gaps of what is lost begin and end so many offsets later, within their chunk."""

    def cut(index: Any, lost: Any) -> list[Gap]:
        moved = [(gap.start + first, min(gap.end + last, index.next_offset)) for gap in real(index, lost)]
        return [Gap(start, end, LOST) for start, end in moved if start < end]

    real = product._lost_gaps
    return patch.object(product, "_lost_gaps", cut)


@contextmanager
def data_without_its_index_is_lost() -> Iterator[None]:
    """A lost index means that the chunk is lost, whatever its data holds."""
    nothing = RepairPlan()
    with (
        patch.object(product.LossSearch, "found_in_data", lambda *_: None),
        patch.object(product, "plan_indexes", lambda _: nothing),
    ):
        yield


BROKEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    # What the store does not find once is lost.
    "one_look": partial(patch.object, product, "SECOND_LOOK_SECONDS", 0.0),
    "chunk_lost_with_its_block": chunk_lost_with_its_block,
    "gap_not_in_the_catalog": gap_not_in_the_catalog,
    "refetch_unchecked": refetch_unchecked,
    "tail_not_folded": tail_not_folded,
    "loss_is_not_looked_at_again": loss_is_not_looked_at_again,
    "refused_is_lost": refused_is_lost,
    "crc_not_compared": partial(patch.object, refetch, "is_provable", lambda index, **_: False),
    "refetch_takes_what_was_erased": refetch_takes_what_was_erased,
    # A rewritten chunk without its index comes back, although records may have been erased in it.
    "erased_is_unknown_and_comes_back": erased_comes_back,
    "lost_gap_begins_late": partial(lost_gaps_cut, 1, 0),
    "lost_gap_ends_late": partial(lost_gaps_cut, 0, 1),
    "data_without_its_index_is_lost": data_without_its_index_is_lost,
    "gc_takes_what_was_replaced": retired_not_spared,
}
