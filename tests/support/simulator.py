"""Runs protocols one operation at a time, in chosen orders and with chosen faults, against a store in memory.

`Actor` is one writer whose next operation the caller decides the fate of. `simulate` lets several actors loose on one
store: who moves next, how long the others sleep, and what happens to each request is drawn from a seed, so that a
schedule that breaks something can be run again.
"""

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from archiver.commit import operations as op
from archiver.commit.archive import listed_inventory
from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from archiver.maintain.gc import plan_sweep
from blockgz.errors import BrokerUnreachable, StoreUnavailable
from index_format.errors import BlockgzError
from tests.support.memory_store import MemoryLog, MemoryStore

Run = op.Protocol[Any]
MAX_STEPS = 20_000
SWEEPS = 3
LONGEST_BURST = 40
LAST_STEPS = 2_000
"""Steps that a violation shows."""


class Fate(Enum):
    """What becomes of one operation."""

    NORMAL = "normal"
    CRASH_BEFORE = "the writer died before it"
    CRASH_AFTER = "the writer died after it"
    ANSWER_LOST = "carried out, answer lost"
    NOT_APPLIED = "failed, not carried out"
    LATE = "failed, carried out later"
    DOUBLED = "carried out, and once more later"
    REPEATED = "carried out twice by the client library, which gave the second answer"
    TAKEN_AWAY = "the group gave the partition to another process"


WRITES = (op.PutIfAbsent, op.CompareAndSwap)
READS = (op.Get, op.GetAll, op.Head)
LOG_READS = (op.ReadLogBounds, op.ReadLogRecord, op.FindLogRecord, op.ConfirmTopic)
CRASHES = (Fate.CRASH_BEFORE, Fate.CRASH_AFTER)
FATES_OF_WRITES = tuple(fate for fate in Fate if fate not in (Fate.NORMAL, Fate.TAKEN_AWAY))


@dataclass(frozen=True)
class Overwrite:
    """Replace an object whatever it is; no real protocol asks for it, broken ones do. Answer: the new etag."""

    key: str
    body: Any


@dataclass(frozen=True)
class PlanSweep:
    """Decide what is garbage, all that is stored having come of age. Answer: the keys to delete."""


@dataclass(frozen=True)
class Delete:
    """Delete an object."""

    key: str


Step = op.Operation | Overwrite | PlanSweep | Delete


def collector() -> Run:
    for _ in range(SWEEPS):
        keys: list[str] = yield PlanSweep()
        for key in keys:
            with suppress(StoreUnavailable):
                yield Delete(key)


def is_write(operation: Step | None) -> bool:
    """Whether it changes the store."""
    return isinstance(operation, (*WRITES, Overwrite, Delete))


def fates_of(operation: Step) -> tuple[Fate, ...]:
    if is_write(operation):
        return FATES_OF_WRITES
    if isinstance(operation, (*READS, *LOG_READS)):
        return (*CRASHES, Fate.NOT_APPLIED)
    if isinstance(operation, op.StillAssigned):
        return (Fate.CRASH_BEFORE, Fate.TAKEN_AWAY)
    return (Fate.CRASH_BEFORE,)


class Actor:
    """One writer: a protocol that stands before its next operation, until it ended or crashed."""

    def __init__(self, name: str, protocol: Run, store: MemoryStore, log: MemoryLog, tokens: random.Random) -> None:
        self.name = name
        self.operation: Step | None = None
        self.result: Any = None
        self.failure: BlockgzError | None = None
        self.late: list[Step] = []
        """Requests of this writer that are still under way."""
        self._protocol = protocol
        self._store = store
        self._log = log
        self._tokens = tokens
        self._go_on(lambda: next(protocol))

    @property
    def is_alive(self) -> bool:
        return self.operation is not None

    def step(self, fate: Fate = Fate.NORMAL) -> None:
        operation = self.operation
        assert operation is not None
        match fate:
            case Fate.NORMAL:
                self._answer(operation)
            case Fate.CRASH_BEFORE:
                self._crash()
            case Fate.CRASH_AFTER:
                self._carry_out(operation)
                self._crash()
            case Fate.ANSWER_LOST:
                self._carry_out(operation)
                self._refuse(operation)
            case Fate.NOT_APPLIED:
                self._refuse(operation)
            case Fate.LATE:
                self.late.append(operation)
                self._refuse(operation)
            case Fate.DOUBLED:
                answer = self._carry_out(operation)
                self.late.append(operation)
                self._go_on(lambda: self._protocol.send(answer))
            case Fate.REPEATED:
                self._carry_out(operation)
                answer = self._carry_out(operation)
                self._go_on(lambda: self._protocol.send(answer))
            case Fate.TAKEN_AWAY:
                self._go_on(lambda: self._protocol.send(False))

    def run_to_end(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.is_alive:
                return
            self.step()
        raise AssertionError(f"{self.name} does not end")

    def deliver(self, request: Step) -> None:
        """Carry out a request that was under way; nobody hears the answer."""
        self.late.remove(request)
        self._carry_out(request)

    def _answer(self, operation: Step) -> None:
        try:
            answer = self._carry_out(operation)
        except BlockgzError as error:
            failure = error
            self._go_on(lambda: self._protocol.throw(failure))
        else:
            self._go_on(lambda: self._protocol.send(answer))

    def _refuse(self, operation: Step) -> None:
        error: BlockgzError = StoreUnavailable("the store did not answer")
        if isinstance(operation, LOG_READS):
            error = BrokerUnreachable("the broker did not answer")
        self._go_on(lambda: self._protocol.throw(error))

    def _go_on(self, resume: Callable[[], Step]) -> None:
        try:
            self.operation = resume()
        except StopIteration as stop:
            self.operation, self.result = None, stop.value
        except BlockgzError as error:
            self.operation, self.failure = None, error

    def _crash(self) -> None:
        self._protocol.close()
        self.operation = None

    def _carry_out(self, operation: Step) -> Any:  # noqa: PLR0911
        match operation:
            case op.Wait() | op.CourtesyFailed() | op.CheckUnclaimed():
                return None
            case op.NewToken():
                return str(uuid.UUID(int=self._tokens.getrandbits(128)))
            case op.Now():
                return round(self._store.now * 1000)
            case op.StillAssigned():
                return True
            case op.ReadLogBounds(at_least):
                return self._log.bounds(at_least)
            case op.ReadLogRecord(offset):
                return self._log.record_at(offset)
            case op.FindLogRecord(offset):
                return self._log.first_record(offset)
            case op.ConfirmTopic(topic_id):
                return self._log.confirm(topic_id)
            case op.ListClaimed():
                return listed_inventory(self._store, "topic", round(self._store.now))
            case _:
                return self._carry_out_on_store(operation)

    def _carry_out_on_store(self, operation: Step) -> Any:  # noqa: PLR0911
        store = self._store
        match operation:
            case op.Get(key):
                return store.get(key)
            case op.GetAll(keys):
                return [store.get(key) for key in keys]
            case op.Compute(work):
                return work()
            case op.Head(key):
                return store.head(key)
            case op.PutIfAbsent(key, body, attempt):
                return store.put_if_absent(key, body, attempt)
            case op.CompareAndSwap(key, body, expected):
                return store.compare_and_swap(key, body, expected)
            case Overwrite(key, body):
                store.delete(key)
                store.put_if_absent(key, body, "overwritten")
                found = store.get(key)
                return found.etag if found else None
            case PlanSweep():
                store.now += SHORTEST_GRACE_SECONDS
                plan = plan_sweep(store, (), SHORTEST_GRACE_SECONDS)
                assert not plan.problems, plan.problems
                return [found.name.key for found in plan.garbage]
            case Delete(key):
                store.delete(key)
                store.versions.pop(key, None)  # a late upload may bring it back; no chain will hold it
                return None


def result_of(protocol: Run, store: MemoryStore, log: MemoryLog, tokens: random.Random) -> Any:
    """Run a protocol to its end; return its result, or raise its failure."""
    actor = Actor("a", protocol, store, log, tokens)
    actor.run_to_end()
    if actor.failure is not None:
        raise actor.failure
    return actor.result


@dataclass
class Violation(Exception):
    """A schedule of any simulator after which something does not hold that must."""

    seed: int
    why: str
    steps: Sequence[object] = field(repr=False)

    def __str__(self) -> str:
        shown = self.steps[-LAST_STEPS:]
        return "\n".join([f"the last {len(shown)} steps:", *map(str, shown), f"seed {self.seed}: {self.why}"])


class Moved(NamedTuple):
    """Who moved, with what, and what became of it."""

    who: str
    step: Step | None
    met: str

    def __str__(self) -> str:
        return f"{self.who}  {type(self.step).__name__} {getattr(self.step, 'key', '')}  {self.met}"


@dataclass(frozen=True)
class Scenario:
    """What is simulated: the store as it is at first, the log, how a writer works, and what must hold at any time."""

    store: MemoryStore
    log: MemoryLog
    writer: Callable[[str, random.Random], Run]
    """A writer's whole work, by its name and what it may draw from."""
    check: Callable[[MemoryStore], None]
    """Raises AssertionError where the committed chain is not a whole beginning of the log."""
    check_complete: Callable[[MemoryStore], None]
    """The same once an undisturbed writer came to the end of the log."""


def simulate(scenario: Scenario, seed: int, *, writers: int = 2, crashes: int = 2, collectors: int = 0) -> None:
    """Run one schedule; raises Violation. What crashed is followed by a new writer, `crashes` times in all."""
    rng = random.Random(seed)
    store, schedule = scenario.store.copy(), list[Moved]()
    names = (f"writer-{number}" for number in range(1_000))

    def start() -> Actor:
        name = next(names)
        return Actor(name, scenario.writer(name, rng), store, scenario.log, rng)

    try:
        actors = [start() for _ in range(writers)]
        actors += [Actor(f"collector-{n}", collector(), store, scenario.log, rng) for n in range(collectors)]
        fault_rate = rng.choice((0.0, 0.03, 0.15, 0.4))
        for actor, fate in _moves(actors, rng, fault_rate, schedule):
            if fate in CRASHES:
                scenario.check(store)
                if crashes:
                    crashes -= 1
                    actors.append(start())
            assert actor.failure is None, repr(actor.failure)
        scenario.check(store)
        last = start()
        last.run_to_end()
        assert last.failure is None, repr(last.failure)
        scenario.check_complete(store)
    except (AssertionError, ValueError, KeyError) as error:
        raise Violation(seed, f"{type(error).__name__}: {error}", schedule) from error


def _moves(
    actors: list[Actor], rng: random.Random, fault_rate: float, schedule: list[Moved]
) -> Iterator[tuple[Actor, Fate]]:
    """Move the actors until all have ended and nothing is under way; yields who moved and what it met.

    An actor moves in bursts, so that the others sleep long enough to become zombies.
    """
    for _ in range(MAX_STEPS):
        able = [actor for actor in actors if actor.is_alive or actor.late]
        if not able:
            return
        actor = rng.choice(able)
        for _ in range(rng.choice((1, 1, 2, 3, 5, 10, LONGEST_BURST))):
            fate = Fate.NORMAL
            if actor.late and (not actor.is_alive or rng.random() < 0.2):
                request = rng.choice(actor.late)
                schedule.append(Moved(actor.name, request, "arrives late"))
                actor.deliver(request)
            elif actor.operation is not None:
                if rng.random() < fault_rate:
                    fate = rng.choice(fates_of(actor.operation))
                schedule.append(Moved(actor.name, actor.operation, fate._value_))
                actor.step(fate)
            yield actor, fate
            if not actor.is_alive:
                break
    raise AssertionError("the schedule does not end")
