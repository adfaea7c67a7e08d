"""A round: a replay that is disrupted as its plan says, begun again until it is complete, and judged."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from system_test.replay_faults.checker import judged, rule
from system_test.replay_faults.schedule import Disruption, Kind, Mode, Plan
from system_test.replay_faults.source import TOPIC, Source, archive
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Completed, Running, run, start
from system_test.support.topics import create_topic, delete_topic, read, topic_names
from system_test.support.waiting import wait_until

JOB = "copy"
OUTAGES = (Kind.BROKER_KILL, Kind.FREEZE, Kind.FROZEN_KILL, Kind.FROZEN_TERM)
RUN_SECONDS = 240.0
ENDING_SECONDS = 60.0
KILLED, ENDED, TAKEN_OVER, FAILED = -9, 143, 11, 1
TARGET_CHANGED = ("was deleted while the job wrote to it", "is not the one that job", "lacks records that this job")


class RoundFailedError(AssertionError):
    """A broken promise; the message says which, and what happened before."""


@dataclass
class Round:
    """One round on a broker that runs; it runs again afterwards."""

    plan: Plan
    broker: KafkaBroker
    home: Path
    target: str
    records: int = 8000
    proves: bool = False
    """Whether each copy is proved by `replayer verify --job` too."""
    _events: list[str] = field(default_factory=list)
    _made: Counter[str] = field(default_factory=Counter)
    _runs: int = 0
    _machine: int = 1
    _attempts_before: int = 0
    """In the job's folder, when the newest run was started."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def run(self) -> dict[str, Any]:
        """What happened; raises RoundFailedError."""
        began = time.monotonic()
        create_topic(self.broker.bootstrap, self.target, self.plan.routing.lanes)
        try:
            with self._stack:
                source = archive(self.home / "archive", self.plan.seed, self.records)
                figures = self._disrupted(source)
        except AssertionError as error:
            told = "\n".join(["what happened:", *self._events])
            raise RoundFailedError(f"{self.plan}\n{error}\n{told}") from error
        finally:
            self._heal()
        seconds = round(time.monotonic() - began, 1)
        return {"seconds": seconds, "runs": self._runs, "by_kind": dict(self._made), **figures}

    def _disrupted(self, source: Source) -> dict[str, Any]:
        replay: Running | None = self._start()
        for disruption in self.plan.disruptions:
            assert replay is not None
            if not self._comes(disruption, replay):
                break
            self._note(str(disruption))
            self._made[disruption.kind.value] += 1
            replay = self._actions[disruption.kind](replay, disruption)
        if replay is None:
            return {"outcome": "refused"}
        return self._complete(replay, source)

    def _complete(self, replay: Running, source: Source) -> dict[str, Any]:
        done = self._check(replay.wait(RUN_SECONDS), 0, *self._while_away())
        if done.exit_code:
            done = self._ended(self._start(), RUN_SECONDS, 0)
        result = json.loads(done.stdout)
        made = sum(map(len, source.values()))
        written = result["records"] + result["records_before"]
        if not result["complete"] or written != made:
            raise AssertionError(f"the result says {written} of {made} records\n{done.transcript}")
        lanes = {lane: read(self.broker.bootstrap, self.target, lane) for lane in range(self.plan.routing.lanes)}
        verdict = judged(source, lanes, rule(self.plan.routing))
        may_repeat = self.plan.mode is Mode.IDEMPOTENT and any(Kind(kind).may_repeat for kind in self._made)
        if wrong := verdict.violations(may_repeat=may_repeat):
            raise AssertionError(f"{', '.join(wrong)}: {verdict}\n{done.transcript}")
        if self.proves:
            self._prove(repeats=verdict.repeated)
        in_one_run = verdict.repeated if self._runs == 1 else 0
        repeats = {"repeated": verdict.repeated, "repeated_in_one_run": in_one_run}
        figures = {"records": made, **repeats, "proved": self.proves}
        return {"outcome": "complete", **figures, "lost_commits": result["lost_commits"]}

    def _while_away(self) -> tuple[int, ...]:
        """A run that had not begun when its broker went may end with 1: no attempt of it is in the job's folder."""
        outage = any(kind.value in self._made for kind in OUTAGES)
        return (FAILED,) if outage and self._attempts() == self._attempts_before else ()

    def _attempts(self) -> int:
        return len(list(self.home.glob(f"jobs/{JOB}/attempts/*.json")))

    def _prove(self, *, repeats: int) -> None:
        options = ("--job", JOB, "--jobs", self.home / "jobs", "-b", self.broker.bootstrap, "-a", self.home / "archive")
        done = run("replayer", "verify", *options, "--json", env=self._env(), timeout=RUN_SECONDS, check=None)
        report = json.loads(done.stdout) if done.exit_code in (0, 3) and done.stdout else {}
        others = sum(self._made[kind.value] for kind in (Kind.SECOND_RUN, Kind.ZOMBIE))
        if repeats and others and report.get("foreign"):
            # Without transactions a run that was taken over writes until it notices: its records are named.
            wrong = ("differing", "missing")
            is_right = not any(report[each] for each in wrong) and report["foreign"] + report["sent_twice"] == repeats
        else:
            is_right = done.exit_code == 0 and report.get("verdict") == ("WARNING" if repeats else "OK")
        if not is_right:
            raise AssertionError(f"verify --job does not prove the copy, {repeats} repeats\n{done.transcript}")

    @cached_property
    def _actions(self) -> dict[Kind, Callable[[Running, Disruption], Running | None]]:
        return {
            Kind.KILL: self._kill,
            Kind.TERM: self._term,
            Kind.FREEZE: self._freeze,
            Kind.BROKER_KILL: self._broker_kill,
            Kind.FROZEN_KILL: self._frozen_end,
            Kind.FROZEN_TERM: self._frozen_end,
            Kind.SECOND_RUN: self._second_run,
            Kind.SECOND_HERE: self._second_here,
            Kind.ZOMBIE: self._zombie,
            Kind.SOURCE_AGAIN: self._source_again,
            Kind.TARGET_AGAIN: self._target_under_way,
            Kind.TARGET_GONE: self._target_under_way,
            Kind.TARGET_AGAIN_AT_REST: self._target_at_rest,
            Kind.TARGET_GONE_AT_REST: self._target_at_rest,
        }

    def _kill(self, replay: Running, _: Disruption) -> Running:
        self._killed(replay)
        return self._start()

    def _term(self, replay: Running, _: Disruption) -> Running:
        self._told_to_end(replay)
        return self._start()

    def _freeze(self, replay: Running, disruption: Disruption) -> Running:
        self.broker.pause()
        _pass(disruption.seconds)
        self.broker.resume()
        return replay

    def _broker_kill(self, replay: Running, disruption: Disruption) -> Running:
        self.broker.kill()
        _pass(disruption.seconds)
        self.broker.start()
        return replay

    def _frozen_end(self, replay: Running, disruption: Disruption) -> Running:
        """The run ends while the broker stands still, which meets its requests later."""
        self.broker.pause()
        _pass(disruption.seconds)
        if disruption.kind is Kind.FROZEN_KILL:
            self._killed(replay)
        else:
            self._told_to_end(replay)
        self.broker.resume()
        return self._start()

    def _second_run(self, replay: Running, _: Disruption) -> Running:
        second = self._start(elsewhere=True)
        self._ended(replay, RUN_SECONDS, TAKEN_OVER, 0)
        return second

    def _second_here(self, replay: Running, _: Disruption) -> Running:
        """Without transactions a lock keeps a second run away."""
        second = self._start()
        alive = replay.alive
        self._ended(second, ENDING_SECONDS, TAKEN_OVER, *(() if alive and replay.alive else (0,)))
        return replay

    def _zombie(self, replay: Running, disruption: Disruption) -> Running:
        """The first run stands still, the second takes over, and the first wakes up."""
        replay.signal(signal.SIGSTOP)
        second = self._start(elsewhere=True)
        with _Ends(self.broker.bootstrap, self.target, self.plan.routing.lanes) as ends:
            before = ends.logged()
            wait_until(lambda: not second.alive or ends.logged() > before, RUN_SECONDS, "the second run's records")
        _pass(disruption.delay)
        replay.signal(signal.SIGCONT)
        self._ended(replay, RUN_SECONDS, TAKEN_OVER)
        return second

    def _source_again(self, replay: Running, _: Disruption) -> Running:
        self._killed(replay)
        archive(self.home / "archive", f"{self.plan.seed}/again", self.records // 2, incarnation=2)
        return self._start()

    def _target_under_way(self, replay: Running, disruption: Disruption) -> None:
        self._replace_target(disruption)
        self._refused(replay)
        self._refused(self._start())

    def _target_at_rest(self, replay: Running, disruption: Disruption) -> None:
        self._killed(replay)
        self._replace_target(disruption)
        self._refused(self._start())

    def _replace_target(self, disruption: Disruption) -> None:
        delete_topic(self.broker.bootstrap, self.target)
        if disruption.kind in (Kind.TARGET_AGAIN, Kind.TARGET_AGAIN_AT_REST):
            self._create_again()

    def _create_again(self) -> None:
        gone = lambda: self.target not in topic_names(self.broker.bootstrap)  # noqa: E731
        wait_until(gone, ENDING_SECONDS, "the target to be gone")
        create_topic(self.broker.bootstrap, self.target, self.plan.routing.lanes)

    def _refused(self, replay: Running) -> None:
        done = self._ended(replay, RUN_SECONDS, FAILED)
        if not any(words in done.stderr for words in TARGET_CHANGED):
            raise AssertionError(f"it does not say that the target changed\n{done.transcript}")

    def _killed(self, replay: Running) -> None:
        done = replay.kill()
        self._check(done, KILLED, 0, *self._while_away())

    def _told_to_end(self, replay: Running) -> None:
        """By SIGTERM; before the program heeds it, it ends as any process does, which shells call 143 as well."""
        replay.signal(signal.SIGTERM)
        done = replay.wait(ENDING_SECONDS)
        unheeded = () if self._attempts() > self._attempts_before else (-signal.SIGTERM,)
        self._check(done, ENDED, 0, *unheeded, *self._while_away())

    def _ended(self, replay: Running, seconds: float, *codes: int) -> Completed:
        return self._check(replay.wait(seconds), *codes)

    def _check(self, done: Completed, *codes: int) -> Completed:
        self._note(f"a run ended with {done.exit_code} after {done.seconds:.1f} s")
        if done.exit_code not in codes:
            raise AssertionError(
                f"exit code {done.exit_code}, and not {' or '.join(map(str, codes))}\n{done.transcript}"
            )
        if "Traceback" in done.stderr:
            raise AssertionError(f"a traceback\n{done.transcript}")
        return done

    def _start(self, *, elsewhere: bool = False) -> Running:
        """The same command each time; elsewhere is another machine, with the folder of jobs in common."""
        self._machine += elsewhere
        plan, options = self.plan, ["--yes", "--json", "--resume", "--job", JOB, "-X", "compression.type=gzip"]
        if plan.mode is Mode.TRANSACTIONAL:
            options.append("--transactional")
        shape = ("--partitions", plan.routing.option, "--rate", f"{plan.rate}/s", "--jobs", self.home / "jobs")
        where = ("-b", self.broker.bootstrap, "-a", self.home / "archive")
        arguments = ("replay", TOPIC, "--to-topic", self.target, *options, *shape, *where)
        self._runs += 1
        self._attempts_before = self._attempts()
        self._note(f"run {self._runs} begins")
        return self._stack.enter_context(start("replayer", *arguments, env=self._env()))

    def _env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.home / f"machine-{self._machine}")}

    def _comes(self, disruption: Disruption, replay: Running) -> bool:
        """Waits for the disruption's moment; whether the run is still alive then."""
        if disruption.share is not None:
            with _Ends(self.broker.bootstrap, self.target, self.plan.routing.lanes) as ends:
                goal = ends.logged() + max(1, int(disruption.share * self.records))
                what = f"{goal} records in the target"
                wait_until(lambda: not replay.alive or ends.logged() >= goal, RUN_SECONDS, what)
        _pass(disruption.delay)
        return replay.alive

    def _note(self, event: str) -> None:
        self._events.append(f"{time.strftime('%H:%M:%S')} {event}")

    def _heal(self) -> None:
        self.broker.resume()
        if not self.broker.running:
            self.broker.start()
        with suppress(Exception):
            delete_topic(self.broker.bootstrap, self.target)


class _Ends:
    """Where the target's log ends, as its high watermarks tell."""

    def __init__(self, bootstrap: str, topic: str, lanes: int) -> None:
        asked = {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": "read_uncommitted"}
        self._consumer = Consumer({**asked, "log_level": 0})
        self._places = [TopicPartition(topic, lane) for lane in range(lanes)]

    def logged(self) -> int:
        """Offsets in the log: records, rolled back or not, and transaction markers."""
        return wait_until(self._asked, ENDING_SECONDS, "the target's leaders")[0]

    def _asked(self) -> Sequence[int] | None:
        with suppress(KafkaException):
            return (sum(self._consumer.get_watermark_offsets(place, timeout=5)[1] for place in self._places),)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _pass(seconds: float) -> None:
    moment = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= moment, seconds + 10, "the moment", longest_pause=0.05)
