"""A job's folder: what each run notes, is told and reports, its lock, and what may be taken back."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from blockgz.archive.partition import LostRange
from blockgz.archive.positions import OffsetRange
from blockgz.errors import AccessDenied, StoreBusy, StoreUnavailable, UsageError
from blockgz.kafka import LogBounds
from blockgz.kafka.admin import TopicIdAnswers
from blockgz.kafka.groups import KafkaGroups
from blockgz.store.local import LocalStore
from blockgz.store.writer import StoredObject
from blockgz.units import wall_clock
from index_format.objects import encode
from replayer.errors import JobTakenOver, ReplayRefused, TargetChanged
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import LanePosition, Run, SourceProgress
from replayer.replay.jobs import control, undo
from replayer.replay.jobs.folder import (
    FolderLog,
    JobFolder,
    JobRequest,
    JobSkipped,
    JobUndone,
    LaneEnd,
    Segment,
    refuse_other_folder,
    runs_in,
)
from replayer.replay.replaying import skipped_before
from replayer.replay.run import ReplayWork
from replayer.replay.sinks.producer import KafkaSink
from tests.support.archives import records
from tests.support.memory_store import MemoryStore
from tests.support.mock_cluster import MockCluster

HASH = "0123456789abcdef"


def position(written: int) -> LanePosition:
    return LanePosition(HASH, HASH, written, {0: SourceProgress(0, written, 1000)})


def request(**changes: Any) -> JobRequest:
    made = JobRequest(
        job="j",
        selection=HASH,
        archive_id="a",
        folder="orders~1",
        source_topic_id=None,
        target="copy",
        target_topic_id=None,
        transactional=True,
        producers=4,
        begun_at=0,
        ranges={0: (0, 1000)},
        asked={},
    )
    return replace(made, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(LocalStore(tmp_path), "j")
    made.create(request())
    return made


def begun(folder: JobFolder, written: int, end: int) -> FolderLog:
    log = FolderLog(folder)
    log.claim()
    log.written_ends({0: position(written)})
    log.begun({0: position(written)}, {0: end})
    return log


def test_runs_above_the_committed_position_are_void_for_the_next_run(folder: JobFolder) -> None:
    first = begun(folder, 0, 7)
    first.note([Run(0, 0, 10, 0, 7, 10)])
    first.note([Run(0, 10, 20, 0, 18, 10)])
    second = FolderLog(folder)
    second.claim()
    assert second.written_ends({0: position(10)}) == {0: 17}
    second.begun({0: position(10)}, {0: 30})
    second.note([Run(0, 10, 15, 0, 30, 5)])
    third = FolderLog(folder)
    third.claim()
    assert third.written_ends({0: position(15)}) == {0: 35}
    assert [(attempt, len(list(runs_in(segment)))) for attempt, segment in folder.segments()] == [
        (1, 0),
        (1, 1),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_a_position_that_the_cluster_forgot_is_not_the_start(folder: JobFolder) -> None:
    begun(folder, 0, 7)
    untouched = FolderLog(folder)
    untouched.claim()
    assert untouched.written_ends({}) == {0: 0}, "no record was sent yet"
    begun(folder, 0, 7).note([Run(0, 0, 10, 0, 7, 10)])
    second = FolderLog(folder)
    second.claim()
    with pytest.raises(ReplayRefused, match="the position of job j in target partition 0 is gone"):
        second.written_ends({})


def test_a_run_that_continues_after_an_abort_forgets_what_was_rolled_back(folder: JobFolder) -> None:
    log = begun(folder, 0, 0)
    log.note([Run(0, 0, 10, 0, 0, 10)])
    log.claim()
    assert log.written_ends({}) == {0: 0}
    log.begun({}, {0: 11})
    log.note([Run(0, 0, 10, 0, 11, 10)])
    assert log.written_ends({0: position(10)}) == {0: 21}


def test_what_a_zombie_adds_does_not_count(folder: JobFolder) -> None:
    zombie = begun(folder, 0, 0)
    zombie.note([Run(0, 0, 10, 0, 0, 10)])
    idle = FolderLog(folder)
    idle.claim()
    second = begun(folder, 10, 10)
    zombie.note([Run(0, 10, 20, 0, 10, 10)])
    idle.begun({0: position(10)}, {0: 10})
    second.note([Run(0, 10, 12, 0, 10, 2)])
    assert zombie.is_ours() is False
    assert second.is_ours() is True
    with pytest.raises(JobTakenOver, match="another run of the same job"):
        zombie.claim()
    assert [run for _, segment in folder.segments() for run in runs_in(segment)] == [
        Run(0, 0, 10, 0, 0, 10),
        Run(0, 10, 12, 0, 10, 2),
    ]


def test_a_run_that_continues_until_it_is_fenced_is_known_of(folder: JobFolder) -> None:
    first = begun(folder, 0, 0)
    second = FolderLog(folder)
    second.claim()
    first.note([Run(0, 0, 10, 0, 0, 10)])
    assert second.written_ends({0: position(10)}) == {0: 10}


def test_a_run_that_takes_the_lanes_after_a_later_one_claimed_the_job_gives_up(folder: JobFolder) -> None:
    slow = FolderLog(folder)
    slow.claim()
    FolderLog(folder).claim()
    with pytest.raises(JobTakenOver, match="another run of the same job"):
        slow.written_ends({})


def test_a_folder_that_ends_below_the_committed_position_is_refused(folder: JobFolder) -> None:
    begun(folder, 0, 0).note([Run(0, 0, 10, 0, 0, 10)])
    for written in (9, 11):
        log = FolderLog(folder)
        log.claim()
        with pytest.raises(ReplayRefused, match="does not say where all its records are"):
            log.written_ends({0: position(written)})


def test_a_damaged_segment_is_refused(folder: JobFolder, tmp_path: Path) -> None:
    begun(folder, 0, 0).note([Run(0, 0, 10, 0, 0, 10)])
    (path,) = (tmp_path / "j" / "runs").glob("*-00000001.json")
    path.write_bytes(path.read_bytes().replace(b"10", b"11", 1))
    log = FolderLog(folder)
    log.claim()
    with pytest.raises(ReplayRefused, match="folder of job j cannot be read"):
        log.written_ends({})


def test_positions_are_replaced_by_who_read_them_last(folder: JobFolder) -> None:
    assert folder.positions.read() == {}
    folder.positions.write({0: position(1)})
    folder.positions.write({1: position(2)})
    other = JobFolder(folder._store, "j")
    assert other.positions.read() == {0: position(1), 1: position(2)}
    folder.positions.write({0: position(5)})
    with pytest.raises(JobTakenOver, match="another run of job j continues it"):
        other.positions.write({0: position(3)})


@pytest.mark.parametrize("before", [{}, {0: position(1)}], ids=["fresh", "begun"])
def test_without_transactions_the_run_that_begins_last_continues(
    folder: JobFolder, before: dict[int, LanePosition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first one writes its positions just as the second takes them over."""
    folder.positions.write(before)
    later = JobFolder(folder._store, "j")
    folder.positions.attempt, later.positions.attempt = "first", "second"
    read, meanwhile = later.positions.read, [position(2), position(3)]

    def disturbed(_lanes: Sequence[int]) -> dict[int, LanePosition]:
        found = read()
        if meanwhile:
            folder.positions.write({0: meanwhile.pop(0)})
        return found

    monkeypatch.setattr(later.positions, "read", disturbed)
    second = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, "t", later.positions)
    assert second.begin([0]) == {0: position(3)}
    with pytest.raises(JobTakenOver, match="another run of job j continues it"):
        folder.positions.write({0: position(4)})
    second.commit({0: position(5)})
    assert folder.positions.read() == {0: position(5)}
    second.stop()


def test_a_job_starts_once(folder: JobFolder) -> None:
    folder.create(request())
    with pytest.raises(JobTakenOver, match="started by another run"):
        folder.create(request(target="other"))
    folder.remove()
    assert folder.request() is None


def test_a_target_that_is_gone_is_reported_before_what_it_changes_in_the_routing() -> None:
    with pytest.raises(TargetChanged, match="copy is not the one that job j wrote to"):
        refuse_other_folder(request(), request(selection="another"), None, "here")
    with pytest.raises(ReplayRefused, match="not the replay that the job started with"):
        refuse_other_folder(request(), request(target="another"), None, "here")


def test_one_run_at_a_time_on_a_machine(tmp_path: Path) -> None:
    with control.held(tmp_path / "deep", "j"):
        with pytest.raises(JobTakenOver, match="already running"), control.held(tmp_path / "deep", "j"):
            pass
        with control.held(tmp_path / "deep", "other"):
            pass
    assert list((tmp_path / "deep").iterdir()) == []


def test_without_a_place_for_locks_transactions_continue_and_others_do_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with control.shared(file, "j"):
        pass
    with pytest.raises(ReplayRefused, match="cannot be limited to one run"), control.held(file, "j"):
        pass


LOCKS = pytest.mark.parametrize("lock", [control.held, control.shared])
Lock = Callable[[Path, str], AbstractContextManager[None]]


@LOCKS
def test_a_job_runs_as_long_as_its_lock_is_held(tmp_path: Path, lock: Lock) -> None:
    folder = tmp_path / "jobs"
    assert not control.is_running(folder, "a")
    assert not folder.exists()
    with lock(folder, "a"):
        assert control.is_running(folder, "a")
        assert control.is_running(folder, "a"), "asking changes nothing"
        assert not control.is_running(folder, "b")
    assert not control.is_running(folder, "a")


def test_a_lock_that_a_killed_run_left_behind_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").touch()
    assert not control.is_running(tmp_path, "a")
    with control.held(tmp_path, "a"):
        assert control.is_running(tmp_path, "a")


@contextmanager
def asking(folder: Path, answers: list[bool]) -> Iterator[None]:
    """Threads that ask without a pause."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(control.is_running(folder, "a"))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@LOCKS
def test_asking_never_keeps_a_run_from_starting(tmp_path: Path, lock: Lock) -> None:
    (tmp_path / ".a.lock").touch()
    answers: list[bool] = []
    with asking(tmp_path, answers):
        for _ in range(200):
            with lock(tmp_path, "a"):
                pass
    assert answers


def test_who_asks_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").touch()
    answers: list[bool] = []
    with asking(tmp_path, answers):
        assert not any(control.is_running(tmp_path, "a") for _ in range(500))
    assert not any(answers)


def test_a_second_run_is_refused_still(tmp_path: Path) -> None:
    with control.held(tmp_path, "a"), pytest.raises(JobTakenOver, match="already running"), control.held(tmp_path, "a"):
        raise AssertionError("two runs")


HERE = "here:1"


class Meanwhile(MemoryStore):
    """Something happens right after, or right before, the job's report is read."""

    after: Callable[[], None] | None = None
    before: Callable[[], None] | None = None

    def get(self, key: str) -> StoredObject | None:
        """See Store."""
        if key.endswith("progress.json") and self.before:
            self.before()
        found = super().get(key)
        if key.endswith("progress.json") and self.after:
            self.after()
        return found


def report(store: MemoryStore, state: control.JobState) -> None:
    control.ProgressFile(store, "job", "x").write(progress(state=state, updated_at=wall_clock(), attempt_host=HERE))


def seen(store: MemoryStore, locks: Path) -> control.JobState | None:
    return control.job_state(control.job_signs(store, "job", locks), HERE, wall_clock())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_ends_while_somebody_looks_was_not_interrupted(when: str, tmp_path: Path) -> None:
    store, run = Meanwhile(), ExitStack()
    report(store, "running")
    run.enter_context(control.held(tmp_path, "job"))

    def ends() -> None:
        store.before = store.after = None
        report(store, "complete")
        run.close()

    setattr(store, when, ends)
    assert seen(store, tmp_path) in ("running", "complete")
    assert seen(store, tmp_path) == "complete"


def test_a_run_that_begins_while_somebody_looks_was_not_interrupted(tmp_path: Path) -> None:
    store, run = Meanwhile(), ExitStack()
    report(store, "ended")

    def begins() -> None:
        store.before = None
        run.enter_context(control.held(tmp_path, "job"))
        report(store, "running")

    store.before = begins
    assert seen(store, tmp_path) == "running"
    run.close()
    assert seen(store, tmp_path) == "interrupted"


def progress(run: str = "x", **changes: Any) -> control.JobProgress:
    fields: dict[str, Any] = {
        "run": run,
        "state": "running",
        "records": 5,
        "total": 10,
        "bytes": 500,
        "seconds": 1.5,
        "rate": "5000/s",
        "records_before": 0,
        "updated_at": 1,
        "attempt_host": "here:1",
    }
    return control.JobProgress(**{**fields, **changes})


class Interfering(MemoryStore):
    """Somebody else writes before each of the first swaps of a key; `lost` answers do not arrive."""

    def __init__(self, times: int, *bodies: bytes, lost: int = 0) -> None:
        super().__init__()
        self.times, self.bodies_of_others, self.lost = times, bodies, lost

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        """See Store."""
        if self.times:
            self.times -= 1
            now = self.get(key)
            super().compare_and_swap(key, self.bodies_of_others[self.times], now.etag if now else None)
        tag = super().compare_and_swap(key, body, expected)
        if tag is not None and self.lost:
            self.lost -= 1
            raise StoreUnavailable("no answer", why="it was lost")
        return tag


def test_nothing_is_there_at_first() -> None:
    assert control.read_control(MemoryStore(), "j") is None
    assert control.read_progress(MemoryStore(), "j") is None


def test_what_is_not_changed_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    control.reset_control(store, "j", "5000/s")
    assert control.change_control(store, "j", state="pause") == control.JobControl(
        state="pause", rate="5000/s", changes=1
    )
    assert control.change_control(store, "j", rate=None) == control.JobControl(state="pause", rate=None, changes=2)
    again = control.change_control(store, "j", state="pause")
    assert again == control.read_control(store, "j") == control.JobControl(state="pause", rate=None, changes=3)
    assert (tmp_path / "j" / "control.json").stat().st_mode & 0o777 == 0o600 & tmp_path.stat().st_mode


def test_a_run_forgets_what_an_earlier_one_was_told() -> None:
    store = MemoryStore()
    control.change_control(store, "j", state="cancel")
    assert (
        control.reset_control(store, "j", "2/s") == control.read_control(store, "j") == control.JobControl(rate="2/s")
    )


@pytest.mark.parametrize("body", [None, b"{", b'{"format":"other","version":1}'])
def test_what_is_missing_or_damaged_is_written_again_at_the_rate_of_the_run(body: bytes | None) -> None:
    store = MemoryStore()
    control.ProgressFile(store, "j", "x").write(progress())
    if body is not None:
        store.compare_and_swap("j/control.json", body, None)
        with pytest.raises(ReplayRefused, match=r"control\.json"):
            control.read_control(store, "j")
    assert control.change_control(store, "j", state="pause") == control.JobControl(
        state="pause", rate="5000/s", changes=1
    )


def test_a_rate_that_is_none_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError, match="is not a rate"):
        control.change_control(store, "j", rate="fast")
    assert store.objects == {}


def test_changes_of_others_are_kept() -> None:
    store = Interfering(1, encode(control.JobControl(rate="7/s", changes=4)))
    assert control.change_control(store, "j", state="pause") == control.JobControl(state="pause", rate="7/s", changes=5)
    others = [encode(control.JobControl(changes=number)) for number in range(100)]
    with pytest.raises(StoreBusy, match=r"j/control\.json cannot be changed"):
        control.change_control(Interfering(100, *others), "j", state="pause")


def test_progress_comes_back_as_it_was_written() -> None:
    store = MemoryStore()
    failure = control.JobFailure("e", "w", "d", 2)
    told = progress(state="failed", failure=failure, lanes=(control.LaneProgress(0, 3, 4, 5),), total=None)
    assert control.ProgressFile(store, "j", "x").write(told)
    assert control.read_progress(store, "j") == told
    assert told.is_over and not progress().is_over


def test_the_newer_run_reports_and_the_older_one_no_more() -> None:
    store = MemoryStore()
    older, newer = control.ProgressFile(store, "j", "old"), control.ProgressFile(store, "j", "new")
    assert older.write(progress("old"))
    assert newer.write(progress("new"))
    assert not older.write(progress("old", records=6))
    assert newer.write(progress("new", records=7))
    assert control.read_progress(store, "j") == progress("new", records=7)


def test_a_newer_run_that_failed_is_written_over_by_one_that_runs() -> None:
    store = MemoryStore()
    older, newer = control.ProgressFile(store, "j", "old"), control.ProgressFile(store, "j", "new")
    older.write(progress("old"))
    newer.write(progress("new", state="failed"))
    assert not older.write(progress("old", state="failed"))
    assert older.write(progress("old"))


@pytest.mark.parametrize("body", [None, b"{"])
def test_what_was_removed_or_damaged_is_written_again(body: bytes | None) -> None:
    store = MemoryStore()
    file = control.ProgressFile(store, "j", "x")
    file.write(progress())
    tag = store.get("j/progress.json")
    store.delete("j/progress.json")
    if body is not None:
        store.compare_and_swap("j/progress.json", body, None)
    assert tag is not None and file.write(progress(records=9))
    assert control.read_progress(store, "j") == progress(records=9)


def test_a_lost_answer_is_no_newer_run() -> None:
    store = Interfering(0, lost=1)
    file = control.ProgressFile(store, "j", "x")
    with pytest.raises(StoreUnavailable):
        file.write(progress())
    assert file.write(progress(records=6))
    store.lost = 1
    with pytest.raises(StoreUnavailable):
        file.write(progress(records=7))
    assert file.write(progress(records=8))
    assert control.read_progress(store, "j") == progress(records=8)


def test_progress_of_lanes() -> None:
    sources = {0: SourceProgress(10, 15, 30), 2: SourceProgress(0, 0, 5)}
    assert control.lanes_progress({3: LanePosition(HASH, HASH, 4, sources)}) == (control.LaneProgress(3, 4, 5, 25),)


@pytest.mark.parametrize("kind", [control.JobControl, control.JobProgress, control.JobFailure, control.LaneProgress])
def test_every_field_is_documented(kind: type[msgspec.Struct]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "jobs.md").read_text()
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    assert set(kind.__struct_fields__) - {"format", "version"} - words == set()
    formats = {getattr(kind, "__struct_defaults__", ("",))[0] for kind in (control.JobControl, control.JobProgress)}
    assert all(f"`{name}`" in page for name in formats)


UNDONE = JobUndone(target="copy", target_topic_id="id", records=7, host="here:1", undone_at=5)


@pytest.fixture
def folder_undo(tmp_path: Path) -> JobFolder:
    made = JobFolder(LocalStore(tmp_path / "jobs"), "j")
    made.create(request(created=True, target_topic_id="id"))
    return made


def test_a_request_says_whether_the_job_created_its_target(folder_undo: JobFolder, tmp_path: Path) -> None:
    kept = folder_undo.request()
    assert kept is not None
    assert (kept.created, undo.refuse_not_created(kept)) == (True, "id")
    assert b'"created":true' in (tmp_path / "jobs" / "j" / "request.json").read_bytes()
    old = JobFolder(LocalStore(tmp_path / "jobs"), "old")
    old.create(request(job="old"))
    assert b"created" not in (tmp_path / "jobs" / "old" / "request.json").read_bytes(), "as before"
    kept = old.request()
    assert kept is not None
    assert kept.created is msgspec.UNSET


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"created": False, "target_topic_id": "id"}, "existed before the job"),
        ({"target_topic_id": "id"}, "an earlier version started it"),
        ({"created": True}, "did not tell the id"),
    ],
    ids=["existed", "unknown", "no-id"],
)
def test_a_topic_that_the_job_is_not_known_to_have_created_stays(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ReplayRefused, match="job j cannot be undone") as caught:
        undo.refuse_not_created(request(**changes))
    assert why in caught.value.why
    assert "delete copy yourself" in caught.value.remedy


def test_a_job_that_runs_is_not_taken_back() -> None:
    here, elsewhere = control.JobSigns(None, None, is_running=True), progress(state="paused", updated_at=1000)
    for signs in (here, control.JobSigns(elsewhere, None, is_running=False)):
        with pytest.raises(JobTakenOver, match="job j is running"):
            undo.refuse_running("j", signs, 2000)
    undo.refuse_running("j", control.JobSigns(elsewhere, None, is_running=False), 1_000_000)
    undo.refuse_running("j", control.JobSigns(progress(state="complete"), None, is_running=False), 2000)


def test_all_that_was_noted_is_the_jobs_own_whether_it_counts_or_not() -> None:
    segments = [
        Segment(attempt="a", lanes={0: LaneEnd(0, 0)}),
        Segment(attempt="a", runs=((0, 0, 10, 0, 0, 10), (1, 0, 5, 0, 10, 5), (0, 10, 20, 1, 3, 10))),
        Segment(attempt="a", lanes={0: LaneEnd(10, 16)}),
        Segment(attempt="b", runs=((1, 0, 5, 0, 16, 5),)),
    ]
    assert undo.own_ranges(segments) == {0: [OffsetRange(0, 15), OffsetRange(16, 21)], 1: [OffsetRange(3, 13)]}


@pytest.mark.parametrize(
    ("bounds", "ranges", "expected"),
    [
        ((0, 0), [], []),
        ((0, 5), [], [(0, 5)]),
        ((0, 11), [(0, 10)], [(10, 11)]),
        ((0, 22), [(0, 10), (11, 21)], [(10, 11), (21, 22)]),
        ((3, 13), [(3, 13)], []),
        ((0, 13), [(3, 13)], [(0, 3)]),
        ((12, 22), [(0, 10), (11, 21)], [(21, 22)]),
        ((30, 30), [(0, 10)], []),
        ((0, 5), [(0, 3), (8, 9)], [(3, 5)]),
    ],
)
def test_what_is_not_the_jobs_own(
    bounds: tuple[int, int], ranges: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert list(undo.outside(LogBounds(*bounds), [OffsetRange(*each) for each in ranges])) == expected


def test_what_earlier_runs_skipped_counts_unless_it_is_read_again(folder_undo: JobFolder) -> None:
    """A lane that is behind the damage lacks it for good, even if another one is not."""
    for start in (900, 5, 700):
        folder_undo.put(JobSkipped(partition=0, start=start, end=start + 5, reason="torn"), f"00000-{start:020d}")
    folder_undo.put(JobSkipped(partition=7, start=0, end=5, reason="not of this job"), "00007")
    recorded = {0: position(3), 1: position(710)}
    work = SimpleNamespace(selections=[SimpleNamespace(partition=SimpleNamespace(partition=0))], recorded=recorded)
    found = skipped_before(folder_undo.all(JobSkipped), cast("ReplayWork", work))
    assert [lost for _, lost in found] == [LostRange(5, 10, "torn"), LostRange(700, 705, "torn")]


def test_a_job_that_was_taken_back_is_undone_for_ever(folder_undo: JobFolder, tmp_path: Path) -> None:
    folder_undo.refuse_undone()
    folder_undo.put(UNDONE)
    folder_undo.put(msgspec.structs.replace(UNDONE, records=1))
    assert folder_undo.get(JobUndone) == UNDONE
    signs = control.job_signs(LocalStore(tmp_path / "jobs"), "j", tmp_path / "locks")
    assert control.job_state(signs, "here:1", 10) == "undone"
    kept = folder_undo.request()
    assert kept is not None
    with pytest.raises(ReplayRefused, match="job j was undone"):
        undo.plan_undo(folder_undo, kept, {})
    folder_undo.remove()
    assert folder_undo.get(JobUndone) is None


def test_the_plan_in_json() -> None:
    plan = undo.UndoPlan(request(created=True), "id", 7, {1: LogBounds(0, 8), 0: LogBounds(2, 3)}, ("beware",))
    assert undo.undo_document(plan) == {
        "job": "j",
        "topic": "copy",
        "topic_id": "id",
        "records": 7,
        "partitions": [{"partition": 0, "from": 2, "to": 3}, {"partition": 1, "from": 0, "to": 8}],
        "warnings": ("beware",),
    }


LANES = 4


class World:
    """A job that wrote ten records to partition 0 of the topic that it created."""

    def __init__(self, cluster: MockCluster, topic: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic, self.ids, self.deleted = topic, {topic: "id"}, list[str]()
        self.groups: tuple[tuple[str, ...], tuple[str, ...]] | AccessDenied = ((), ())
        self._cluster = cluster
        self.folder = JobFolder(LocalStore(root), "j")
        self.kept = request(target=topic, created=True, target_topic_id="id", transactional=False)
        self.folder.create(self.kept)
        self.write(0, 10)
        self.folder.add_segment(1, 0, Segment(attempt="a", lanes=dict.fromkeys(range(LANES), LaneEnd(0, 0))))
        self.folder.add_segment(1, 1, Segment(attempt="a", runs=((0, 0, 10, 0, 0, 10),)))
        self.folder.positions.write({0: position(10)})
        monkeypatch.setattr(KafkaAdmin, "topic", lambda _, name: TopicFacts(name, LANES, self.ids.get(name), None))
        monkeypatch.setattr(KafkaAdmin, "topic_ids", lambda *_: TopicIdAnswers(self.ids, frozenset()))
        monkeypatch.setattr(KafkaGroups, "in_topic", lambda *_: self._groups())
        monkeypatch.setattr(TopicChanges, "delete", lambda _, name, topic_id: self.deleted.append(f"{name} {topic_id}"))

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self._cluster.bootstrap_servers}

    def write(self, lane: int, count: int) -> None:
        self._cluster.produce(self.topic, lane, records(range(count)))

    def planned(self) -> undo.UndoPlan:
        return undo.plan_undo(self.folder, self.kept, self.properties)

    def _groups(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if isinstance(self.groups, AccessDenied):
            raise self.groups
        return self.groups


@pytest.fixture
def world(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> World:
    return World(cluster, request.node.name, tmp_path, monkeypatch)


def test_a_topic_with_nothing_but_the_jobs_records_is_deleted(world: World) -> None:
    plan = world.planned()
    assert (plan.records, plan.bounds[0], plan.bounds[1]) == (10, LogBounds(0, 10), LogBounds(0, 0))
    assert world.deleted == [], "a plan changes nothing"
    undo.carry_out(plan, world.folder, world.properties, 5)
    assert world.deleted == [f"{world.topic} id"]
    undone = world.folder.get(JobUndone)
    assert undone is not None
    assert (undone.target, undone.target_topic_id, undone.records, undone.undone_at) == (world.topic, "id", 10, 5)


@pytest.mark.parametrize("lane", [0, 3])
def test_a_record_of_others_refuses(world: World, lane: int) -> None:
    world.write(lane, 2)
    with pytest.raises(ReplayRefused, match="not in the job's run map") as caught:
        world.planned()
    assert f"{world.topic}:{lane}:{10 if lane == 0 else 0}: others wrote it" in caught.value.why


def test_a_topic_that_lacks_records_of_the_job_refuses(world: World) -> None:
    world.folder.add_segment(1, 2, Segment(attempt="a", runs=((0, 10, 20, 0, 10, 10),)))
    with pytest.raises(TargetChanged, match="lacks records"):
        world.planned()


def test_what_happens_between_plan_and_deletion_refuses(world: World) -> None:
    plan = world.planned()
    world.write(2, 1)
    with pytest.raises(ReplayRefused, match="changed after the plan was made"):
        undo.carry_out(plan, world.folder, world.properties, 5)
    for other, error in (("another", "is not the one"), (None, "cannot tell")):
        world.ids = {world.topic: other} if other else {}
        with pytest.raises(TargetChanged, match=error):
            undo.carry_out(plan, world.folder, world.properties, 5)
    assert (world.deleted, world.folder.get(JobUndone)) == ([], None)


def test_groups_with_offsets_in_the_topic_are_named(world: World) -> None:
    assert world.planned().warnings == ()
    world.groups = (("blockgz-j", *(f"g{n}" for n in range(12))), ("slow",))
    warning, unknown = world.planned().warnings
    assert unknown.endswith("is not known, they gave no answer: slow")
    assert warning.endswith("g7, g8, g9 and 2 more"), "the job's own group is none of them"
    world.groups = AccessDenied("denied", why="no ACL")
    assert world.planned().warnings == ("whether consumer groups read the topic is not known: no ACL",)
