"""What a run is told and what it reports, in its job's folder."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blockgz.errors import StoreBusy, StoreUnavailable, UsageError
from blockgz.store.local import LocalStore
from index_format.objects import encode
from replayer.errors import ReplayRefused
from replayer.replay.job import LanePosition, SourceProgress
from replayer.replay.jobs.control import (
    JobControl,
    JobFailure,
    JobProgress,
    LaneProgress,
    ProgressFile,
    change_control,
    lanes_progress,
    read_control,
    read_progress,
    reset_control,
)
from tests.support.memory_store import MemoryStore

HASH = "0123456789abcdef"


def progress(run: str = "x", **changes: Any) -> JobProgress:
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
    return JobProgress(**{**fields, **changes})


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
    assert read_control(MemoryStore(), "j") is None
    assert read_progress(MemoryStore(), "j") is None


def test_what_is_not_changed_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    reset_control(store, "j", "5000/s")
    assert change_control(store, "j", state="pause") == JobControl(state="pause", rate="5000/s", changes=1)
    assert change_control(store, "j", rate=None) == JobControl(state="pause", rate=None, changes=2)
    again = change_control(store, "j", state="pause")
    assert again == read_control(store, "j") == JobControl(state="pause", rate=None, changes=3)
    assert (tmp_path / "j" / "control.json").stat().st_mode & 0o777 == 0o600 & tmp_path.stat().st_mode


def test_a_run_forgets_what_an_earlier_one_was_told() -> None:
    store = MemoryStore()
    change_control(store, "j", state="cancel")
    assert reset_control(store, "j", "2/s") == read_control(store, "j") == JobControl(rate="2/s")


@pytest.mark.parametrize("body", [None, b"{", b'{"format":"other","version":1}'])
def test_what_is_missing_or_damaged_is_written_again_at_the_rate_of_the_run(body: bytes | None) -> None:
    store = MemoryStore()
    ProgressFile(store, "j", "x").write(progress())
    if body is not None:
        store.compare_and_swap("j/control.json", body, None)
        with pytest.raises(ReplayRefused, match=r"control\.json"):
            read_control(store, "j")
    assert change_control(store, "j", state="pause") == JobControl(state="pause", rate="5000/s", changes=1)


def test_a_rate_that_is_none_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError, match="is not a rate"):
        change_control(store, "j", rate="fast")
    assert store.objects == {}


def test_changes_of_others_are_kept() -> None:
    store = Interfering(1, encode(JobControl(rate="7/s", changes=4)))
    assert change_control(store, "j", state="pause") == JobControl(state="pause", rate="7/s", changes=5)
    others = [encode(JobControl(changes=number)) for number in range(100)]
    with pytest.raises(StoreBusy, match=r"j/control\.json cannot be changed"):
        change_control(Interfering(100, *others), "j", state="pause")


def test_progress_comes_back_as_it_was_written() -> None:
    store = MemoryStore()
    failure = JobFailure("e", "w", "d", 2)
    told = progress(state="failed", failure=failure, lanes=(LaneProgress(0, 3, 4, 5),), total=None)
    assert ProgressFile(store, "j", "x").write(told)
    assert read_progress(store, "j") == told
    assert told.is_over and not progress().is_over


def test_the_newer_run_reports_and_the_older_one_no_more() -> None:
    store = MemoryStore()
    older, newer = ProgressFile(store, "j", "old"), ProgressFile(store, "j", "new")
    assert older.write(progress("old"))
    assert newer.write(progress("new"))
    assert not older.write(progress("old", records=6))
    assert newer.write(progress("new", records=7))
    assert read_progress(store, "j") == progress("new", records=7)


def test_a_newer_run_that_failed_is_written_over_by_one_that_runs() -> None:
    store = MemoryStore()
    older, newer = ProgressFile(store, "j", "old"), ProgressFile(store, "j", "new")
    older.write(progress("old"))
    newer.write(progress("new", state="failed"))
    assert not older.write(progress("old", state="failed"))
    assert older.write(progress("old"))


@pytest.mark.parametrize("body", [None, b"{"])
def test_what_was_removed_or_damaged_is_written_again(body: bytes | None) -> None:
    store = MemoryStore()
    file = ProgressFile(store, "j", "x")
    file.write(progress())
    tag = store.get("j/progress.json")
    store.delete("j/progress.json")
    if body is not None:
        store.compare_and_swap("j/progress.json", body, None)
    assert tag is not None and file.write(progress(records=9))
    assert read_progress(store, "j") == progress(records=9)


def test_a_lost_answer_is_no_newer_run() -> None:
    store = Interfering(0, lost=1)
    file = ProgressFile(store, "j", "x")
    with pytest.raises(StoreUnavailable):
        file.write(progress())
    assert file.write(progress(records=6))
    store.lost = 1
    with pytest.raises(StoreUnavailable):
        file.write(progress(records=7))
    assert file.write(progress(records=8))
    assert read_progress(store, "j") == progress(records=8)


def test_progress_of_lanes() -> None:
    sources = {0: SourceProgress(10, 15, 30), 2: SourceProgress(0, 0, 5)}
    assert lanes_progress({3: LanePosition(HASH, HASH, 4, sources)}) == (LaneProgress(3, 4, 5, 25),)


@pytest.mark.parametrize("kind", [JobControl, JobProgress, JobFailure, LaneProgress])
def test_every_field_is_documented(kind: type[msgspec.Struct]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "jobs.md").read_text()
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    assert set(kind.__struct_fields__) - {"format", "version"} - words == set()
    formats = {getattr(kind, "__struct_defaults__", ("",))[0] for kind in (JobControl, JobProgress)}
    assert all(f"`{name}`" in page for name in formats)
