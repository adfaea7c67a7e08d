"""Schedules with a few deviations, each chosen, for rules whose break random schedules show rarely or never."""

import random
from collections.abc import Callable
from functools import cache

from archiver.commit.operations import CompareAndSwap, Get, PutIfAbsent
from tests.support.lifecycle.schedule import (
    ASKER,
    CLEARER,
    COLLECTOR,
    CONVERTER,
    FAIR_FOLDER,
    FAIR_MAINTAINERS,
    LOOK_UPS,
    PRUNER,
    Kind,
    Schedule,
    fan_out,
    finish,
    writer_to,
)
from tests.support.lifecycle.world import GRACE, PATIENCE, SKEW, STEP, Process, World, is_hole
from tests.support.simulator import Fate, Step

WIDTH, ARCHIVED, LOG_END = 2, 14, 20
DRAWS = range(1, 7)
"""Seeds of what is drawn beside the schedule, such as where a prune ends; not 0, whose tokens stand in the archive."""
MERGES = 6
"""So many, each of a list by chance, replace every catalog."""
Directed = Callable[[Schedule], None]


def play(directed: Directed, *, strict: bool = True) -> None:
    """The schedule on archives with catalogs of level 2; raises Harm, or what the monitor asserts."""
    for seed in DRAWS:
        schedule = Schedule(_archived().copy(random.Random(seed)))
        schedule.world.strictly(strict)
        with fan_out(WIDTH):
            directed(schedule)
            _deliver_all(schedule)
            schedule.run_to_end()
            schedule.start(writer_to(LOG_END, name="fair writer", fair=True), schedule.world.partitions[0])
            schedule.run_to_end()
            finish(schedule)


@cache
def _archived() -> World:
    """Of version 2, so that a marker may become again what it was."""
    world = World(random.Random(0), fan_out=WIDTH, log_end=LOG_END)
    schedule = Schedule(world)
    with fan_out(WIDTH):
        schedule.start(writer_to(ARCHIVED), world.partitions[0])
        schedule.run_to_end()
        schedule.start(ASKER, world.partitions[0])
        schedule.run_to_end()
    return world


def intent_comes_late(schedule: Schedule) -> None:
    """A merge sleeps before its commit; its intent is cleared, its objects go; a copy of the intent arrives again."""
    merger = _started(schedule, FAIR_MAINTAINERS["merge"])
    _up_to(schedule, merger, CompareAndSwap)
    schedule.step(merger, Fate.DOUBLED)
    _up_to(schedule, merger, CompareAndSwap)
    _collected(schedule)
    schedule.deliver(0)


def pruner_sleeps(schedule: Schedule) -> None:
    """A prune has stored copies of catalogs and sleeps before its commit; garbage is collected."""
    pruner = _started(schedule, PRUNER)
    while pruner.operation is not None and not (isinstance(pruner.operation, CompareAndSwap) and _has_copies(schedule)):
        schedule.step(pruner)
    _collected(schedule)


def append_is_answered_late(schedule: Schedule) -> None:
    """A writer does not hear that its append came true; a merge takes its intent before the writer looks."""
    writer = _started(schedule, writer_to(LOG_END))
    _up_to(schedule, writer, CompareAndSwap)  # its claim
    schedule.step(writer)
    _up_to(schedule, writer, CompareAndSwap)
    schedule.step(writer, Fate.ANSWER_LOST)
    _to_end(schedule, _started(schedule, FAIR_MAINTAINERS["merge"]))


def retention_overtakes(schedule: Schedule) -> None:
    """The log begins at a hole, so that the next writer has progress without a record right behind a gap."""
    (partition,) = schedule.world.partitions
    _to_end(schedule, _started(schedule, writer_to(ARCHIVED + 1)))
    partition.log.low = LOG_END - 1
    assert is_hole(partition.log.low)
    _to_end(schedule, _started(schedule, writer_to(LOG_END)))


def collector_sleeps(schedule: Schedule) -> None:
    """A collector has read the marker and sleeps; a catalog of level 2 is replaced, and collected a grace later."""
    schedule.world.store.now += GRACE
    collector = _started(schedule, COLLECTOR)
    _up_to_read(schedule, collector, "/_catalog/")
    _to_end(schedule, _started(schedule, CONVERTER))
    _collected(schedule)
    _collected(schedule)
    _to_end(schedule, collector)


def name_is_taken_again(schedule: Schedule) -> None:
    """A dead writer's upload arrives once gc has freed its name, while a look-up continues with an old marker."""
    writer = _started(schedule, writer_to(LOG_END))
    _up_to(schedule, writer, PutIfAbsent)
    schedule.step(writer, Fate.DOUBLED)  # the data
    _up_to(schedule, writer, PutIfAbsent)
    index = writer.operation
    assert isinstance(index, PutIfAbsent)
    schedule.step(writer, Fate.LATE)
    schedule.crash(writer)
    _to_end(schedule, _started(schedule, writer_to(LOG_END)))
    reader = _started(schedule, LOOK_UPS)
    _up_to_read(schedule, reader, index.key)
    for _ in range(MERGES):
        _to_end(schedule, _started(schedule, FAIR_MAINTAINERS["merge"]))
    _collected(schedule)
    _collected(schedule)
    _deliver_all(schedule)
    _to_end(schedule, reader)


def topic_falls_silent(schedule: Schedule) -> None:
    """A prune dies at each of its steps in turn; at last all is pruned, and collected, while somebody reads on."""
    (partition,) = schedule.world.partitions
    _to_end(schedule, _started(schedule, ASKER))
    _to_end(schedule, _started(schedule, FAIR_FOLDER))
    reader = _started(schedule, LOOK_UPS)
    _up_to_read(schedule, reader, ".index.json")
    steps = 0
    while partition.monitor.catalogs_of(1) or partition.monitor.catalogs_of(2):
        steps += 1
        clearer = _started(schedule, CLEARER)
        for _ in range(steps):
            if clearer.operation is not None:
                schedule.step(clearer)
        if clearer.operation is not None:
            schedule.crash(clearer)
        schedule.world.store.now += PATIENCE + STEP
    assert steps > 5
    assert partition.monitor.floor == partition.monitor.next_offset > 0
    _collected(schedule)
    _to_end(schedule, reader)
    _collected(schedule)


def _started(schedule: Schedule, kind: Kind) -> Process:
    schedule.start(kind._replace(at_once=99, in_all=99), schedule.world.partitions[0])
    return schedule.live[-1]


def _deliver_all(schedule: Schedule) -> None:
    while schedule.world.late:
        schedule.deliver(0)


def _up_to(schedule: Schedule, process: Process, kind: type[Step]) -> None:
    """Let it go on until it is about to ask for that."""
    _to_end(schedule, process, lambda operation: isinstance(operation, kind))


def _up_to_read(schedule: Schedule, process: Process, key: str) -> None:
    """Let it go on until it is about to read an object with that in its key."""
    _to_end(schedule, process, lambda operation: isinstance(operation, Get) and key in operation.key)


def _to_end(schedule: Schedule, process: Process, is_reached: Callable[[Step], bool] = lambda _: False) -> None:
    while process.operation is not None and not is_reached(process.operation):
        schedule.world.store.now += STEP
        schedule.step(process)


def _collected(schedule: Schedule) -> None:
    schedule.world.store.now += GRACE + 2 * SKEW + STEP
    _to_end(schedule, _started(schedule, COLLECTOR))


def _has_copies(schedule: Schedule) -> bool:
    return any("/_catalog/2-" in key and "~r" in key for key in schedule.world.store.objects)


DIRECTED: dict[str, Directed] = {
    "no_revision": intent_comes_late,
    "prune_without_intent": pruner_sleeps,
    "progress_swallows_gap": retention_overtakes,
    "nonce_overwritten_by_maintainer": append_is_answered_late,
    "walk_goes_on_at_404": collector_sleeps,
    "reader_trusts_names": name_is_taken_again,
}
"""By the rule that must hold in it."""
