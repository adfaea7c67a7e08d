"""A standby follows an archive whose cluster is at work, is killed and resumed, and takes over when that is lost."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from system_test.restore_story import traffic
from system_test.restore_story.going_on import go_on
from system_test.restore_story.losing import AHEAD_MS, ENDED, PARTITIONS, Cluster, Lost, archived, asked
from system_test.restore_story.notes import NoteBook
from system_test.restore_story.traffic import FOLLOWED, now_ms, stand
from system_test.support.archiving import Site, folder_site
from system_test.support.consumer_groups import committed
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, start
from system_test.support.topics import (
    NewRecord,
    add_partitions,
    create_topic,
    delete_topic,
    own_config,
    partition_count,
    read,
    topic_names,
)
from system_test.support.waiting import wait_until
from tests.support.sampling import in_long_run

KILLS = int(os.environ.get("BLOCKGZ_RESTORE_KILLS", "1"))
RECORDS = 300
GZIP = ("-X", "compression.type=gzip")
"""kafka-python reads no lz4 here."""
WATCHFUL = ("--topic-refresh", "1s", "-X", "topic.metadata.refresh.interval.ms=1000")
GROWN = 5
"""Partitions that `unicode` has in the end."""
OLDEST_MS = 5000


@dataclass
class Standby:
    """The new cluster, and who follows."""

    site: Site
    running: list[Running] = field(default_factory=list)
    resumed: tuple[str, ...] = ()

    def follow(self) -> Running:
        command = ("restore", "--follow", "--name", "standby", "--every", "1s", "--yes", *GZIP, *self.resumed)
        self.resumed = ("--resume",)
        follower = start("replayer", *command, *self.site.kafka, *self.site.archive, env=self.site.env)
        self.running.append(follower)
        return follower

    def status(self) -> dict[str, Any]:
        """What `--status` says, nothing before it was begun; the exit code tells whether all is well."""
        done = self.site.replayer(
            "restore", "--status", "--name", "standby", "--json", *self.site.kafka, check=None, timeout=120
        )
        if done.exit_code == 2:
            return {"topics": []}
        told: dict[str, Any] = json.loads(done.stdout)
        is_well = told["follower"] == "following" and all(
            each["state"] not in ("stopped", "failing") for each in told["topics"]
        )
        assert done.exit_code == (0 if is_well and not told["error"] else 3)
        return told

    def state(self, source: str) -> str | None:
        return next((each["state"] for each in self.status()["topics"] if each["source"] == source), None)

    def switch_over(self, *more: str, check: int = 0) -> dict[str, Any]:
        command = ("restore", "--switch-over", "--name", "standby", "--yes", *GZIP, *more, *self.site.kafka)
        return self.site.replayer_json(*command, check=check)


@contextmanager
def standing_by(site: Site, new: KafkaBroker, state: Path) -> Iterator[Standby]:
    standby = Standby(dataclasses.replace(site, bootstrap=new.bootstrap, env={"XDG_STATE_HOME": str(state)}))
    try:
        yield standby
    finally:
        for follower in standby.running:
            follower.kill()


def records(topic: str, partitions: list[int]) -> list[NewRecord]:
    first = now_ms()
    return [
        NewRecord(b"%s more %d" % (topic.encode(), n), b"k%d" % n, each, timestamp=first + n)
        for n, each in enumerate(partitions * 20)
    ]


def change(cluster: Cluster, standby: Standby, follower: Callable[[], Running]) -> None:
    """A topic and partitions are gained, one topic is created again, one is deleted, and the follower killed."""
    create_topic(cluster.bootstrap, "gained", 2)
    cluster.produce("gained", records("gained", [0, 1]))
    add_partitions(cluster.bootstrap, "unicode", GROWN)
    cluster.produce("unicode", records("unicode", [3, 4]))
    stand(cluster.bootstrap, cluster.book, "behind", {TopicPartition("unicode", each): 7 for each in (3, 4)})
    for topic in ENDED:
        delete_topic(cluster.bootstrap, topic)
    cluster.create_again()
    randomly = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    for _ in range(KILLS):
        kill_at = time.monotonic() + randomly.uniform(0.5, 4)
        wait_until(lambda: time.monotonic() > kill_at, 10, "a random moment")  # noqa: B023
        follower().kill()
        standby.follow()
    follower().wait_for(lambda: "following: " in follower().stderr, 60, "the follower to begin")
    follower().terminate(60).expect(0)
    standby.follow()
    wait_until(lambda: standby.state("again~1") == "stopped", 90, "the topic that was created again to stop")
    wait_until(lambda: standby.state("gained~1") == "following", 60, "the topic that was gained")
    new = standby.site.bootstrap
    wait_until(lambda: partition_count(new, "unicode") == GROWN, 60, "the partitions that were gained")
    wait_until(lambda: set(committed(new, "behind", "unicode", [3, 4]).values()) == {7}, 60, "where a group stands")


@in_long_run
@pytest.mark.timeout(400)
def test_a_standby_takes_over(own_broker: KafkaBroker, new_broker: KafkaBroker, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    site = folder_site(own_broker.bootstrap, tmp_path / "archive")
    cluster = Cluster(own_broker.bootstrap, NoteBook(notes / "story"), RECORDS)
    cluster.fill()
    with (
        site.start("*", "--groups-interval", "500ms", "--chunk-interval", "1s", *WATCHFUL) as archiver,
        Running(
            (sys.executable, "-m", traffic.__name__, own_broker.bootstrap, str(notes / "traffic")), None, None
        ) as working,
        standing_by(site, new_broker, tmp_path / "state") as standby,
    ):
        archiver.wait_for(lambda: Path(site.address, "topic=fifty").exists(), 60, "an archive")
        standby.follow()
        standing = cluster.stand() | {("following", topic) for topic in FOLLOWED}
        archiver.wait_for(lambda: standing <= asked(Path(site.address)), 60, "the groups in tables")
        wait_until(lambda: standby.state("fifty~1") in ("following", "behind"), 60, "the first copies")
        change(cluster, standby, lambda: standby.running[-1])
        assert "delete topic again in the standby" in json.dumps(standby.status())
        everything = now_ms()
        archiver.wait_for(lambda: archived(site, notes, everything), 60, "the archive of what was written")
        assert working.alive, working.stderr
        own_broker.kill()
        archiver.kill()
        lost = Lost(site, tuple(notes.iterdir()), everything, now_ms())
        told = standby.switch_over(check=3)
        assert standby.running[-1].wait(30).expect(0).stderr.count("switches over") == 1
        assert not standby.running[-1].alive
        checked(told, lost, standby, tmp_path / "found")
        refused = standby.site.replayer(
            "restore", "--follow", "--resume", "--name", "standby", "--yes", *standby.site.kafka, check=2
        )
        assert "is switched over" in refused.stderr


def checked(told: dict[str, Any], lost: Lost, standby: Standby, found: Path) -> None:
    """What the switch-over says, and what the judge does."""
    bootstrap = standby.site.bootstrap
    topics = {each["source"]: each for each in told["topics"]}
    assert {each["state"] for each in topics.values()} == {"restored"}, told
    assert {each["proof"] for each in topics.values()} <= {"OK", "SAMPLED"}
    assert "created again as again~2" in topics["again~1"]["lacks"][0]
    assert [each["topic"] for each in told["left_out"]] == ["deleted"]
    assert told["groups_error"] is None
    assert all(each.value is None or not each.value.startswith(b"new") for each in read(bootstrap, "again"))
    assert own_config(bootstrap, "compacted")["cleanup.policy"] == "compact"
    assert own_config(bootstrap, "stamped")["message.timestamp.type"] == "LogAppendTime"
    for topic in topic_names(bootstrap) & set(ENDED):  # one that was deleted early was never copied
        delete_topic(bootstrap, topic)
    wait_until(lambda: not topic_names(bootstrap) & set(ENDED), 30, "the topics to be deleted")
    partitions = {topic: count for topic, count in PARTITIONS.items() if topic not in ENDED}
    partitions |= {"unicode": GROWN, "gained": 2}
    book = NoteBook(found)
    lost.note_archive(book, lost.end + AHEAD_MS, partitions)
    assert go_on(bootstrap, book) == set(partitions)
    at = lost.end + 2 * AHEAD_MS  # everything is restored, also what a clock stamped that was ahead
    oldest = 2 * AHEAD_MS + OLDEST_MS
    command = [sys.executable, "-m", "system_test.restore_story.judge", at, oldest, *lost.notes, found]
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, check=False)
    print(done.stdout.decode())
    verdict = json.loads(done.stdout)
    assert (verdict["faults"], done.returncode) == ([], 0)
    assert {"behind", "at-the-end", "in-a-hole", "in-an-abort", "gone", "following"} <= set(verdict["groups"])
