"""A job's folder: what each run notes, and what of it counts for the next one."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blockgz.store.local import LocalStore
from replayer.errors import JobTakenOver, ReplayRefused, TargetChanged
from replayer.replay.job import LanePosition, SourceProgress
from replayer.replay.jobs.folder import FolderLog, JobFolder, JobRequest, refuse_other_folder, runs_in
from replayer.replay.jobs.state import held, shared
from replayer.replay.run_map import Run
from replayer.replay.sinks.idempotent import KafkaSink

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

    def disturbed() -> dict[int, LanePosition]:
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
    with held(tmp_path / "deep", "j"):
        with pytest.raises(JobTakenOver, match="already running"), held(tmp_path / "deep", "j"):
            pass
        with held(tmp_path / "deep", "other"):
            pass
    assert list((tmp_path / "deep").iterdir()) == []


def test_without_a_place_for_locks_transactions_continue_and_others_do_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with shared(file, "j"):
        pass
    with pytest.raises(ReplayRefused, match="cannot be limited to one run"), held(file, "j"):
        pass
