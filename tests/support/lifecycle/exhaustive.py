"""Every schedule of a few processes that deviates in at most so many steps from one after another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.support.lifecycle.monitor import Harm
from tests.support.lifecycle.schedule import Kind, Schedule, Violation, fan_out
from tests.support.lifecycle.world import GRACE, SKEW, STEP, World
from tests.support.simulator import Fate, is_write

FATES = (Fate.ANSWER_LOST, Fate.LATE, Fate.NOT_APPLIED, Fate.DOUBLED)
Choice = Fate | str | int
"""What becomes of a step: "crash" of who is at work, "jump" of the clock past a grace, "deliver" the oldest request
under way, or the number of the process that goes on instead."""
Choices = tuple[tuple[int, Choice], ...]


@dataclass(frozen=True)
class Small:
    """A few processes on an archive of one partition."""

    base: Callable[[], World]
    kinds: Sequence[Kind]
    width: int = 2


def play(small: Small, choices: Mapping[int, Choice], end: Callable[[Schedule], None]) -> list[list[Choice]]:
    """One schedule: the processes one after another, but for the choices by step; what each step had to choose from.

    `end` lets what is left get done. Raises Violation.
    """
    world = small.base()
    (partition,) = world.partitions
    schedule = Schedule(world)
    offered: list[list[Choice]] = []
    try:
        with fan_out(small.width):
            for kind in small.kinds:
                schedule.start(kind, partition)
            order = {process: number for number, process in enumerate(schedule.live)}
            now = next(iter(order.values()), 0)
            while schedule.live:
                process = next((each for each in schedule.live if order[each] == now), schedule.live[0])
                now = order[process]
                fates = FATES if is_write(process.operation) else ()
                others = [order[each] for each in schedule.live if each is not process]
                offered.append([*fates, "crash", "jump", *(["deliver"] if world.late else []), *others])
                now = _move(schedule, process, choices.get(len(offered) - 1), now)
            while world.late:
                schedule.deliver(0)
            end(schedule)
    except (Harm, AssertionError, ValueError, KeyError) as error:
        raise Violation(0, f"{dict(choices)}: {type(error).__name__}: {error}", schedule.moved) from error
    return offered


def _move(schedule: Schedule, process: object, choice: Choice | None, now: int) -> int:
    """Who goes on then."""
    world = schedule.world
    world.store.now += STEP
    match choice:
        case "crash":
            schedule.crash(process)
        case "jump":
            world.store.now += GRACE + 2 * SKEW
        case "deliver":
            schedule.deliver(0)
        case int():
            return choice
        case _:
            schedule.step(process, choice or Fate.NORMAL)
    return now


def deviations(small: Small, limit: int, end: Callable[[Schedule], None]) -> Iterator[Choices]:
    """Plays all schedules with at most `limit` deviations, and gives the choices of each; raises Violation."""
    todo: list[Choices] = [()]
    while todo:
        chosen = todo.pop()
        offered = play(small, dict(chosen), end)
        yield chosen
        if len(chosen) < limit:
            first = chosen[-1][0] + 1 if chosen else 0
            todo += [
                (*chosen, (number, choice))
                for number, choices in enumerate(offered[first:], first)
                for choice in choices
            ]
