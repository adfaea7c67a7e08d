"""`archiver spark` on topics whose logs have holes where batches meet: transactions, compaction, and a real gap."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from system_test.conftest import required_parts
from system_test.support.archiving import Site, folder_site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.spark import job_command, job_environment, run_job, spark_session
from system_test.support.topics import NewRecord, Transactions, create_topic, produce, read
from system_test.support.waiting import wait_until
from tests.support.sampling import in_long_run

pytestmark = pytest.mark.timeout(900, func_only=True)

PARTITIONS = 2


@pytest.fixture(autouse=True, scope="module")
def spark() -> Iterator[SparkSession]:
    """The session that jobs find."""
    with required_parts(), spark_session("local[1]") as session:
        yield session


@pytest.fixture
def site(broker: KafkaBroker, tmp_path: Path) -> Site:
    return folder_site(broker.bootstrap, tmp_path / "archive")


def job(site: Site, topic: str, checkpoint: Path, *options: str) -> dict[str, Any]:
    """The result of a job that ended well."""
    done = run_job(site, topic, checkpoint, *options)
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def gaps(site: Site, topic: str) -> list[Any]:
    found = site.replayer_json("verify", topic, "--deep", "--records")
    if found["verdict"] == "OK":
        return []
    assert found["verdict"] == "WARNING", found
    return [
        (each["partition"], gap["from"], gap["to"], gap["reason"])
        for each in found["partitions"]
        for gap in each["gaps"]
    ]


def borders(checkpoint: Path, topic: str, partition: int = 0) -> list[int]:
    """Where batches ended, as Spark keeps it."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1])[topic][str(partition)] for path in files]


def holes_at(ends: list[int], site: Site, topic: str, partition: int = 0) -> list[int]:
    """Those ends right behind which, or right before which, the log has no record."""
    offsets = {record.offset for record in read(site.bootstrap, topic, partition)}
    return [end for end in ends if end - 1 not in offsets or (end not in offsets and end < max(offsets))]


def transact(site: Site, topic: str, source: random.Random, transactions: int) -> None:
    """Commits, aborts, and records outside of any transaction; the last of each partition is committed."""
    with Transactions(site.bootstrap, topic) as writer:
        for number in range(transactions):
            records = [
                NewRecord(b"%d" % number, key=b"k", partition=source.randrange(PARTITIONS))
                for _ in range(source.randrange(1, 5))
            ]
            kind = source.choice((writer.commit, writer.commit, writer.abort))
            kind(topic, records)
            if source.random() < 0.2:
                produce(site.bootstrap, topic, records)
        writer.commit(topic, [NewRecord(b"end", partition=number) for number in range(PARTITIONS)])


@in_long_run
def test_a_transactional_topic_has_no_gaps_wherever_batches_and_jobs_end(
    site: Site, topic_name: str, tmp_path: Path
) -> None:
    """Batches of some offsets, a job that is killed, one that goes on, and one that has lost its checkpoint."""
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    source = random.Random(seed)
    create_topic(site.bootstrap, topic_name, PARTITIONS)
    transact(site, topic_name, source, 7)
    with Transactions(site.bootstrap, topic_name) as writer:  # of one partition, batches without a record
        for _ in range(3):
            writer.abort(topic_name, [NewRecord(b"nothing", partition=1)] * 6)
    transact(site, topic_name, source, 2)
    few = ("--max-offsets", "7")
    home = Path(site.address) / f"topic={topic_name}"
    command = job_command(site, topic_name, tmp_path / "checkpoint", *few)
    with (tmp_path / "stderr").open("w") as says:
        killed = subprocess.Popen(command, env=job_environment(), start_new_session=True, stdout=says, stderr=says)
        try:
            wait_until(
                lambda: len(list(home.glob("*/*.gz"))) >= 3 or killed.poll() is not None, 200, "some batches' chunks"
            )
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()[-3000:]
    assert job(site, topic_name, tmp_path / "checkpoint", *few)["batches"] >= 3
    transact(site, topic_name, source, 4)
    job(site, topic_name, tmp_path / "checkpoint", *few)
    at_holes = [
        holes_at(borders(tmp_path / "checkpoint", topic_name, number), site, topic_name, number)
        for number in range(PARTITIONS)
    ]
    assert all(at_holes), "no batch ended at a hole"
    transact(site, topic_name, source, 2)
    job(site, topic_name, tmp_path / "lost", "--max-offsets", "20")
    assert gaps(site, topic_name) == []
    archived = [site.exact(topic_name, number).records for number in range(PARTITIONS)]
    there = [read(site.bootstrap, topic_name, number) for number in range(PARTITIONS)]
    assert list(map(len, archived)) == list(map(len, there))


@in_long_run
def test_holes_of_compaction_are_not_gaps_where_batches_meet(site: Site, topic_name: str, tmp_path: Path) -> None:
    """Whole batches are compacted away, behind some that are not."""
    create_compacted_topic(site.bootstrap, topic_name)
    keys = [b"first-%d" % n for n in range(12)] + [b"%d" % (n % 3) for n in range(28)]
    produce(site.bootstrap, topic_name, [NewRecord(b"v", key=key) for key in keys])
    left = compact_and_wait(site.bootstrap, topic_name)
    job(site, topic_name, tmp_path / "checkpoint", "--max-offsets", "6", "--on-gap", "stop")
    assert len(holes_at(borders(tmp_path / "checkpoint", topic_name), site, topic_name)) >= 3
    assert gaps(site, topic_name) == []
    assert len(site.exact(topic_name).records) == len(left)


@in_long_run
def test_what_a_checkpoint_read_for_another_archive_stays_a_gap(site: Site, topic_name: str, tmp_path: Path) -> None:
    """The checkpoint is ahead of an older copy of the archive."""

    def more(count: int) -> None:
        with Transactions(site.bootstrap, topic_name) as writer:
            writer.commit(topic_name, [NewRecord(b"%d" % n) for n in range(count)])

    create_topic(site.bootstrap, topic_name)
    more(4)
    job(site, topic_name, tmp_path / "checkpoint")
    older = folder_site(site.bootstrap, tmp_path / "older")
    shutil.copytree(site.address, older.address)
    more(5)
    job(site, topic_name, tmp_path / "checkpoint")
    more(2)
    job(older, topic_name, tmp_path / "checkpoint")
    assert gaps(site, topic_name) == []
    assert gaps(older, topic_name) == [(0, 5, 11, "unverified")]
