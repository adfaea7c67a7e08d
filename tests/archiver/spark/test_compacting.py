"""A partition that a task compacts; Spark itself runs in the system tests."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from archiver.commit.driver import Driver, UnreadLog
from archiver.maintain.compact import Compaction, PartitionCompaction, PlannedCompaction
from archiver.maintain.planned import name_of
from archiver.maintain.rewrite.encode import MergeLimits
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.spark.job import CompactionTask
from benchmarks.compact import command, small_chunks
from blockgz.spark.errors import TaskFailed
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings
from tests.support.encryption import key_line

CHUNKS = 70
COMPACTION = Compaction(MergeLimits(2**20, 2**20))


def planned(root: Path, buffer_bytes: int = 2**30) -> PartitionCompaction:
    store = open_existing_store(str(root), S3Settings())
    driver = Driver(store, UnreadLog(), lambda *_: None, lambda: True)
    (plan,) = PlannedCompaction(store, None, COMPACTION, driver, buffer_bytes, lambda plans: ()).partitions
    return plan


def sent(root: Path, folder: Path) -> CompactionTask:
    """As it arrives at a worker."""
    task = CompactionTask(str(root), S3Settings(), COMPACTION, folder, 2**30, 2**20, None)
    again = pickle.loads(cloudpickle.dumps(task))
    assert isinstance(again, CompactionTask) and again == task
    return again


@pytest.mark.slow
def test_a_task_compacts_its_partition(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, CHUNKS)
    plan = pickle.loads(pickle.dumps(planned(root)))
    task = sent(root, tmp_path / "buffer")
    ended = pickle.loads(pickle.dumps(task(plan)))
    assert (name_of(ended.plan.keys), ended.done, ended.is_whole) == ("orders:0", plan.runs, True)
    assert command("compact", "-a", root, "--dry-run").stdout == "nothing to compact\n"


@pytest.mark.slow
def test_a_task_that_is_repeated_does_what_the_first_one_left(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 2 * CHUNKS)
    plan, task = planned(root, buffer_bytes=1), sent(root, tmp_path / "buffer")
    first, second = plan.runs
    assert task(replace(plan, runs=(first,))).outcome is RewriteOutcome.COMMITTED
    again = task(plan)
    assert (again.done, again.outcome, again.error) == ((second,), RewriteOutcome.NOTHING, None)


@pytest.mark.slow
def test_an_archive_that_is_not_there_fails_the_task(tmp_path: Path) -> None:
    small_chunks(tmp_path / "archive", CHUNKS)
    with pytest.raises(TaskFailed, match="no archive"):
        sent(tmp_path / "other", tmp_path)(planned(tmp_path / "archive"))


def test_keys_are_not_sent(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(1))
    refused = command("compact", "--master", "local", "--keys", f"file:{keys}", "-a", tmp_path)
    assert refused.exit_code == 2
    assert "--master cannot be used with keys" in refused.output
