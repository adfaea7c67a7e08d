"""Schedules: what the cluster, the store and the processes go through, drawn from a seed; and their course."""

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from archiver.errors import Diverged
from archiver.ingest import kafka_source
from archiver.ingest.backpressure import FetchMode
from blockgz.errors import BufferFailed, BufferFull
from blockgz.store.retry import LONGEST_REFUSAL_SECONDS
from tests.support.service_simulation.group import HEARTBEAT_SECONDS, METADATA_SECONDS, SESSION_SECONDS, Member
from tests.support.service_simulation.judge import Broken, check_threads, judge, marker_key, stayed_unknown
from tests.support.service_simulation.kafka import TOPIC_SECONDS
from tests.support.service_simulation.logs import Log, Partition
from tests.support.service_simulation.store import Noise, Spell, Trouble
from tests.support.service_simulation.world import Run, World, base_config

SETTLE_SECONDS = 75.0
"""So long after everything was healed all must be archived."""
LOOK_SECONDS = 2.0
TAKEN_OVER_SHARE = 0.15
"""In so many schedules the static ids of members are taken."""
FORGOTTEN_SHARE = 0.2
"""In so many schedules the last rebalance leaves partitions to nobody."""
MOST_FORGOTTEN_SECONDS = 2 * 2 * SESSION_SECONDS
"""Until the archivers have them given out: at most twice as long as a rebalance may take."""


@dataclass(frozen=True)
class Shape:
    """The size of schedules."""

    partitions: int
    """At most."""
    seconds: float = 32.0
    """Virtual time until everything is healed."""
    sick_share: float | None = None
    """None: anything may happen. Else only this share of the partitions has troubles, and the others must go on."""


SMALL = Shape(partitions=8)
SMALL_SICK = Shape(partitions=8, sick_share=0.3)
WIDE_SICK = Shape(partitions=200, seconds=50.0, sick_share=0.1)


def shape_of(seed: int) -> Shape:
    """Of the many small schedules."""
    return SMALL_SICK if seed % 4 == 3 else SMALL


class Schedule:
    def __init__(self, seed: int, shape: Shape) -> None:
        # A step of the main loop takes locks for each partition: many of them are not to make it slower.
        self.world = World(seed, preempt_rate=0.08 / max(8, shape.partitions))
        self.rng = random.Random(f"plan of {seed}")
        # A poll comes every second or so: batches are to wait for the next one now and then.
        kafka_source.SECONDS_A_PARTITION = 1.6 / shape.partitions
        self.shape = shape
        self.sick: set[Partition] = set()
        self.slots: list[str] = []
        self._strays: dict[str, dict[Partition, float]] = {}
        """Since when each run works on what is not its own."""

    def run(self) -> World:
        """The world at its end; raises Broken."""
        try:
            return self._run()
        finally:
            self.world.close()

    def _run(self) -> World:
        self._prepare()
        world = self.world
        world.hub.run(self.shape.seconds)
        self._heal()
        self._settle()
        check_threads(world)
        world.is_restarting = False
        for run in world.living():
            world.stop(run)
        world.hub.run(world.hub.now + world.config.grace + 10)
        for run in world.runs:
            if run.how == "forced" and run.told_to_stop_at is not None and run.told_to_stop_at > self.shape.seconds:
                raise Broken("end", f"{run.host.name} did not end within its grace time on a healthy system")
        judge(world)
        return world

    def _prepare(self) -> None:
        rng, world = self.rng, self.world
        is_sick = self.shape.sick_share is not None
        world.config = base_config().model_copy(
            update={
                "chunk_interval": rng.choice((3.0, 6.0, 15.0)),
                "chunk_records": rng.choice((None, None, 7)),
                "topic_refresh": TOPIC_SECONDS,
                "grace": 10.0,
                "once": not is_sick and rng.random() < 0.1,
                "memory": rng.choice((32 * 1024**2, 256 * 1024)),
            }
        )
        world.bucket.latency = rng.choice((0.01, 0.05, 0.2))
        count = self.shape.partitions if self.shape.partitions > 8 else rng.choice((1, 2, 3, 5, 8))
        topics = rng.randint(1, min(3, count))
        for number in range(topics):
            share = count // topics + (number < count % topics)
            world.cluster.create(f"t{number}", share, epoch=rng.choice((20, 50)))
        self.slots = ["a", "b", "c"][: rng.choice((1, 1, 2, 3))]
        for slot in self.slots:
            world.hub.call_at(rng.random() * 2, lambda slot=slot: world.start(slot))
        self._produce()
        if is_sick:
            self._make_sick()
        else:
            self._disturb()
            self._take_over_some()
            self._answer_short_once()
        world.hub.call_at(LOOK_SECONDS, self._look)

    def _produce(self) -> None:
        world, rng = self.world, self.rng
        logs = [log for _, log in world.cluster.partitions()]
        for log in rng.sample(logs, max(1, min(20, len(logs) // 3))) if logs else ():
            for _ in range(rng.randint(1, 4)):
                log.append(world.hub.now, rng.choice((30, 30, 400)), hole=rng.choice((0, 0, 0, 1, 5)))
        world.cluster.changed()
        if world.hub.now < self.shape.seconds:
            world.hub.call_at(world.hub.now + rng.choice((0.5, 1.5, 3.0)), self._produce)

    def _make_sick(self) -> None:
        world, rng = self.world, self.rng
        assert self.shape.sick_share is not None
        everywhere = [partition for partition, _ in world.cluster.partitions()]
        self.sick = set(rng.sample(everywhere, max(1, round(self.shape.sick_share * len(everywhere)))))
        for topic, number in sorted(self.sick):
            start = rng.choice((0.0, 10.0 * rng.random()))
            log = world.cluster.log((topic, number))
            assert log is not None
            if rng.random() < 0.3:
                world.hub.call_at(start, lambda log=log: self._lose_leader(log, self.shape.seconds))
            else:
                trouble, prefix = rng.choice(list(Trouble)), f"topic={topic}/partition={number:05d}/"
                world.bucket.suffer(Spell(trouble, start, self.shape.seconds, prefix=prefix))
                world.faults[trouble.value] = world.faults.get(trouble.value, 0) + 1

    def _lose_leader(self, log: Log, until: float) -> None:
        log.has_leader = False
        self.world.disturbed("leaderless", log=log.topic_id, partition=log.partition)
        self.world.hub.call_at(until, lambda: setattr(log, "has_leader", True))

    def _disturb(self) -> None:
        rng = self.rng
        kinds = rng.sample(list(DISTURBANCES), k=rng.choice((1, 2, 3, 5)))
        for _ in range(rng.choice((1, 2, 3, 5, 8))):
            kind = rng.choice(kinds)
            at = 3 + rng.random() * (self.shape.seconds - 4)
            self.world.hub.call_at(at, lambda kind=kind: DISTURBANCES[kind](self))
            if kind in TAKING and rng.random() < 0.5:
                # What is in hand may be all that there is of it.
                self.world.hub.call_at(at + rng.choice((-0.1, 0.01, 1.0, 5.0)), lambda: _retain_nothing(self))

    def _take_over_some(self) -> None:
        chance = random.Random(f"take-overs of {self.world.seed}")  # apart: the other disturbances stay what they are
        if chance.random() < TAKEN_OVER_SHARE:
            for _ in range(3):
                self.world.hub.call_at(3 + chance.random() * (self.shape.seconds - 4), lambda: _take_over(self, chance))

    def _answer_short_once(self) -> None:
        chance = random.Random(f"short answers of {self.world.seed}")  # apart, as above
        if chance.random() < TAKEN_OVER_SHARE:
            at = 3 + chance.random() * (self.shape.seconds - 4)
            self.world.hub.call_at(at, lambda: setattr(self.world.cluster, "has_started", True))

    def _heal(self) -> None:
        world = self.world
        world.disturbed("heal")
        world.bucket.heal()
        world.cluster.unreachable.clear()
        world.cluster.id_hiccups.clear()
        for run in world.runs:
            world.hub.thaw(run.host, now=True)
            run.buffer.fails_until = 0.0
        for _, log in world.cluster.partitions():
            log.has_leader, log.held_back = True, None
        for member in world.group.members:
            member.refusal, member.is_taken_over = None, False
        world.group.rebalance()
        if self.rng.random() < FORGOTTEN_SHARE:
            known = [partition for partition, _ in world.cluster.partitions()]
            forgotten = self.rng.sample(known, -(-len(known) // 4))
            world.disturbed("forgotten", partitions=forgotten)
            world.group.forget(forgotten)

    def _settle(self) -> None:
        world = self.world
        waits_long = {Trouble.DENIED.value, Trouble.FULL.value} & world.bucket.met.keys()
        deadline = world.hub.now + SETTLE_SECONDS + (LONGEST_REFUSAL_SECONDS if waits_long else 0.0)
        if "forgotten" in world.faults:
            deadline += MOST_FORGOTTEN_SECONDS
        while (left := self._left()) or self._endless():
            check_threads(world)
            if world.hub.now >= deadline and not left:
                raise Broken("end", f"{self._endless()} with --once did not end, though all was healed")
            if world.hub.now >= deadline:
                raise Broken("progress", f"{left[:3]} not archived at {deadline:.0f} s, though all was healed")
            world.hub.run(world.hub.now + LOOK_SECONDS)

    def _endless(self) -> list[str]:
        """Runs with `--once` that go on since before all was healed."""
        if not self.world.config.once:
            return []
        return [run.host.name for run in self.world.living() if run.started_at < self.shape.seconds]

    def _left(self) -> list[tuple[Partition, int | None, int]]:
        """Partitions that are not archived up to their end."""
        left = []
        for partition, log in self.world.cluster.partitions():
            # A partition that diverged stays stopped, also where its topic is created again and nobody is told.
            lives = [topic for topic in self.world.cluster.lives if topic.name == partition[0]]
            is_whole = not any(topic.logs[partition[1]].version for topic in lives)
            if any(stayed_unknown(self.world, topic) for topic in lives[:-1]):
                continue  # it may have diverged: nobody knew that the topic is another one
            if self.world.config.once and (len(lives) > 1 or len(self.slots) > 1):
                continue  # where a run ends is the former topic's end; several fence each other as often as they begin
            if is_whole and log.entries and log.entries[-1].offset >= log.low:
                committed = self._committed(partition)
                if committed is None or committed <= log.entries[-1].offset:
                    left.append((partition, committed, log.high))
        return left

    def _committed(self, partition: Partition) -> int | None:
        name, number = partition
        lives = [topic for topic in self.world.cluster.lives if topic.name == name]
        offsets = self.world.bucket.next_offsets
        if len(lives) == 1:
            return offsets.get(marker_key(name, 1, number))
        # Lives of which nothing was archived have no folder.
        current = lives[-1].topic_id
        return self.world.bucket.next_offset_of(name, number, current)

    def _look(self) -> None:
        """Now and then: do the healthy ones go on, is memory in its budget?"""
        world = self.world
        for run in world.living():
            self._check_memory(run)
            self._check_stops(run)
            self._check_owned(run)
        if self.shape.sick_share is not None:
            self._check_progress()
        world.hub.call_at(world.hub.now + LOOK_SECONDS, self._look)

    def _check_progress(self) -> None:
        world, config = self.world, self.world.config
        bound = config.chunk_interval + config.grace + 20.0
        for partition, log in world.cluster.partitions():
            if partition in self.sick or world.hub.now > self.shape.seconds:
                continue
            committed = self._committed(partition) or 0
            row = bisect_left(log.entries, committed, key=lambda entry: entry.offset)
            if row < len(log.entries) and world.hub.now - log.entries[row].appended_at > bound:
                since = log.entries[row].appended_at
                raise Broken("progress", f"{partition}, which is healthy, holds {committed} since {since:.1f}")

    def _check_memory(self, run: Run) -> None:
        ownership = getattr(run.service, "_ownership", None)
        if ownership is None:
            return
        states = [archiver.state for archiver in ownership.active.values()]
        share = self.world.config.memory // 12
        waiting = sum(state.inbox_bytes for state in states)
        if waiting > share + run.most_polled:
            raise Broken("memory", f"{run.host.name} holds {waiting} bytes that wait, {share} are for them")
        open_bytes = sum(state.open_block_bytes for state in states)
        if open_bytes > 2 * share + run.most_polled:
            raise Broken("memory", f"{run.host.name} holds {open_bytes} bytes of open blocks, {share} are for them")

    def _check_owned(self, run: Run) -> None:
        """It works on nothing for long that the group did not give it."""
        ownership = getattr(run.service, "_ownership", None)
        if ownership is None or self.world.config.once:
            return
        owned = {each for member in self.world.group.members if member.host == run.host.name for each in member.owned}
        if run.service._fetching._mode is FetchMode.WAIT:
            return  # for STALL_SECONDS at most: without memory or buffer it does not ask the group
        now, before = self.world.hub.now, self._strays.get(run.host.name, {})
        strays = {each: before.get(each, now) for each in set(ownership.active) - owned}
        # A flush inside of a rebalance may take the grace time; the group is heard again after it.
        again = sorted(each for each, since in strays.items() if now - since > self.world.config.grace + LOOK_SECONDS)
        if again and run.host.frozen_until < now:
            raise Broken("strays", f"{run.host.name} works on {again}, which are not its own")
        self._strays[run.host.name] = strays

    def _check_stops(self, run: Run) -> None:
        reports = run.service.reports if run.service is not None else {}
        for partition, report in reports.items():
            lives = [topic for topic in self.world.cluster.lives if topic.name == partition[0]]
            could_tell = not any(topic.logs[partition[1]].version for topic in lives) and not any(
                stayed_unknown(self.world, topic) for topic in lives[:-1]
            )
            if isinstance(report.failure, Diverged) and could_tell:
                raise Broken("diverged", f"{partition} was not truncated: {report.failure.what}")


Disturbance = Callable[[Schedule], None]
DISTURBANCES: dict[str, Disturbance] = {}


def disturbance(kind: str) -> Callable[[Disturbance], Disturbance]:
    def named(apply: Disturbance) -> Disturbance:
        DISTURBANCES[kind] = apply
        return apply

    return named


def some_run(schedule: Schedule) -> Run | None:
    living = schedule.world.living()
    return schedule.rng.choice(living) if living else None


def some_log(schedule: Schedule) -> tuple[Partition, Log] | None:
    there = list(schedule.world.cluster.partitions())
    return schedule.rng.choice(there) if there else None


@disturbance("kill")
def _kill(schedule: Schedule) -> None:
    if run := some_run(schedule):
        schedule.world.disturbed("kill", host=run.host.name)
        schedule.world.kill(run)


@disturbance("stop")
def _stop(schedule: Schedule) -> None:
    if run := some_run(schedule):
        schedule.world.disturbed("stop", host=run.host.name)
        schedule.world.stop(run)


@disturbance("freeze")
def _freeze(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    if run := some_run(schedule):
        seconds = rng.choice((2.0, SESSION_SECONDS + 1, 25.0))
        world.hub.freeze(run.host, seconds)
        world.disturbed("freeze", host=run.host.name, seconds=seconds)
        if seconds > SESSION_SECONDS:
            world.hub.call_at(world.hub.now + SESSION_SECONDS, lambda: world.group.expire(run.host.name))


@disturbance("expire")
def _expire(schedule: Schedule) -> None:
    if run := some_run(schedule):
        schedule.world.disturbed("expire", host=run.host.name)
        schedule.world.group.expire(run.host.name)


@disturbance("refuse")
def _refuse(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    members = list(world.group.members)
    if members:
        member = rng.choice(members)
        member.refusal = rng.choice((KafkaError._FATAL, KafkaError.GROUP_AUTHORIZATION_FAILED))
        world.disturbed("refuse", host=member.host, code=member.refusal)


def _take_over(schedule: Schedule, chance: random.Random) -> None:
    """Another process takes a member's static id while the member gives partitions up; it learns that later."""
    world = schedule.world
    members = [member for member in world.group.members if member.owned]
    if members:
        member = chance.choice(members)
        member.is_taken_over = True
        world.group.forget(chance.sample(sorted(member.owned), k=chance.randint(1, len(member.owned))))
        world.disturbed("take over", host=member.host)
        world.hub.call_at(world.hub.now + HEARTBEAT_SECONDS, lambda: _hear_of_it(member))


def _hear_of_it(member: Member) -> None:
    if member.is_taken_over:
        member.refusal = KafkaError._FATAL


@disturbance("cluster gone")
def _cluster_gone(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    run = some_run(schedule) if rng.random() < 0.3 else None
    scope, seconds = (run.host.name if run else None), rng.choice((1.0, 8.0, 20.0, 60.0))
    until = world.hub.now + seconds
    world.cluster.unreachable[scope] = until
    world.disturbed("cluster gone", host=scope, seconds=seconds)
    for each in [each.host.name for each in world.living() if scope in (None, each.host.name)]:
        world.hub.call_at(world.hub.now + SESSION_SECONDS, lambda host=each: _expire_unless_back(world, host))


def _expire_unless_back(world: World, host: str) -> None:
    if not world.cluster.answers(host):
        world.group.expire(host)


@disturbance("leaderless")
def _leaderless(schedule: Schedule) -> None:
    if found := some_log(schedule):
        schedule._lose_leader(found[1], schedule.world.hub.now + schedule.rng.choice((2.0, 10.0, 40.0)))


@disturbance("retention")
def _retention(schedule: Schedule) -> None:
    for partition, log in list(schedule.world.cluster.partitions()):
        if schedule.rng.random() < 0.5:
            log.retain_from(schedule.rng.choice((log.high, log.low + 3, (log.low + log.high) // 2)))
            schedule.world.disturbed("retention", partition=partition, low=log.low)


TAKING = ("expire", "refuse", "stop", "cluster gone", "ids unknown", "leaderless", "buffer fails", "store spell")
"""After these, a log that has moved on meanwhile shows whether what was in hand was kept."""


def _retain_nothing(schedule: Schedule) -> None:
    schedule.world.disturbed("retention", low="all")
    for _, log in schedule.world.cluster.partitions():
        log.retain_from(log.high)


@disturbance("truncate")
def _truncate(schedule: Schedule) -> None:
    if found := some_log(schedule):
        partition, log = found
        log.truncate(log.high - schedule.rng.choice((0, 1, 3, 10)))
        schedule.world.disturbed("truncate", partition=partition, end=log.high)


@disturbance("delete")
def _delete(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    # Of one that was created a moment ago nobody was told the id: then nothing tells it from the next.
    able = [topic.name for topic in world.cluster.topics.values() if topic.created_at < max(1, world.hub.now - 12)]
    if not able:
        return
    name = rng.choice(sorted(able))
    count = len(world.cluster.topics[name].logs)
    world.cluster.delete(name)
    world.disturbed("delete", topic=name)
    world.hub.call_at(world.hub.now + METADATA_SECONDS * rng.random(), world.group.rebalance)
    if rng.random() < 0.8:
        world.hub.call_at(
            world.hub.now + rng.choice((0.0, 0.0, 0.1, 2.0, 15.0)), lambda: _recreate(schedule, name, count)
        )


def _recreate(schedule: Schedule, name: str, count: int) -> None:
    world = schedule.world
    if name in world.cluster.topics or world.hub.now > schedule.shape.seconds:
        return
    # A topic begins with epoch 0, and most have never had another. Equal epochs prove nothing, so that here they fall.
    least = min(log.first_epoch for topic in world.cluster.lives if topic.name == name for log in topic.logs)
    topic = world.cluster.create(name, count, epoch=least - 1)
    for log in topic.logs:
        for _ in range(schedule.rng.choice((0, 5, 60))):
            log.append(world.hub.now, 30)
    world.disturbed("recreate", topic=name)
    world.hub.call_at(world.hub.now + METADATA_SECONDS * schedule.rng.random(), world.group.rebalance)


@disturbance("hanging transaction")
def _hold_back(schedule: Schedule) -> None:
    if found := some_log(schedule):
        _, log = found
        log.held_back = log.high
        schedule.world.disturbed("hanging transaction", partition=found[0], end=log.high)
        schedule.world.hub.call_at(
            schedule.world.hub.now + schedule.rng.choice((3.0, 20.0)), lambda: setattr(log, "held_back", None)
        )


@disturbance("ids unknown")
def _ids_unknown(schedule: Schedule) -> None:
    world, seconds = schedule.world, schedule.rng.choice((1.0, 10.0, 30.0))
    world.cluster.id_hiccups[None] = world.hub.now + seconds
    world.disturbed("ids unknown", seconds=seconds)


@disturbance("buffer fails")
def _buffer_fails(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    if run := some_run(schedule):
        seconds = rng.choice((0.1, 5.0))
        run.buffer.fails_until = world.hub.now + seconds
        run.buffer.failure = rng.choice((BufferFull, BufferFailed))
        run.buffer_failed.append(run.buffer.fails_until)
        world.disturbed("buffer fails", host=run.host.name, seconds=seconds)


@disturbance("store noise")
def _store_noise(schedule: Schedule) -> None:
    rng = schedule.rng
    noise: dict[str, Any] = {kind: rng.choice((0.0, 0.05, 0.2)) for kind in ("before", "after", "late", "double")}
    schedule.world.bucket.noise = Noise(**noise)
    schedule.world.disturbed("store noise", **noise)


@disturbance("store spell")
def _store_spell(schedule: Schedule) -> None:
    world, rng = schedule.world, schedule.rng
    run, found = some_run(schedule), some_log(schedule)
    scope: dict[str, Any] = {}
    match rng.choice(("all", "host", "partition")):
        case "host" if run:
            scope = {"host": run.host.name}
        case "partition" if found:
            (topic, number), _ = found
            scope = {"prefix": f"topic={topic}/partition={number:05d}/"}
    start = world.hub.now
    spell = Spell(rng.choice(list(Trouble)), start, start + rng.choice((0.5, 4.0, 15.0)), **scope)
    world.bucket.suffer(spell)
    world.disturbed(f"store {spell.trouble.value}", end=spell.end, **scope)
