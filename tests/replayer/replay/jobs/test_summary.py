"""A job's state as it changes while somebody looks."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from blockgz.store.writer import StoredObject
from replayer.replay.jobs.control import ProgressFile
from replayer.replay.jobs.state import JobState, held, job_signs, job_state
from replayer.replay.stages import wall_clock
from tests.replayer.replay.jobs.test_control import progress
from tests.support.memory_store import MemoryStore

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


def report(store: MemoryStore, state: JobState) -> None:
    ProgressFile(store, "job", "x").write(progress(state=state, updated_at=wall_clock(), attempt_host=HERE))


def seen(store: MemoryStore, locks: Path) -> JobState | None:
    return job_state(job_signs(store, "job", locks), HERE, wall_clock())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_ends_while_somebody_looks_was_not_interrupted(when: str, tmp_path: Path) -> None:
    store, run = Meanwhile(), ExitStack()
    report(store, "running")
    run.enter_context(held(tmp_path, "job"))

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
        run.enter_context(held(tmp_path, "job"))
        report(store, "running")

    store.before = begins
    assert seen(store, tmp_path) == "running"
    run.close()
    assert seen(store, tmp_path) == "interrupted"
