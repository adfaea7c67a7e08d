"""A restore that is resumed: what became of topics that an earlier run restored."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blockgz.archive.archive import Archive
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.surroundings import Surroundings
from replayer.restore.document import RestorePlan, topic_job
from replayer.restore.folder import RestoreFolder, TopicDone
from replayer.restore.running import RestoreRun, TopicOutcome
from tests.replayer.restore.test_document import topic
from tests.support.archives import ArchiveWriter, records


@dataclass
class Cluster:
    """A target with one topic at most."""

    topic_id: str | None
    num_brokers: int = 1

    def again(self) -> "Cluster":
        return self

    def topic(self, name: str) -> TopicFacts | None:
        return None if self.topic_id is None else TopicFacts(name, 2, self.topic_id, None)

    def replication_factor(self, _: str) -> int:
        return 1

    def own_config(self, _: str) -> dict[str, str]:
        return {}


def resumed(path: Path, topic_id: str | None) -> TopicOutcome:
    """What a run says of a topic of id "first" that an earlier one restored; the cluster has `topic_id` now."""
    ArchiveWriter(path / "archive").partition("orders", 0).commit(records(range(3)))
    jobs, restored = LocalStore(path / "jobs"), topic("orders~1", settings={})
    job = topic_job("night", restored.source)
    kept: dict[str, Any] = {"source_topic_id": None, "transactional": True, "producers": 1, "begun_at": 1}
    kept |= {"job": job, "selection": "s", "archive_id": "a", "folder": "orders~1", "ranges": {}, "asked": {}}
    JobFolder(jobs, job).create(JobRequest(target="orders", target_topic_id="first", **kept))
    folder = RestoreFolder(jobs, "night")
    folder.put(TopicDone(source=restored.source, target="orders", records=3, verdict="OK", at=1), job)
    around = Surroundings(Archive(LocalReader(LocalAddress(str(path / "archive")))), {}, jobs)
    vars(around).update(admin=Cluster(topic_id), changes=Cluster(topic_id))
    plan = RestorePlan(archive_id="a", at=1, topics=(restored,))
    run = RestoreRun(plan, folder, around, 1, lambda *_: None, lambda _: None)
    (outcome,) = asyncio.run(run.topics())
    return outcome


def test_a_restored_topic_is_still_there(tmp_path: Path) -> None:
    outcome = resumed(tmp_path, "first")
    assert (outcome.state, outcome.verdict, outcome.records) == ("restored", "OK", 3), outcome.error


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (None, "topic orders no longer exists in the target"),
        ("second", "topic orders is not the one that was restored"),
    ],
)
def test_a_restored_topic_that_is_gone_is_not_proved(tmp_path: Path, now: str | None, why: str) -> None:
    outcome = resumed(tmp_path, now)
    assert (outcome.state, outcome.verdict) == ("failed", None)
    assert why in str(outcome.error)
    assert "restore orders again in another restore" in str(outcome.do)
