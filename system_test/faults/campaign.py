"""One round: servers, producers and archivers are started, faults happen, all is healed, and the archive is judged."""

import heapq
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from system_test.faults.archivers import REFUSED, Archiver, Fleet
from system_test.faults.checker import ANSWERS, STORE_FAULTS
from system_test.faults.cluster import COMPACTED, CREATED_AGAIN, PATTERN, PLAIN, TRUNCATED, Topics
from system_test.faults.losses import Losses
from system_test.faults.maintainers import CLEAN_SECONDS, GRACE_SECONDS, Maintainers
from system_test.faults.schedule import Fault, FaultKind, schedule
from system_test.faults.servers import VerifiableProducer
from system_test.faults.store_faults import StoreFaultProxy
from system_test.faults.watcher import Watcher
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.waiting import DeadlineExceededError, wait_until

GROUP = "faults"
PREFIX = "faults"
LAG_SECONDS = 60.0
"""So long after the last fault everything must be archived."""
_TERM_SECONDS = 30.0
_FENCED_SECONDS = 40.0
_STEP_SECONDS = 0.05
_COMPACT_SECONDS = 15.0
_LOOK_SECONDS = 0.2
_BUSY_SECONDS = 0.5
_FAULTS_AT_ONCE = 4
_IDLE_SECONDS = 12.0
_STORE_FAULTS_SECONDS = 120.0
_CHECK_SECONDS = 1800.0
_SETTINGS = (
    *("--chunk-interval", "8s", "--chunk-records", "1000", "--block-bytes", "8KiB"),
    *("--grace", "10s", "--memory", "64MiB", "--groups-interval", "2s"),
    *("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1500"),
)


class RoundFailedError(AssertionError):
    """The round broke a promise; the message says which, and how to run it again."""


@dataclass(frozen=True)
class RoundSettings:
    """What a round is made of. `seed` settles its schedule; rates are records/s and a share of requests."""

    seed: str
    disruptions: int
    store_faults: int
    """So many at least; when the disruptions are over, they are waited for."""
    mean_gap: float
    store_rate: float
    plain_rate: float = 220.0
    transactional_rate: float = 90.0


@dataclass
class Slot:
    """A place for one archiver that is to run all the time."""

    name: str
    instance: str | None
    archiver: Archiver | None = None
    busy: bool = False
    """Whether a fault is under way here; others go elsewhere."""


@dataclass(frozen=True)
class Ghost:
    """A process that came back while another one runs under its id."""

    archiver: Archiver
    released: float


class Round:
    """One round from start to verdict."""

    def __init__(self, settings: RoundSettings, home: Path) -> None:
        self._settings = settings
        self._home = home
        self._counts: Counter[str] = Counter()
        self._schedule: list[Fault] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._slots = [Slot("first", None), Slot("second", "machine-2"), Slot("third", "machine-3")]
        self._is_healed = False
        self._ghosts: list[Ghost] = []
        self._refused: list[tuple[float, str]] = []
        self._leaving: list[tuple[float, Archiver, Slot | None, float]] = []
        self._violations: list[str] = []
        self._changes = deque([0], maxlen=_FAULTS_AT_ONCE)
        """How often markers had changed at each of the last faults."""
        self._operations: list[Future[None]] = []
        self._to_lose: list[float] = []
        """Dice of the losses that are due."""
        self._store_down: list[tuple[float, float]] = []

    def run(self) -> dict[str, Any]:
        """Run it; gives the figures, or raises RoundFailedError."""
        if self._home.exists():
            shutil.rmtree(self._home)
        (self._home / "logs").mkdir(parents=True)
        self._journal = (self._home / "events.jsonl").open("w")
        with ExitStack() as stack:
            self._start(stack)
            try:
                self._inflict()
                lag_seconds = self._settle()
                watched = self._watcher.stop()
            except BaseException:
                self._keep_evidence()
                raise
            self._violations += self._fleet.endings.violations + watched.violations + self._maintainers.violations
            self._maintainers.asked.losses = self._maintainers.losses.all
            truth = {
                "topics": self._topics.as_truth(),
                "hashes": watched.hashes,
                "processes": self._fleet.processes,
                "offsets": {home: sorted(offsets) for home, offsets in watched.offsets.items()},
                "gaps": {home: sorted(gaps) for home, gaps in watched.gaps.items()},
                "asked": asdict(self._maintainers.asked),
                "store_down": self._store_down,
            }
            (self._home / "truth.json").write_text(json.dumps(truth))
            checked = self._check()
            store_faults = self._store_faults()
            figures = {
                "seed": self._settings.seed,
                "disruptions": self._counts.total(),
                "by_kind": dict(sorted(self._counts.items())),
                "store_faults": sum(store_faults.values()),
                "store_faults_by_kind": dict(sorted(store_faults.items())),
                "lag_seconds": round(lag_seconds, 1),
                "archiver_starts": self._fleet.starts,
                "ended_by_themselves": dict(self._fleet.endings.by_themselves),
                "warnings": self._warnings(),
                "max_rss_mib": round(self._fleet.max_rss_bytes / 2**20, 1),
                "marker_samples": watched.marker_samples,
                "group_samples": watched.group_samples,
                "hashed_objects": len(watched.hashes),
                "deletions": watched.deletions,
                "maintenance": dict(sorted(self._maintainers.counts.items())),
                "losses": dict(Counter(f"{each.kind}: {each.how}" for each in self._maintainers.losses.all)),
                "highest_epoch": max(epoch for epoch, _ in watched.markers.values()),
                **checked,
            }
            if self._violations:
                self._keep_evidence()
                raise RoundFailedError(self._report())
        return figures

    def _start(self, stack: ExitStack) -> None:
        settings = self._settings
        self._broker = stack.enter_context(KafkaBroker())
        self._store = stack.enter_context(VersityGateway())
        self._proxy = StoreFaultProxy(
            self._store.endpoint_url, settings.seed, settings.store_rate, self._home / STORE_FAULTS
        )
        stack.enter_context(self._proxy)
        bootstrap = self._broker.bootstrap
        self._plain = VerifiableProducer("plain", "plain", bootstrap, settings.plain_rate, settings.seed, self._home)
        stack.enter_context(self._plain)
        self._transactional = VerifiableProducer(
            "transactional", "transactional", bootstrap, settings.transactional_rate, settings.seed, self._home
        )
        stack.enter_context(self._transactional)
        self._topics = Topics(self._broker)
        self._topics.create_all(self._plain, self._transactional)
        where = (PATTERN, "-b", bootstrap, "-a", self._store.url(PREFIX), "--endpoint-url", self._proxy.endpoint_url)
        own = ("--group-id", GROUP, "--buffer-dir", self._home / "buffer")
        self._fleet = Fleet((*where, *own, *_SETTINGS), self._store.env, self._home / "logs")
        stack.callback(self._fleet.kill_all)
        for slot in self._slots:
            slot.archiver = self._fleet.start(slot.name, slot.instance)
        self._archive = self._store.root / self._store.bucket / PREFIX
        self._watcher = Watcher(self._archive, lambda: self._topics.group_positions(GROUP), GRACE_SECONDS)
        self._watcher.start()
        losses = Losses(self._watcher, self._topics.is_gone)
        self._maintainers = Maintainers(self._fleet, where[1:3], where[3:], losses, self._home, settings.seed)
        stack.callback(self._maintainers.kill_all)
        direct = (self._store.url(PREFIX), self._store.endpoint_url, self._archive, self._home / ANSWERS)
        reading = ("system_test.faults.reader", *direct, GRACE_SECONDS, settings.seed)
        self._reader = self._fleet.spawn("reader", *reading)
        stack.callback(self._reader.kill)
        self._broker_thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="broker"))
        self._store_thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="store"))

    def _inflict(self) -> None:
        """The faults, each at its time; returns when the last has begun."""
        settings = self._settings
        before = 0.0
        for fault in itertools.islice(schedule(settings.seed, settings.mean_gap), settings.disruptions):
            self._let_work(fault.at - before)
            before = fault.at
            self._schedule.append(fault)
            self._counts[fault.kind.value] += 1
            self._note("fault", fault=str(fault))
            self._begin(fault)
        give_up = time.monotonic() + _STORE_FAULTS_SECONDS
        while self._proxy.hits < settings.store_faults and time.monotonic() < give_up:
            self._step()
        while self._due or any(not operation.done() for operation in self._operations):
            self._step()
        for operation in self._operations:
            operation.result()

    def _let_work(self, seconds: float) -> None:
        """Wait that long, and, but not for ever, until a marker has changed since some faults ago.

        On a slow machine faults would meet nobody at work otherwise.
        """
        begun, seen = time.monotonic(), self._watcher.seen
        while (passed := time.monotonic() - begun) < _IDLE_SECONDS:
            if passed >= seconds and seen.marker_changes > self._changes[0]:
                break
            self._step()
        self._changes.append(seen.marker_changes)

    def _step(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        for archiver in self._fleet.look_after():
            self._ended(archiver)
        self._maintainers.look_after()
        self._lose_objects()
        self._hurry(now)
        time.sleep(_STEP_SECONDS)

    def _ended(self, archiver: Archiver) -> None:
        self._note("ended", archiver=archiver.log.name, code=archiver.process.returncode)
        self._ghosts = [ghost for ghost in self._ghosts if ghost.archiver is not archiver]
        if archiver.process.returncode == REFUSED:
            self._refused.append((time.monotonic(), archiver.name))
        for entry in [entry for entry in self._leaving if entry[1] is archiver]:
            self._leaving.remove(entry)
            _, _, slot, seconds = entry
            if not archiver.ended_in_order:
                self._violations.append(f"{archiver.log.name} ended with {archiver.process.returncode} after SIGTERM")
            if slot is not None:
                self._later(seconds, partial(self._restart, slot))
            return
        for slot in self._slots:
            if slot.archiver is archiver and not slot.busy:
                # What a supervisor does: start again what ended by itself.
                slot.busy = True
                self._later(1.0, partial(self._restart, slot))

    def _hurry(self, now: float) -> None:
        for ghost in [ghost for ghost in self._ghosts if now > ghost.released + _FENCED_SECONDS]:
            if self._share_an_id(ghost):
                self._violations.append(f"nobody gave way to {ghost.archiver.log.name} in {_FENCED_SECONDS:g} s")
            ghost.archiver.kill_hanging()
            self._ghosts.remove(ghost)
        for entry in list(self._leaving):
            if now > entry[0]:
                self._violations.append(f"{entry[1].log.name} still ran {_TERM_SECONDS:g} s after SIGTERM")
                self._leaving.remove(entry)
                entry[1].kill_hanging()
                if entry[2] is not None:
                    self._restart(entry[2])

    def _share_an_id(self, ghost: Ghost) -> bool:
        """Whether a ghost and the process in its slot have been members for long, and neither kind gave way.

        Of two with one id the group keeps who joined last; that may be the one that came back.
        """
        if any(at > ghost.released and name == ghost.archiver.name for at, name in self._refused):
            return False
        (rival,) = [slot.archiver for slot in self._slots if slot.name == ghost.archiver.name]
        joined = [archiver.joined_at for archiver in (ghost.archiver, rival) if archiver is not None and archiver.alive]
        since = time.time() - _FENCED_SECONDS / 2
        return len(joined) == 2 and all(at is not None and at < since for at in joined)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))

    def _restart(self, slot: Slot) -> None:
        slot.archiver = self._fleet.start(slot.name, slot.instance)
        slot.busy = False

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.KILL_ALL | FaultKind.COMPACT if not self._free():
                self._later(_BUSY_SECONDS, lambda: self._begin(fault))
            case FaultKind.KILL_ALL:
                self._kill_all(fault.seconds)
            case FaultKind.JOIN:
                self._join(fault)
            case FaultKind.BROKER_KILL:
                self._operate(self._broker_thread, lambda: self._kill_broker(fault.seconds))
            case FaultKind.BROKER_FREEZE:
                self._operate(self._broker_thread, lambda: self._freeze_broker(fault.seconds))
            case FaultKind.STORE_KILL:
                self._operate(self._store_thread, lambda: self._kill_store(fault.seconds))
            case FaultKind.RECREATE:
                self._operate(self._broker_thread, lambda: self._topics.recreate(CREATED_AGAIN, fault.seconds))
            case FaultKind.GROW:
                topic = PLAIN if fault.dice < 0.6 else TRUNCATED
                self._operate(self._broker_thread, lambda: self._topics.grow(topic))
            case FaultKind.TRUNCATE | FaultKind.RETENTION:
                is_retention = fault.kind is FaultKind.RETENTION
                self._lose_records(fault, self._topics.expire if is_retention else self._topics.truncate)
            case FaultKind.COMPACT:
                self._compact(fault)
            case FaultKind.LOSE:
                self._to_lose.append(fault.dice)
            case _:
                self._hit_one(fault)

    def _hit_one(self, fault: Fault) -> None:
        free = self._free()
        if fault.kind is FaultKind.TWIN:
            free = [slot for slot in free if slot.instance is not None] or free
        if not free:
            self._later(_BUSY_SECONDS, lambda: self._hit_one(fault))
            return
        slot = free[int(fault.dice * len(free))]
        archiver = slot.archiver
        assert archiver is not None
        slot.busy = True
        match fault.kind:
            case FaultKind.KILL:
                archiver.kill()
                self._later(fault.seconds, lambda: self._restart(slot))
            case FaultKind.TERM:
                archiver.term()
                self._leaving.append((time.monotonic() + _TERM_SECONDS, archiver, slot, fault.seconds))
            case FaultKind.TWIN if slot.instance is not None:
                archiver.freeze()
                slot.archiver = self._fleet.start(slot.name, slot.instance)
                slot.busy = False
                self._later(fault.seconds, lambda: self._release_ghost(archiver))
            case _:
                archiver.freeze()
                self._later(fault.seconds, lambda: self._thaw(slot, archiver))

    def _free(self) -> list[Slot]:
        """Where an archiver runs and no fault is under way."""
        return [slot for slot in self._slots if not slot.busy and slot.archiver is not None and slot.archiver.alive]

    def _thaw(self, slot: Slot, archiver: Archiver) -> None:
        archiver.thaw()
        slot.busy = False

    def _release_ghost(self, archiver: Archiver) -> None:
        archiver.thaw()
        self._ghosts.append(Ghost(archiver, time.monotonic()))

    def _kill_all(self, seconds: float) -> None:
        for slot in self._kill_free():
            self._later(seconds, partial(self._restart, slot))

    def _kill_free(self) -> list[Slot]:
        """SIGKILL wherever no fault is under way; whoever asks for it starts them again."""
        killed = self._free()
        for slot in killed:
            assert slot.archiver is not None
            slot.busy = True
            slot.archiver.kill()
        return killed

    def _join(self, fault: Fault) -> None:
        for number in range(1 + int(fault.dice > 0.5) + int(fault.dice > 0.8)):
            guest = self._fleet.start("guest")
            self._later(fault.seconds + number, partial(self._leave, guest, fault))

    def _leave(self, guest: Archiver, fault: Fault) -> None:
        if not guest.alive:
            return
        if int(fault.dice * 100) % 2:
            guest.kill()
        else:
            guest.term()
            self._leaving.append((time.monotonic() + _TERM_SECONDS, guest, None, 0.0))

    def _lose_objects(self) -> None:
        """Have a chunk damaged or deleted if that is due; another one if the last was only replaced by chance."""
        losses = self._maintainers.losses
        repaired = sum(bool(each.how) for each in losses.all)
        if repaired < len(self._to_lose) and not self._is_healed:
            loss = losses.inflict(self._to_lose[repaired])
            if loss is not None:
                self._note("lost", keys=loss.keys, kind=loss.kind)

    def _lose_records(self, fault: Fault, lose: Callable[[str, float], None]) -> None:
        """Raise low watermarks; half the time nobody archives, so that records are lost before they are read."""
        topic = TRUNCATED if fault.dice < 0.5 else PLAIN
        slots = self._kill_free() if int(fault.dice * 1000) % 10 < 5 else []

        def begin() -> None:
            self._operate(self._broker_thread, lambda: lose(topic, fault.dice))
            restart_after(self._operations[-1])

        def restart_after(losing: Future[None]) -> None:
            if not losing.done():
                self._later(_LOOK_SECONDS, lambda: restart_after(losing))
                return
            for slot in slots:
                self._later(fault.seconds, partial(self._restart, slot))

        self._later(1.0, begin)

    def _compact(self, fault: Fault) -> None:
        """Nobody archives until the log cleaner is ahead of the archive."""
        slots = self._kill_free()
        deadline = time.monotonic() + _COMPACT_SECONDS

        def archived(partition: int) -> int:
            return self._watcher.next_offsets({}).get((COMPACTED, partition), 0)

        def look() -> None:
            is_ahead = self._topics.compacted_unread(archived)
            if not is_ahead and time.monotonic() < deadline:
                self._later(_LOOK_SECONDS, look)
                return
            self._note("compacted", unread=is_ahead)
            for slot in slots:
                self._later(fault.seconds, partial(self._restart, slot))

        look()

    def _operate(self, thread: ThreadPoolExecutor, operation: Callable[[], None]) -> None:
        self._operations.append(thread.submit(operation))

    def _kill_broker(self, seconds: float) -> None:
        self._broker.kill()
        time.sleep(seconds)
        self._broker.start()

    def _freeze_broker(self, seconds: float) -> None:
        self._broker.pause()
        time.sleep(seconds)
        self._broker.resume()

    def _kill_store(self, seconds: float) -> None:
        begun = time.time()
        self._store.kill()
        time.sleep(seconds)
        self._store.start()
        self._store_down.append((begun, time.time()))

    def _settle(self) -> float:
        """Everything is healed and the producers end; gives the seconds until all is archived, then ends in order."""
        self._is_healed = True
        self._proxy.quiet()
        self._maintainers.wind_down()
        healed = time.monotonic()
        self._plain.quit()
        self._transactional.quit()
        ends = self._topics.ends()
        topic_ids = {topic: lives[-1].topic_id for topic, lives in self._topics.truth.items()}

        def behind() -> dict[str, str]:
            archived = self._watcher.next_offsets(topic_ids)
            return {
                f"{topic}:{partition}": f"{archived.get((topic, partition))} of {end}"
                for (topic, partition), end in ends.items()
                if archived.get((topic, partition), 0) < end
            }

        def caught_up() -> bool:
            self._step()
            return not behind()

        try:
            wait_until(caught_up, LAG_SECONDS, "the archive to catch up")
        except DeadlineExceededError:
            self._violations.append(f"not archived {LAG_SECONDS:g} s after the last fault: {behind()}")
        lag_seconds = time.monotonic() - healed
        for slot in self._slots:
            if slot.archiver is not None and slot.archiver.alive:
                slot.busy = True
                slot.archiver.term()
                self._leaving.append((time.monotonic() + _TERM_SECONDS, slot.archiver, None, 0.0))
        while self._fleet.all:
            self._step()
        try:
            wait_until(self._cleaned, CLEAN_SECONDS, "garbage collection")
        except DeadlineExceededError:
            self._violations.append(f"not all is collected {CLEAN_SECONDS:g} s after the last fault")
        self._maintainers.finish()
        if not self._reader.alive:
            self._violations.append(f"the reader ended by itself: {self._reader.log}")
        self._reader.kill()
        return lag_seconds

    def _cleaned(self) -> bool:
        self._step()
        return self._maintainers.is_clean()

    def _check(self) -> dict[str, Any]:
        """The verdict of the checker, a program of its own."""
        command = [sys.executable, "-m", "system_test.faults.checker", str(self._home), str(self._archive)]
        done = subprocess.run(
            [*command, self._broker.bootstrap], capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
        if not done.stdout.strip():
            self._violations.append(f"the checker died: {done.stderr[-3000:]}")
            return {}
        verdict: dict[str, Any] = json.loads(done.stdout)
        self._violations += verdict.pop("violations")
        return verdict

    def _store_faults(self) -> Counter[str]:
        """Those that met real work; the journal has those of probes too."""
        entries = [json.loads(line) for line in (self._home / STORE_FAULTS).read_text().splitlines()]
        return Counter(entry["fault"] for entry in entries if not entry["probe"])

    def _warnings(self) -> dict[str, int]:
        """What the archivers warn of, by the event's name."""
        words: Counter[str] = Counter()
        for log in (self._home / "logs").glob("*.log"):
            for line in log.read_text(errors="replace").splitlines():
                parts = line.split(" ", 3)
                if len(parts) >= 3 and parts[1] in ("WARNING", "ERROR"):
                    words[parts[2]] += 1
        return dict(words.most_common())

    def _note(self, what: str, **facts: Any) -> None:
        self._journal.write(json.dumps({"at": round(time.time(), 3), "what": what, **facts}) + "\n")
        self._journal.flush()

    def _keep_evidence(self) -> None:
        shutil.copytree(self._archive, self._home / "archive", dirs_exist_ok=True)
        shutil.copy(self._broker.log, self._home / "broker.log")

    def _report(self) -> str:
        shown = "\n".join(f"  - {violation[:1500]}" for violation in self._violations[:30])
        faults = "\n".join(f"  {fault}" for fault in self._schedule)
        return f"seed {self._settings.seed!r}: {len(self._violations)} violations\n{shown}\nthe schedule was\n{faults}"
