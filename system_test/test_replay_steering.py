"""Replays on a real broker, steered by `replayer jobs` from another process, with the folder of jobs on S3."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from system_test.support.archiving import Site, store_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.programs import Running, start
from system_test.support.topics import NewRecord, create_topic, produce, read, watermarks

RECORDS = 2000
SECONDS = 30.0


class SteeredJob:
    """A job with transactions, its replays and what is told of it."""

    def __init__(self, site: Site, topic: str) -> None:
        self.site, self.topic, self.copy = site, topic, f"{topic}-copy"
        self._jobs = ("--jobs", f"{site.address}-jobs")

    def replay(self, *options: str) -> Running:
        fixed = ("replay", self.topic, "--to-topic", self.copy, "--yes", "--json", "-X", "compression.type=gzip")
        named = ("--job", self.topic, "--transactional", "--control", *self._jobs)
        return start("replayer", *fixed, *named, *options, *self.site.kafka, *self.site.archive, env=self.site.env)

    def jobs(self, *words: str) -> str:
        """`replayer jobs`, run by somebody else."""
        program = start("replayer", "jobs", *words, *self._jobs, *self.site.store_options, env=self.site.env)
        with program:
            return program.wait(SECONDS).expect(0).stdout

    def state(self) -> str | None:
        """What `replayer jobs` lists."""
        listed: list[dict[str, Any]] = json.loads(self.jobs("--json"))["jobs"]
        return listed[0]["state"] if listed else None

    def is_in(self, *states: str) -> Callable[[], bool]:
        return lambda: self.state() in states

    def logged(self) -> int:
        return watermarks(self.site.bootstrap, self.copy, 0)[1]


@pytest.fixture
def job(broker: KafkaBroker, moto: MotoServer, topic_name: str, tmp_path: Path) -> SteeredJob:
    site = store_site(broker.bootstrap, moto, topic_name, tmp_path)
    for topic in (topic_name, f"{topic_name}-copy"):
        create_topic(site.bootstrap, topic, 1)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % number) for number in range(RECORDS)])
    site.once(topic_name)
    return SteeredJob(site, topic_name)


def test_steered_killed_and_taken_over(job: SteeredJob) -> None:
    with job.replay("--rate", "100/s") as killed:
        killed.wait_for(lambda: job.logged() > 0, SECONDS, "the first records")
        job.jobs("pause", job.topic)
        killed.wait_for(job.is_in("paused"), SECONDS, "the pause")
        held = job.logged()
        assert 0 < held < RECORDS
        killed.kill()
    assert job.state() == "interrupted"
    with job.replay("--resume", "--rate", "20/s") as older:
        older.wait_for(job.is_in("running"), SECONDS, "the second run")
        with job.replay("--resume", "--rate", "20/s") as newer:
            older.wait(60).expect(11)
            newer.wait_for(job.is_in("running"), SECONDS, "the run that took over")
            job.jobs("cancel", job.topic)
            assert not json.loads(newer.wait(60).expect(143).stdout)["complete"]
    assert job.state() == "ended"
    with job.replay("--resume", "--rate", "1/s") as last:
        last.wait_for(job.is_in("running"), SECONDS, "the last run")
        job.jobs("rate", job.topic, "none")
        assert json.loads(last.wait(60).expect(0).stdout)["complete"]
    assert job.state() == "complete"
    values = [[record.value for record in read(job.site.bootstrap, topic, 0)] for topic in (job.topic, job.copy)]
    assert values[0] == values[1]
