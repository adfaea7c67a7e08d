"""What may be taken back of a job, by what its folder says."""

from pathlib import Path

import msgspec
import pytest

from blockgz.archive.positions import OffsetRange
from blockgz.kafka import LogBounds
from blockgz.store.local import LocalStore
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.jobs.folder import JobFolder, JobUndone, LaneBegin, Segment
from replayer.replay.jobs.state import JobSigns, job_signs, job_state
from replayer.replay.jobs.undo import (
    UndoPlan,
    outside,
    own_ranges,
    plan_undo,
    refuse_not_created,
    refuse_running,
    undo_document,
)
from tests.replayer.replay.jobs.test_control import progress
from tests.replayer.replay.jobs.test_log import request

UNDONE = JobUndone(target="copy", target_topic_id="id", records=7, host="here:1", undone_at=5)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(LocalStore(tmp_path / "jobs"), "j")
    made.create(request(created=True, target_topic_id="id"))
    return made


def test_a_request_says_whether_the_job_created_its_target(folder: JobFolder, tmp_path: Path) -> None:
    kept = folder.request()
    assert kept is not None
    assert (kept.created, refuse_not_created(kept)) == (True, "id")
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
        refuse_not_created(request(**changes))
    assert why in caught.value.why
    assert "delete copy yourself" in caught.value.remedy


def test_a_job_that_runs_is_not_taken_back() -> None:
    here, elsewhere = JobSigns(None, None, is_running=True), progress(state="paused", updated_at=1000)
    for signs in (here, JobSigns(elsewhere, None, is_running=False)):
        with pytest.raises(JobTakenOver, match="job j is running"):
            refuse_running("j", signs, 2000)
    refuse_running("j", JobSigns(elsewhere, None, is_running=False), 1_000_000)
    refuse_running("j", JobSigns(progress(state="complete"), None, is_running=False), 2000)


def test_all_that_was_noted_is_the_jobs_own_whether_it_counts_or_not() -> None:
    segments = [
        Segment(attempt="a", lanes={0: LaneBegin(0, 0)}),
        Segment(attempt="a", runs=((0, 0, 10, 0, 0, 10), (1, 0, 5, 0, 10, 5), (0, 10, 20, 1, 3, 10))),
        Segment(attempt="a", lanes={0: LaneBegin(10, 16)}),
        Segment(attempt="b", runs=((1, 0, 5, 0, 16, 5),)),
    ]
    assert own_ranges(segments) == {0: [OffsetRange(0, 15), OffsetRange(16, 21)], 1: [OffsetRange(3, 13)]}


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
    assert list(outside(LogBounds(*bounds), [OffsetRange(*each) for each in ranges])) == expected


def test_a_job_that_was_taken_back_is_undone_for_ever(folder: JobFolder, tmp_path: Path) -> None:
    folder.refuse_undone()
    folder.put(UNDONE)
    folder.put(msgspec.structs.replace(UNDONE, records=1))
    assert folder.get(JobUndone) == UNDONE
    signs = job_signs(LocalStore(tmp_path / "jobs"), "j", tmp_path / "locks")
    assert job_state(signs, "here:1", 10) == "undone"
    kept = folder.request()
    assert kept is not None
    with pytest.raises(ReplayRefused, match="job j was undone"):
        plan_undo(folder, kept, {})
    folder.remove()
    assert folder.get(JobUndone) is None


def test_the_plan_in_json() -> None:
    plan = UndoPlan(request(created=True), "id", 7, {1: LogBounds(0, 8), 0: LogBounds(2, 3)}, ("beware",))
    assert undo_document(plan) == {
        "job": "j",
        "topic": "copy",
        "topic_id": "id",
        "records": 7,
        "partitions": [{"partition": 0, "from": 2, "to": 3}, {"partition": 1, "from": 0, "to": 8}],
        "warnings": ("beware",),
    }
