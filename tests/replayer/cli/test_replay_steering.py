"""`replayer replay --control`, steered and watched through its job's folder by others."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blockgz.errors import StoreUnavailable
from blockgz.store.local import LocalStore
from replayer.cli import main
from replayer.replay.jobs import control
from replayer.replay.replaying import planned_replay
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import exited, succeeded
from tests.support.mock_cluster import MockCluster

SECONDS = 30.0
RECORDS = 180


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    cluster = MockCluster()
    cluster.create_topic("copy")
    yield cluster


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS", "REPORT_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(control, name, 0.02)


class Steered:
    """A replay of a job in this process, and what others see and do meanwhile."""

    def __init__(self, root: Path, cluster: MockCluster, place: Path) -> None:
        self._root, self._cluster, self.place = root, cluster, place
        self.folder = place / "j"

    def replay(self, *options: str, meanwhile: Callable[[], None] = lambda: None) -> Result:
        """Runs it, and in a thread what others do."""
        words = ["replay", "orders", "--to-topic", "copy", "--job", "j", "--append", "--yes", "--control", *options]
        words += ["-a", str(self._root), "-b", self._cluster.bootstrap_servers]
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(meanwhile)
            others.add_done_callback(lambda done: done.exception() and os.kill(os.getpid(), signal.SIGTERM))
            result = CliRunner().invoke(main, words, prog_name="replayer")
            others.result()
        return result

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.place)

    def tell(self, **changes: Any) -> None:
        control.change_control(self.store, "j", **changes)

    def told(self) -> control.JobProgress | None:
        return control.read_progress(self.store, "j")

    def until(self, condition: Callable[[control.JobProgress], bool]) -> control.JobProgress:
        """Waits for progress of this kind."""
        deadline = time.monotonic() + SECONDS
        while (found := self.told()) is None or not condition(found):
            assert time.monotonic() < deadline, found
            os.sched_yield()
        return found


@pytest.fixture
def job(tmp_path: Path, cluster: MockCluster) -> Steered:
    archive = ArchiveWriter(tmp_path / "archive")
    for partition in range(3):
        archive.partition("orders", partition).commit(records(range(60)))
    return Steered(tmp_path / "archive", cluster, tmp_path / "state" / "blockgz" / "jobs")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["idempotent", "transactional"])
def test_paused_resumed_and_let_go_as_fast_as_it_can(job: Steered, mode: tuple[str, ...]) -> None:
    seen: list[control.JobProgress] = []

    def steer() -> None:
        seen.append(job.until(lambda told: told.state == "running" and told.records > 0))
        assert control.is_running(job.place, "j")
        job.tell(state="pause")
        paused = job.until(lambda told: told.state == "paused" and sum(lane.written for lane in told.lanes) > 0)
        seen.append(job.until(lambda told: told.updated_at > paused.updated_at + 100))
        job.tell(rate=None)
        seen.append(job.until(lambda told: told.rate is None))
        job.tell(state="run")

    result = succeeded(job.replay("--rate", "20/s", "--json", *mode, meanwhile=steer))
    running, paused, faster = seen
    assert (running.rate, running.total, running.records_before, running.failure) == ("20/s", RECORDS, 0, None)
    assert sum(lane.written for lane in paused.lanes) == paused.records < RECORDS
    assert (faster.state, faster.records) == ("paused", paused.records)
    last = job.told()
    assert last is not None
    assert (last.state, last.records, last.rate) == ("complete", RECORDS, None)
    assert [(lane.lane, lane.written, lane.done, lane.all) for lane in last.lanes] == [
        (n, 60, 60, 60) for n in range(3)
    ]
    assert last.attempt_host.endswith(f":{os.getpid()}")
    assert not control.is_running(job.place, "j")
    assert '"status":"paused"' in result.stderr


@pytest.mark.slow
def test_another_rate_is_kept(job: Steered) -> None:
    def steer() -> None:
        job.until(lambda told: told.state == "running")
        job.tell(rate="200/s")
        job.until(lambda told: told.rate == "200/s")

    began = time.monotonic()
    result = succeeded(job.replay("--rate", "1/s", "--json", meanwhile=steer))
    assert 0.5 < json.loads(result.stdout)["seconds"] < time.monotonic() - began < 60


@pytest.mark.slow
def test_cancelled_it_commits_and_is_resumed(job: Steered) -> None:
    def cancel() -> None:
        job.until(lambda told: told.records >= 5)
        job.tell(state="cancel")
        job.tell(state="cancel")

    result = exited(job.replay("--rate", "20/s", "--json", meanwhile=cancel), 143)
    first = json.loads(result.stdout)
    ended = job.told()
    assert ended is not None and not first["complete"]
    assert ended.state == "ended"
    assert sum(lane.written for lane in ended.lanes) == first["records"] > 0
    result = succeeded(job.replay("--resume", "--json"))
    assert json.loads(result.stdout)["records"] == RECORDS - first["records"]
    last = job.told()
    assert last is not None
    assert (last.state, last.records_before, last.total) == ("complete", first["records"], RECORDS - first["records"])
    assert control.read_control(job.store, "j") == control.JobControl(), "what the first run was told is forgotten"


@asynccontextmanager
async def never_planned(*_: object) -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


def test_cancelled_while_it_plans_it_ends_at_once(job: Steered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.cli.replay.planned_replay", never_planned)

    def cancel() -> None:
        job.until(lambda told: told.state == "planning")
        assert control.is_running(job.place, "j")
        job.tell(state="cancel")

    result = job.replay(meanwhile=cancel)
    assert (result.exit_code, result.stderr) == (143, "cancelled before the first record\n")
    last = job.told()
    assert last is not None and (last.state, last.total, last.lanes) == ("ended", None, ())
    assert not control.is_running(job.place, "j")


@pytest.mark.slow
def test_paused_while_it_plans_it_begins_paused(job: Steered, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = threading.Event()

    @asynccontextmanager
    async def slowly_planned(*args: Any) -> AsyncIterator[Any]:
        await asyncio.to_thread(paused.wait, SECONDS)
        async with planned_replay(*args) as planned:
            yield planned

    monkeypatch.setattr("replayer.cli.replay.planned_replay", slowly_planned)

    def steer() -> None:
        job.until(lambda told: told.state == "planning")
        job.tell(state="pause", rate="1000/s")
        job.until(lambda told: told.rate == "1000/s")
        paused.set()
        assert job.until(lambda told: told.state == "paused").records == 0
        job.tell(state="run")

    succeeded(job.replay(meanwhile=steer))


@pytest.mark.slow
def test_a_pause_by_signal_ends_by_command(job: Steered) -> None:
    """Though the folder said `run` all the time, and another rate does not end it."""

    def steer() -> None:
        job.until(lambda told: told.state == "running")
        os.kill(os.getpid(), signal.SIGUSR1)
        job.until(lambda told: told.state == "paused")
        job.tell(rate="1000/s")
        assert job.until(lambda told: told.rate == "1000/s").state == "paused"
        job.tell(state="run")

    succeeded(job.replay("--rate", "20/s", meanwhile=steer))


def test_why_it_failed_is_reported(job: Steered, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job.replay("--partitions", "by-key:9").exit_code == 2
    last = job.told()
    assert last is not None and last.failure is not None
    assert (last.state, last.failure.code) == ("failed", 2)
    assert "9" in last.failure.error + last.failure.why and last.failure.do

    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("replayer.cli.replay.planned_replay", broken)
    assert job.replay().exit_code == 1
    last = job.told()
    assert last is not None and last.failure is not None
    assert (last.failure.error, last.failure.why, last.failure.code) == ("KeyError: 'oops'", "this is a bug", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"format":"blockgz-replay-control","ver', "control.json is damaged"),
        (b'{"format":"other","version":1}', "its format says 'other'"),
        (b'{"format":"blockgz-replay-control","version":1,"state":"run","rate":"fast"}', "'fast' is not a rate"),
    ],
)
def test_commands_that_make_no_sense_are_named_once_and_change_nothing(job: Steered, body: bytes, told: str) -> None:
    def scribble() -> None:
        before = job.until(lambda told: told.state == "running")
        scratch = job.folder / ".scratch"
        scratch.write_bytes(body)
        scratch.rename(job.folder / "control.json")
        assert job.until(lambda told: told.updated_at > before.updated_at + 300).rate == "20/s"
        job.tell(rate=None)

    result = succeeded(job.replay("--rate", "20/s", meanwhile=scribble))
    assert result.stderr.count(told) == 1


class Broken(LocalStore):
    """Fails, or hangs until it is released."""

    def __init__(self, root: Path, hangs: threading.Event | None) -> None:
        super().__init__(root)
        self._hangs = hangs

    def compare_and_swap(self, *_: Any) -> Any:
        if self._hangs is not None:
            self._hangs.wait()
        raise StoreUnavailable("the store does not answer", why="it was told not to")


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_a_folder_that_does_not_answer_stops_nothing(
    job: Steered, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    # The end of the run waits for two tries, and so much longer that only a store that hangs is given up.
    monkeypatch.setattr(control, "LAST_WORDS_SECONDS", 0.1 if hangs else 0.5)
    monkeypatch.setattr(control, "RETRY_SECONDS", 0.02 if hangs else 0.5)
    release = threading.Event()
    stores = [Broken(job.place, release if hangs else None), LocalStore(job.place)]
    monkeypatch.setattr("replayer.cli.replay.open_jobs", lambda *_: stores.pop(0))
    result = job.replay("--json")
    release.set()
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["complete"]
    assert job.told() is None
    assert result.stderr.count("the replay continues") == (0 if hangs else 2)
    assert result.stderr.count("the job's folder does not answer") == hangs


def test_a_second_run_changes_nothing_for_the_first(job: Steered) -> None:
    with control.held(job.place, "j"):
        job.tell(state="pause")
        result = job.replay("--resume")
    assert result.exit_code == 11
    assert job.told() is None
    assert control.read_control(job.store, "j") == control.JobControl(state="pause", changes=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--job", "a/b"), "not a job name"),
        (("--dry-run",), "remove --dry-run"),
        (("--undo-retention",), "remove --dry-run and --undo-retention"),
    ],
)
def test_mistakes(job: Steered, options: tuple[str, ...], told: str) -> None:
    result = exited(job.replay(*options), 2)
    assert told in result.stderr


def test_the_job_is_to_be_named(tmp_path: Path) -> None:
    words = ["replay", "orders", "--to-topic", "copy", "--control", "-a", str(tmp_path), "-b", "127.0.0.1:1"]
    result = exited(CliRunner().invoke(main, words, prog_name="replayer"), 2)
    assert "--control requires --job NAME" in result.stderr
