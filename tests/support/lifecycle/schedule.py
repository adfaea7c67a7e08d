"""Random schedules: who moves next, who sleeps, who dies, and what becomes of each request is drawn from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import NamedTuple

from index_format import marker as markers
from index_format import objects
from tests.support.lifecycle import maintainers, roles
from tests.support.lifecycle.monitor import Harm, body_of, recovered
from tests.support.lifecycle.world import GRACE, SKEW, STEP, Partition, Process, World
from tests.support.simulator import Fate, Moved, Run, Step, Violation, is_write

WIDE, WIDE_SHARE, WIDE_END = 64, 100, 160
NARROW = 2
"""The fan-out of most schedules, so that all the time something folds."""
FAIR_STEPS = 30_000
FATES = (
    (0.08, Fate.ANSWER_LOST),
    (0.15, Fate.LATE),
    (0.19, Fate.DOUBLED),
    (0.21, Fate.REPEATED),
    (0.24, Fate.NOT_APPLIED),
)
"""What becomes of a write, by a number that is drawn; above them all it goes well."""
EXTRA = 4
"""Offsets that the last writer archives when the faults are over."""


class Kind(NamedTuple):
    """A kind of process, and how many of it there are."""

    name: str
    role: str
    """writer, maintainer, gc or reader: what it may do."""
    make: Callable[[World, Partition, str], Run]
    share: float = 0.0
    """How often one is started, a step."""
    at_once: int = 99
    in_all: int = 10**9
    if_wanted: Callable[[Partition], bool] = lambda _: True
    """Whether there is anything to do for it."""


class Schedule:
    """Processes that are let loose on a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.live: list[Process] = []
        self.last: Process | None = None
        """Who moved last."""
        self.moved: list[Moved] = []
        self._started: dict[str, int] = {}

    def start(self, kind: Kind, partition: Partition) -> None:
        """One more process, unless there are enough of its kind."""
        number = self._started.get(kind.name, 0)
        running = sum(process.kind == kind.name for process in self.live)
        if number >= kind.in_all or running >= kind.at_once or not kind.if_wanted(partition):
            return
        self._started[kind.name] = number + 1
        name = f"{kind.name}-{number}"
        process = Process(self.world, name, kind.name, kind.role, kind.make(self.world, partition, name), partition)
        self.live.append(process)
        self._bury(process)

    def step(self, process: Process, fate: Fate = Fate.NORMAL) -> Process | None:
        """Let it move; the process where that was its last step."""
        operation = process.operation
        assert operation is not None
        if is_write(operation):
            self.world.sent.append((process, operation))
        self.moved.append(Moved(process.name, operation, fate._value_))
        process.step(fate)
        return self._bury(process)

    def crash(self, process: Process) -> None:
        self.moved.append(Moved(process.name, process.operation, "died"))
        process.kill()
        self.live.remove(process)

    def deliver(self, number: int, *, again: bool = False) -> None:
        """A request that is under way arrives; another copy of it may stay under way."""
        late = self.world.late
        process, request = late[number] if again else late.pop(number)
        self.moved.append(Moved(process.name, request, "arrives late"))
        process.carry_out(request)

    def run_to_end(self) -> None:
        while self.live:
            self.world.store.now += STEP
            self.step(self.live[0])

    def _bury(self, process: Process) -> Process | None:
        if process.operation is not None:
            return None
        self.live.remove(process)
        if process.failure is not None:
            raise Harm(f"{process.name}: {process.failure!r}")
        self.world.count(f"{process.kind} {process.result}")
        return process


@contextmanager
def fan_out(width: int) -> Iterator[None]:
    """A smaller fan-out than the product's, so that short archives fold; and no object is decoded twice."""
    before = markers.FAN_OUT, objects.decode
    markers.FAN_OUT, objects.decode = width, _decoded_once
    try:
        yield
    finally:
        markers.FAN_OUT, objects.decode = before


_decoded_once = lru_cache(maxsize=20_000)(objects.decode)


def run(seed: int, *, strict: bool = True) -> World:
    """One schedule; raises Violation. One of WIDE_SHARE has the product's fan-out and an archive that is full."""
    rng = random.Random(seed)
    is_wide = seed % WIDE_SHARE == WIDE_SHARE - 1
    if is_wide:
        world = full_world().copy(rng)
        goal = WIDE_END + rng.choice((3, 20, 66))
    else:
        goal = rng.choice((7, 10, 14))
        world = World(rng, fan_out=NARROW, partitions=rng.choice((1, 1, 1, 2)), log_end=goal + EXTRA)
    world.strictly(strict)
    schedule = Schedule(world)
    try:
        with fan_out(WIDE if is_wide else NARROW):
            _run_loose(schedule, goal)
            _run_fairly(schedule, goal + EXTRA)
    except (Harm, AssertionError, ValueError, KeyError) as error:
        raise Violation(seed, f"{type(error).__name__}: {error}", schedule.moved) from error
    return world


@cache
def full_world() -> World:
    """An archive with the product's fan-out whose next chunk folds the tail, and that all catalogs of level 1."""
    world = World(random.Random(0), fan_out=WIDE, log_end=WIDE_END + 100)
    (partition,) = world.partitions
    schedule = Schedule(world)
    with fan_out(WIDE):
        while len(partition.monitor.tail) < WIDE:
            schedule.start(writer_to(partition.monitor.next_offset + 1)._replace(in_all=10**9), partition)
            schedule.run_to_end()
            if len(partition.monitor.catalogs_of(1)) < WIDE:
                schedule.start(ASKER._replace(in_all=10**9), partition)
                schedule.run_to_end()
    assert partition.monitor.next_offset < WIDE_END
    return world


def writer_to(goal: int, *, name: str = "writer", fair: bool = False, share: float = 0.0) -> Kind:
    """Writers that archive the log up to that offset."""

    def make(world: World, partition: Partition, writer: str) -> Run:
        return roles.writer(world, partition, writer, goal, fair=fair)

    return Kind(name, "writer", make, share, at_once=99 if fair else 3, in_all=99 if fair else 5)


def _maintainer(what: maintainers.Maintenance, world: World, partition: Partition, _: str) -> Run:
    return maintainers.maintainer(world, partition, what)


READER = Kind("reader", "reader", lambda world, partition, _: roles.reader(world, partition), 0.03, 2, 5)
LOOK_UPS = Kind("look-ups", "reader", lambda world, partition, _: roles.look_ups(world, partition), 0.005, 1, 2)
ASKER = Kind("asker", "maintainer", lambda _, partition, name: roles.asker(partition), 0.03, 2, 7)
FOLDER = Kind("folder", "writer", lambda _, partition, name: roles.folder(partition, name), 0.002, 1, 2)
SALVAGER = Kind("salvage", "writer", roles.salvager, 0.02, 1, 3, lambda partition: partition.monitor.lists_losses)
MERGER, CONVERTER, ERASER, PRUNER, REWRAPPER = (
    Kind(kind, "maintainer", partial(_maintainer, maintainers.Maintenance(kind)), 0.015, 2, 4)
    for kind in maintainers.KINDS
)
COLLECTOR = Kind("gc", "gc", lambda world, partition, _: maintainers.collector(world), 0.02, 2, 6)
FAIR = "fair "
FAIR_MAINTAINERS = {
    kind: Kind(
        FAIR + kind, "maintainer", partial(_maintainer, maintainers.Maintenance(kind, is_patient=True)), at_once=1
    )
    for kind in ("merge", "erase", "prune")
}
# Takes all that is in catalogs.
CLEARER = Kind(
    "clear", "maintainer", partial(_maintainer, maintainers.Maintenance("prune", is_patient=True, is_all=True))
)
FAIR_COLLECTOR = COLLECTOR._replace(name="fair gc", at_once=1, in_all=10**9)
FAIR_ASKER = ASKER._replace(name="fair asker", at_once=1, in_all=10**9)
FAIR_FOLDER = FOLDER._replace(name="fair folder", at_once=1, in_all=10**9)
CLOSER = Kind("closer", "writer", lambda _, partition, name: roles.closer(partition, name), 0.0005, 1, 1)


def _run_loose(schedule: Schedule, goal: int) -> None:
    """Processes start, sleep and die; requests are lost, late and doubled; clocks run."""
    world, rng = schedule.world, schedule.world.rng
    calm = rng.random()
    kinds = (writer_to(goal, share=0.02), READER, LOOK_UPS, ASKER, FOLDER, SALVAGER, CLOSER)
    kinds += (MERGER, CONVERTER, ERASER, PRUNER, COLLECTOR)
    for _ in range(rng.choice((150, 300, 450))):
        world.store.now += STEP
        draw = rng.random()
        if not schedule.live:
            schedule.start(kinds[0], rng.choice(world.partitions))
            continue
        for kind in kinds:
            draw -= kind.share
            if draw < 0:
                schedule.start(kind, rng.choice(world.partitions))
                break
        else:
            _disturb_or_step(schedule, draw, goal, calm)


def _disturb_or_step(schedule: Schedule, draw: float, goal: int, calm: float) -> None:
    world, rng = schedule.world, schedule.world.rng
    if draw < 0.003 + 0.01 * calm:
        schedule.crash(rng.choice(schedule.live))
    elif draw < 0.05:
        if world.late:
            schedule.deliver(rng.randrange(len(world.late)), again=rng.random() < 0.3)
    elif draw < 0.06:
        world.store.now += rng.choice((3 * STEP, GRACE / 2, GRACE, GRACE + 10 * STEP))
    elif draw < 0.072:
        _retain(rng, rng.choice(world.partitions), goal)
    else:
        process = schedule.last
        if process is None or process not in schedule.live or rng.random() < 0.2:
            process = schedule.last = rng.choice(schedule.live)
        if not (process.is_slow and rng.random() < 0.9):
            schedule.step(process, _fate(rng, process.operation, calm))


def _retain(rng: random.Random, partition: Partition, goal: int) -> None:
    archived = partition.monitor.next_offset
    if archived:
        partition.log.low = max(partition.log.low, min(archived + rng.choice((0, 1, 2)), goal - 1))


def _fate(rng: random.Random, operation: Step | None, calm: float) -> Fate:
    if not is_write(operation):
        return Fate.NORMAL
    draw = rng.random() / max(calm, 1e-9)
    return next((fate for limit, fate in FATES if draw < limit), Fate.NORMAL)


def _run_fairly(schedule: Schedule, goal: int) -> None:
    """No new faults; zombies and late requests remain. All must get done, and nothing stay for ever."""
    world, rng = schedule.world, schedule.world.rng
    fair = writer_to(goal, name="fair writer", fair=True)
    writing = set(world.partitions)
    wanted = {partition: ["merge", "prune", "erase"] for partition in world.partitions}
    for partition in world.partitions:
        schedule.start(fair, partition)
    steps = 0
    while writing or any(wanted.values()):
        steps += 1
        world.store.now += STEP
        if steps > FAIR_STEPS:
            raise Harm(f"nothing gets done: {len(writing)} writers, and {list(wanted.values())}")
        for partition in world.partitions:
            _start_fairly(schedule, partition, wanted[partition], is_written=partition in writing)
        if world.late and rng.random() < 0.1:
            schedule.deliver(rng.randrange(len(world.late)))
        ended = schedule.step(rng.choice(schedule.live)) if schedule.live else None
        if ended is not None and ended.kind == fair.name:
            writing.remove(ended.partition)
        elif ended is not None and _is_done(ended, is_written=ended.partition in writing):
            wanted[ended.partition].remove(ended.kind.removeprefix(FAIR))
    while schedule.live:
        world.store.now += STEP
        schedule.step(rng.choice(schedule.live))
    while world.late:
        schedule.deliver(0)
    for process, request in rng.sample(world.sent, min(5, len(world.sent))):
        process.carry_out(request)
    finish(schedule)


def _start_fairly(schedule: Schedule, partition: Partition, wanted: Sequence[str], *, is_written: bool) -> None:
    rng = schedule.world.rng
    for kind in wanted:
        if rng.random() < 0.03:
            schedule.start(FAIR_MAINTAINERS[kind], partition)
    if "erase" in wanted and partition.monitor.tail and rng.random() < 0.03:
        schedule.start(FAIR_ASKER, partition)
        if not is_written:
            schedule.start(FAIR_FOLDER, partition)
    if rng.random() < 0.02:
        schedule.start(FAIR_COLLECTOR, partition)


def _is_done(process: Process, *, is_written: bool) -> bool:
    """Whether that was the last of what was wanted of its kind."""
    kind = process.kind.removeprefix(FAIR)
    if process.kind == kind or kind not in FAIR_MAINTAINERS:
        return False
    if kind == "erase":
        left = process.partition.monitor.secrets_left()
        return not is_written and not left
    return process.result == "committed" or (not is_written and process.result in ("nothing", "aborted", "refused"))


def finish(schedule: Schedule) -> None:
    """Graces pass, garbage is collected: nothing but the archive may be left."""
    world = schedule.world
    for _ in range(3):
        world.store.now += GRACE + 2 * SKEW + STEP
        schedule.start(COLLECTOR._replace(name="last collector", in_all=99), world.partitions[0])
        schedule.run_to_end()
    for partition in world.partitions:
        monitor = partition.monitor
        body = body_of(monitor.marker or {})
        if body.get("retired") or body.get("rewriting"):
            raise Harm("the marker keeps what was retired, or an intent")
        if body and (left := monitor.garbage()):
            raise Harm(f"{left[0]} stays for ever")
        check_rebuilt(partition)


def check_rebuilt(partition: Partition) -> None:
    """Were the marker lost now, the objects alone would tell what it holds: no record lost, none pruned or erased."""
    monitor = partition.monitor
    if monitor.marker is None:
        return
    floors = [int(key.rpartition("/")[2]) for key in monitor.digests if "/_pruned/" in key]
    floor, pruned_before = max(floors, default=0), body_of(monitor.marker).get("pruned_before", 0)
    if floor != pruned_before:
        raise Harm(f"the floor {pruned_before} was not stored, but {floor}")
    found = recovered(monitor.indexes(), monitor.floor)
    has_orphans = bool(monitor.orphans())
    for offset, what in monitor.said(monitor.marker).items():
        if isinstance(what, bytes) and found.get(offset) not in (what, "erased"):
            raise Harm(f"offset {offset} is in no object that is left")
        if what == "erased" and isinstance(found.get(offset), bytes) and not has_orphans:
            raise Harm(f"the erased record at offset {offset} is still there")
