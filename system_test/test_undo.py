"""`replayer undo` on a real broker: a topic that a replay created is deleted, and no other one."""

import json
from typing import Any

import pytest

from system_test.support.archiving import Site
from system_test.support.consumer_groups import commit
from system_test.support.programs import Completed, Running, run, start
from system_test.support.topics import (
    NewRecord,
    add_partitions,
    create_topic,
    delete_topic,
    fill_topic,
    partition_count,
    produce,
    topic_names,
    watermarks,
)
from system_test.support.waiting import wait_until
from tests.support.sampling import mostly_long

RECORDS = 3000
MODES = pytest.mark.parametrize("mode", mostly_long([("--transactional",), ()]), ids=["transactional", "idempotent"])


class Job:
    """A job named like its source topic of three partitions, and the copy that it makes."""

    def __init__(self, site: Site, topic: str) -> None:
        self.site, self.topic, self.copy = site, topic, f"{topic}-copy"

    @property
    def _words(self) -> tuple[str, ...]:
        return ("replay", self.topic, "--to-topic", self.copy, "--yes", "--job", self.topic, *self.site.kafka)

    def replay(self, *options: str, check: int = 0) -> Completed:
        return self.site.replayer(*self._words, *options, check=check)

    def started(self, *options: str) -> Running:
        return start("replayer", *self._words, *options, *self.site.archive, env=self.site.env)

    def undo(self, *options: str, check: int = 0) -> Completed:
        words = ("undo", "--job", self.topic, *options, *self.site.kafka)
        return run("replayer", *words, env=self.site.env, timeout=60, check=check)

    def state(self) -> str | None:
        told = run("replayer", "jobs", "--json", env=self.site.env, timeout=60).expect(0).stdout
        states: dict[str, Any] = {each["job"]: each["state"] for each in json.loads(told)["jobs"]}
        return states.get(self.topic)

    def is_there(self) -> bool:
        return self.copy in topic_names(self.site.bootstrap)

    def logged(self) -> int:
        return sum(watermarks(self.site.bootstrap, self.copy, partition)[1] for partition in range(3))


@pytest.fixture
def job(site: Site, topic_name: str) -> Job:
    rows = [NewRecord(b"%d" % n, b"k%d" % (n % 50), n % 3) for n in range(RECORDS)]
    fill_topic(site.bootstrap, topic_name, rows, partitions=3)
    site.once(topic_name)
    return Job(site, topic_name)


def refused(job: Job, text: str, code: int = 2) -> str:
    stderr = job.undo("--yes", check=code).stderr
    assert text in stderr
    assert job.is_there()
    return stderr


@MODES
def test_what_a_replay_created_is_deleted_once(job: Job, mode: tuple[str, ...]) -> None:
    assert "cannot be taken back" not in job.replay("--create-topic", *mode).stderr
    commit(job.site.bootstrap, f"{job.topic}-group", job.copy, {1: 5})
    planned = json.loads(job.undo("--dry-run", "--json").stdout)
    assert (planned["topic"], planned["records"], planned["deleted"]) == (job.copy, RECORDS, False)
    assert planned["partitions"] == [
        {"partition": n, "from": 0, "to": watermarks(job.site.bootstrap, job.copy, n)[1]} for n in range(3)
    ]
    assert planned["warnings"] == [f"consumer groups have committed offsets in the topic: {job.topic}-group"]
    assert f"topic {job.copy} was not deleted" in job.undo(check=2).stderr, "nobody can be asked"
    assert job.is_there()

    done = job.undo("--yes")
    assert f"{RECORDS} records" in done.stderr
    assert f"job {job.topic} is undone" in done.stdout
    assert not job.is_there()
    assert job.state() == "undone"
    assert f"job {job.topic} was undone" in job.undo("--yes", check=2).stderr
    for options in (("--resume",), ("--resume", "--create-topic"), ("--create-topic",)):
        assert f"job {job.topic} was undone" in job.replay(*options, *mode, check=2).stderr
    assert not job.is_there()

    run("replayer", "jobs", "rm", job.topic, "--yes", env=job.site.env, timeout=60).expect(0)
    job.replay("--create-topic", *mode)
    job.site.replayer("verify", "--job", job.topic, *job.site.kafka)


@MODES
def test_a_job_without_a_name_is_done_again_after_it_was_undone(job: Job, mode: tuple[str, ...]) -> None:
    words = ("replay", job.topic, "--to-topic", job.copy, "--create-topic", "--yes", "--json", *job.site.kafka, *mode)
    name = json.loads(job.site.replayer(*words).stdout)["verify"].split()[3]
    run("replayer", "undo", "--job", name, "--yes", *job.site.kafka, env=job.site.env, timeout=60).expect(0)
    assert not job.is_there()
    if mode:
        assert f"job {name} was undone" in job.site.replayer(*words, check=2).stderr
    else:
        assert json.loads(job.site.replayer(*words).stdout)["verify"].split()[3] == f"{name}-2"


@MODES
def test_records_of_others_between_those_of_the_job_keep_the_topic(job: Job, mode: tuple[str, ...]) -> None:
    with job.started("--create-topic", *mode, "--rate", "400/s") as running:
        running.wait_for(lambda: job.is_there() and job.logged() > 400, 60, "some records")
        running.terminate()
        running.wait(30).expect(143)
    planned = json.loads(job.undo("--dry-run", "--json").stdout)
    assert 400 <= planned["records"] < RECORDS, "what was begun and ended in good order can be taken back"
    (offset,) = produce(job.site.bootstrap, job.copy, [NewRecord(b"foreign", partition=2)])
    assert "cannot be taken back" not in job.replay("--resume", *mode).stderr, "the job created it"
    refused(job, f"the first one is {job.copy}:2:{offset}")


def test_partitions_that_others_added_go_with_the_topic_only_while_they_are_empty(job: Job) -> None:
    job.replay("--create-topic")
    add_partitions(job.site.bootstrap, job.copy, 5)
    wait_until(lambda: partition_count(job.site.bootstrap, job.copy) == 5, 30, "partitions")
    assert len(json.loads(job.undo("--dry-run", "--json").stdout)["partitions"]) == 5
    produce(job.site.bootstrap, job.copy, [NewRecord(b"foreign", partition=4)])
    refused(job, f"the first one is {job.copy}:4:0")


def test_a_topic_of_that_name_that_is_another_one_stays(job: Job) -> None:
    job.replay("--create-topic")
    delete_topic(job.site.bootstrap, job.copy)
    wait_until(lambda: not job.is_there(), 30, "the topic to be gone")
    assert "the topic no longer exists" in job.undo("--yes", check=1).stderr
    create_topic(job.site.bootstrap, job.copy, 3)
    refused(job, f"topic {job.copy} is not the one that job {job.topic} wrote to", code=1)


@MODES
def test_a_job_that_runs_or_was_killed(job: Job, mode: tuple[str, ...]) -> None:
    with job.started("--create-topic", *mode, "--rate", "300/s") as running:
        running.wait_for(lambda: job.is_there() and job.logged() > 300, 60, "some records")
        refused(job, f"job {job.topic} is running", code=11)
        running.kill()
    if mode:
        refused(job, f"a transaction is open in {job.copy}")
    job.replay("--resume", *mode)
    if mode or job.site.replayer_json("verify", "--job", job.topic, *job.site.kafka)["sent_twice"] == 0:
        job.undo("--yes")
        assert not job.is_there()
    else:
        refused(job, "or a run of the job that was killed before it could note it")
