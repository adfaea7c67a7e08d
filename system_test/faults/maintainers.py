"""Maintenance beside archivers: prune, compact, erase and gc as processes, one after another, some of them killed."""

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from system_test.faults.archivers import Archiver, Fleet, crashes
from system_test.faults.asked import Asked, Erase
from system_test.faults.cluster import COMPACTED, KEYS
from system_test.faults.fingerprint import key_hash
from system_test.faults.kafka_producer import PEOPLE
from system_test.faults.losses import LOOK, Losses
from system_test.faults.watcher import parse_home, read_markers

GRACE_SECONDS = 6.0
KEEP_SECONDS = 20.0
CLEAN_SECONDS = 90.0
"""So long after the last fault nothing may be left to collect."""
_AT_ONCE = 2
_KILLED = 0.3
_KILLED_AFTER = (2.0, 20.0)
"""Between so many seconds after the start."""
_STATUSES = 3
_HURRIED = "system_test.support.hurried"
_ENDINGS = (0, 1, 3, 11, -signal.SIGKILL)
"""Done; the store did not answer; not all is done, or another maintainer is at work; another one took over."""
_COMMANDS = {"prune": 3, "compact": 3, "convert": 3, "erase": 4, "gc": 3}
_MERGED = ("--chunk-bytes", "96KiB")
_CONVERSIONS = (
    ("--record-format", "arrow"),
    ("--record-format", "json", "--codec", "gzip"),
    ("--codec", "zstd", "--block-bytes", "4KiB"),
)


@dataclass
class Maintainer:
    """A command that runs."""

    command: str
    topic: str
    process: Archiver
    kill_at: float
    erase: Erase | None


class Maintainers:
    """Keeps some commands at work; which, on which topic, and when it is killed is a function of seed and number."""

    def __init__(
        self, fleet: Fleet, kafka: Sequence[object], where: Sequence[object], losses: Losses, home: Path, seed: str
    ) -> None:
        self._fleet = fleet
        self._kafka = kafka
        self._where = where
        self.losses = losses
        self._repair: Maintainer | None = None
        """The command that repairs a loss, beside the others."""
        self._archive = losses.archive
        self._home = home
        self._rng = random.Random(f"maintainers:{seed}")
        self._running: list[Maintainer] = []
        self._reports: list[tuple[Erase, Path]] = []
        self._only_gc = False
        self.asked = Asked()
        self.counts: Counter[str] = Counter()
        """How often each command ended in each way."""
        self.violations: list[str] = []

    def look_after(self) -> None:
        """Note who ended, kill whose time has come, and begin others."""
        for each in list(self._running):
            if each.process.alive and time.monotonic() > each.kill_at:
                each.process.kill()
            if not each.process.alive:
                self._running.remove(each)
                self._ended(each)
        self._look_after_losses()
        while len(self._running) < (1 if self._only_gc else _AT_ONCE) and (archived := self._archived()):
            self._begin(archived)

    def _look_after_losses(self) -> None:
        repair = self._repair
        if repair is not None:
            if repair.process.alive:
                if time.monotonic() > repair.kill_at:
                    repair.process.kill()
                return
            self._repair = None
            self._ended(repair)
            self.losses.ended(repair.command, repair.process)
        self.losses.look(is_repairing=False)
        command = self.losses.arguments(self._kafka)
        if command is not None:
            buffer = () if command[0] == LOOK else ("--buffer-dir", self._home / "maintenance")
            process = self._fleet.spawn(command[0], _HURRIED, *command[1], *buffer, *self._where)
            self._repair = Maintainer(command[0], "", process, self._kill_at(), None)

    def _kill_at(self) -> float:
        is_killed = not self._only_gc and self._rng.random() < _KILLED
        return time.monotonic() + self._rng.uniform(*_KILLED_AFTER) if is_killed else float("inf")

    def wind_down(self) -> None:
        """From now on nothing but gc and repairs of losses begin, and nothing is killed."""
        self._only_gc = True
        for each in (*self._running, *([self._repair] if self._repair else ())):
            each.kill_at = float("inf")

    def is_clean(self) -> bool:
        """Whether no rewrite is under way and nothing that one replaced is kept."""
        kept = [each["maintenance"] for each in read_markers(self._archive).values() if "maintenance" in each]
        only_gc = all(each.command == "gc" for each in self._running)
        is_repaired = self._repair is None and self.losses.open is None
        return only_gc and is_repaired and not any(each["retired"] or each["rewriting"] for each in kept)

    def finish(self) -> None:
        """Wait for those that run, collect garbage once more, and ask which erases are complete."""
        for each in self._running:
            each.process.process.wait(CLEAN_SECONDS)
            self._ended(each)
        self._running.clear()
        last = self._fleet.spawn("gc", _HURRIED, *self._arguments("gc", ""))
        last.process.wait(CLEAN_SECONDS)
        self._judge(last)
        asked = [
            (erase, self._fleet.spawn("status", _HURRIED, "erase", "--status", report, *self._where))
            for erase, report in [each for each in self._reports if each[0].is_done][-_STATUSES:]
        ]
        for erase, process in asked:
            erase.is_complete = process.process.wait(CLEAN_SECONDS) == 0
            self.counts["erase complete" if erase.is_complete else "erase not complete"] += 1
            self._judge(process)

    def kill_all(self) -> None:
        for each in (*self._running, *([self._repair] if self._repair else ())):
            each.process.kill()

    def _begin(self, archived: dict[str, int]) -> None:
        rng = self._rng
        command = "gc" if self._only_gc else rng.choices(list(_COMMANDS), list(_COMMANDS.values()))[0]
        topics = sorted({parse_home(home)[0] for home in archived})
        topic = rng.choice(topics)
        kill_at = self._kill_at()
        arguments, erase = self._arguments(command, topic), None
        if command == "erase":
            key = f"key-{rng.randrange(KEYS[topic])}" if topic == COMPACTED else f"person-{rng.randrange(PEOPLE)}"
            hashed = key_hash(key.encode())
            assert hashed is not None
            erase = Erase(topic, hashed, archived)
            report = self._home / f"erase-{len(self._reports)}.json"
            self.asked.erases.append(erase)
            self._reports.append((erase, report))
            arguments = (*arguments, "--key", key, "--report", report)
        process = self._fleet.spawn(command, _HURRIED, *arguments)
        self._running.append(Maintainer(command, topic, process, kill_at, erase))

    def _arguments(self, command: str, topic: str) -> tuple[object, ...]:
        buffer = ("--buffer-dir", self._home / "maintenance")
        match command:
            case "prune":
                how: tuple[object, ...] = ("prune", topic, "--keep", f"{KEEP_SECONDS:g}s")
            case "compact":
                how = ("compact", topic, *_MERGED, *buffer)
            case "convert":
                how = ("compact", topic, *_MERGED, *self._rng.choice(_CONVERSIONS), *buffer)
            case "erase":
                how = ("erase", topic, *buffer)
            case _:
                how = ("gc", "--grace", f"{GRACE_SECONDS:g}s")
        return (*how, "--yes", *self._where)

    def _ended(self, maintainer: Maintainer) -> None:
        process, erase, now = maintainer.process, maintainer.erase, time.time()
        code = process.process.returncode
        self.counts[f"{maintainer.command} {'killed' if code == -signal.SIGKILL else code}"] += 1
        self._judge(process)
        if erase is not None:
            erase.until, erase.ended, erase.is_done = self._archived(), now, code == 0
        if maintainer.command == "prune":
            self.asked.kept_since[maintainer.topic] = round((now - KEEP_SECONDS) * 1000)

    def _judge(self, ended: Archiver) -> None:
        self.violations += crashes(ended)
        if ended.process.returncode not in _ENDINGS:
            self.violations.append(f"{ended.log.name} ended with {ended.process.returncode}")

    def _archived(self) -> dict[str, int]:
        """How far each partition is archived, by its folder with a slash at its end."""
        return {home: marker["next_offset"] or 0 for home, marker in read_markers(self._archive).items()}
