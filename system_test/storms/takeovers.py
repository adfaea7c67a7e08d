"""Archivers with static member ids that others take, while partitions move, processes are killed and told to end."""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from archiver.__main__ import run as run_archiver
from archiver.cli.run import run as _loaded  # noqa: F401  # so that forks need not load it
from archiver.ingest import service as _service  # noqa: F401
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import run as run_program
from system_test.support.topics import NewRecord, create_topic, produce
from system_test.support.waiting import DeadlineExceededError, wait_until

TOPIC = "storm"
PARTITIONS = 12
IDS = ("a", "b", "c")
REFUSED = 11
SETTINGS = (
    *("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1000", "--groups", "none"),
    *("--group-id", "storm", "--chunk-interval", "1s", "--grace", "5s", "-v"),
)
TAIL = 3000


@dataclass
class Outcome:
    """How processes ended."""

    ends: Counter[str] = field(default_factory=Counter)
    """By exit code; negative ones are signals."""
    unexpected: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        codes = ", ".join(f"{count} with {code}" for code, count in sorted(self.ends.items()))
        lines = [f"{self.ends.total()} ends in {self.seconds:.0f} s: {codes}", *self.unexpected]
        return "\n".join([*lines, f"{len(self.unexpected)} unexpected"])


@dataclass
class Life:
    """One run of `archiver run`."""

    member: str
    process: multiprocessing.process.BaseProcess
    log: Path
    sent: set[int] = field(default_factory=set)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that ends the process is expected to do so."""
        self.sent.add(number)
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    @property
    def is_expected(self) -> bool:
        """Whether it ended as it was made to: by SIGKILL or SIGTERM, or because its id is another's."""
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            return signal.SIGKILL in self.sent
        if code in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return signal.SIGTERM in self.sent
        return code == REFUSED


def archive(arguments: list[str], log: str) -> None:
    """Be `archiver run`, which does not return."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(written, stream)
    sys.argv = ["archiver", "run", *arguments]
    run_archiver()


class Takeovers:
    """The storm. Processes are forked from one that has loaded the program: starting Python takes longest."""

    def __init__(self, broker: KafkaBroker, folder: Path, chance: random.Random) -> None:
        self._arguments = [TOPIC, *SETTINGS, "-b", broker.bootstrap, "-a", str(folder / "archive")]
        self._broker = broker
        self._folder = folder
        self._chance = chance
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._started = 0
        self._living: list[Life] = []
        self.outcome = Outcome()

    def run(self, ends: int) -> None:
        """Continue until so many processes have ended, or one did unexpectedly."""
        create_topic(self._broker.bootstrap, TOPIC, PARTITIONS)
        acts: dict[Callable[[], None], int] = {self._take_over: 4, self._take_over_in_a_rebalance: 4, self._end: 2}
        try:
            while self.outcome.ends.total() < ends and not self.outcome.unexpected:
                for member in IDS:
                    if not any(life.member == member for life in self._living):
                        self._start(member)
                records = [NewRecord(b"v" * 100, partition=number % PARTITIONS) for number in range(50)]
                produce(self._broker.bootstrap, TOPIC, records)
                (act,) = self._chance.choices(list(acts), list(acts.values()))
                act()
                self._wait(lambda: len(self._living) <= len(IDS) + 1, 20, "others give way")
        finally:
            for life in self._living:
                life.send(signal.SIGCONT)
                life.send(signal.SIGTERM)
            self._wait(lambda: not self._living, 60, "all end")
            for life in self._living:
                self.outcome.unexpected.append(f"{life.log.name} does not end")
                life.process.kill()

    def _start(self, member: str) -> Life:
        self._started += 1
        log = self._folder / f"{self._started:05d}-{member or 'dynamic'}.log"
        identity = ["--group-instance-id", member] if member else []
        process = self._context.Process(target=archive, args=([*self._arguments, *identity], str(log)))
        process.start()
        life = Life(member, process, log)
        self._living.append(life)
        return life

    def _take_over(self) -> None:
        """Start a second process with an id, at any moment of the first one's life."""
        member = self._chance.choice(IDS)
        rival = self._start(member)
        seconds = self._chance.choice((0.0, 0.5, 3.0))
        self._wait(lambda: " claimed " in rival.text, seconds, "the rival archives")

    def _take_over_in_a_rebalance(self) -> None:
        """Take the id of a process that is giving partitions up, which is stopped meanwhile or not."""
        before = {life.log: life.text.count(" revoked ") for life in self._statics()}
        newcomer = self._start("")
        revoking: list[Life] = []

        def look() -> bool:
            revoking[:] = [life for life in self._statics() if life.text.count(" revoked ") > before.get(life.log, 0)]
            return bool(revoking)

        if self._wait(look, 10, "partitions move", pause=0.005):
            life, is_stopped = self._chance.choice(revoking), self._chance.random() < 0.5
            if is_stopped:
                life.send(signal.SIGSTOP)
            rival = self._start(life.member)
            if is_stopped:
                self._wait(lambda: " assigned " in rival.text, 5, "the rival has the id")
                life.send(signal.SIGCONT)
        newcomer.send(self._chance.choice((signal.SIGKILL, signal.SIGTERM)))

    def _end(self) -> None:
        if self._living:
            self._chance.choice(self._living).send(self._chance.choice((signal.SIGKILL, signal.SIGTERM)))

    def _statics(self) -> Iterator[Life]:
        return (life for life in self._living if life.member and life.process.is_alive())

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> bool:
        """Whether the condition came true in time; ends are noted meanwhile."""

        def met() -> bool:
            self._note_ends()
            return condition()

        with suppress(DeadlineExceededError):
            return wait_until(met, seconds, what, longest_pause=pause)
        return False

    def _note_ends(self) -> None:
        for life in [life for life in self._living if not life.process.is_alive()]:
            self._living.remove(life)
            self.outcome.ends[str(life.process.exitcode)] += 1
            if life.is_expected:
                life.log.unlink(missing_ok=True)
            else:
                sent = sorted(life.sent)
                what = f"{life.log.name} ended with {life.process.exitcode}; signals sent: {sent}"
                self.outcome.unexpected.append(f"{what}\n{life.text[-TAIL:]}")
        if self.outcome.ends.total() // 50 != self._told:
            self._told = self.outcome.ends.total() // 50
            print(f"{self.outcome.ends.total()} ends: {dict(self.outcome.ends)}", flush=True)

    _told = 0


def storm_of_takeovers(broker: KafkaBroker, folder: Path, ends: int, seed: int) -> Outcome:
    """Let so many archivers end, and check what they archived."""
    begun = time.monotonic()
    storm = Takeovers(broker, folder, random.Random(seed))
    storm.run(ends)
    storm.outcome.seconds = time.monotonic() - begun
    if not storm.outcome.unexpected:
        run_program("replayer", "verify", TOPIC, "--deep", "-a", str(folder / "archive"))
    return storm.outcome
