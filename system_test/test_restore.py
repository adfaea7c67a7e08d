"""A cluster is lost for good, and another one gets all of it as of one moment; its consumers continue there."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from index_format.identity import ended, parse_inventory
from index_format.keys import TopicFolder
from index_format.objects import encode
from system_test.conftest import required_parts
from system_test.support.archiving import Site, folder_site
from system_test.support.consumer_groups import commit, committed, consuming, read_on
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import start
from system_test.support.topics import (
    NewRecord,
    Record,
    Transactions,
    create_topic,
    delete_topic,
    own_config,
    partition_count,
    produce,
    read,
    topic_names,
)
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, records

KINDS = {
    "compacted": 2,
    "deals": 2,
    "stamped": 1,
    "empty": 3,
    "one": 1,
    "twelve": 12,
    "deleted": 2,
    "again": 2,
    "nulls": 1,
}
"""The topics of the moment, and their partitions."""
SETTINGS = {"compacted": {"cleanup.policy": "compact"}, "stamped": {"message.timestamp.type": "LogAppendTime"}}
RECORDS = 1500
GZIP = ("-X", "compression.type=gzip")
"""kafka-python reads no lz4 here."""
KILLS = int(os.environ.get("BLOCKGZ_RESTORE_KILLS", "2"))
"""At random moments, beside two that are not; `make long` takes 20."""


@dataclass
class Lost:
    """A cluster that is gone: what was in its topics before the moment, and where its groups stood then."""

    site: Site
    """Without a cluster; its archive."""
    prefix: str
    at: int = 0
    contents: dict[str, dict[int, list[Record]]] = field(default_factory=dict)
    groups: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    """By group, topic and partition."""

    def topic(self, kind: str) -> str:
        return f"{self.prefix}.{kind}"


def values(kind: str, part: str, partitions: int, count: int = RECORDS) -> list[NewRecord]:
    return [
        NewRecord(f"{kind} {part} {n}".encode(), key=b"k%d" % (n % 50), partition=n % partitions) for n in range(count)
    ]


def fill(site: Site, lost: Lost, part: str) -> None:
    """Records in every topic but the empty one."""
    for kind, partitions in KINDS.items():
        topic = lost.topic(kind)
        if kind == "deals":
            with Transactions(site.bootstrap, f"{topic}-{part}") as writer:
                for number in range(20):
                    records = values(kind, f"{part} {number}", partitions, 20)
                    (writer.commit if number % 3 else writer.abort)(topic, records)
        elif kind == "nulls":
            contents = [NewRecord(b"v"), NewRecord(None, key=b"k"), NewRecord(None), NewRecord(b"", key=b"")]
            contents.append(NewRecord(b"h", headers=(("a", b"1"), ("a", None), ("b", b""))))
            produce(site.bootstrap, topic, contents * 5)
        elif kind != "empty":
            produce(site.bootstrap, topic, values(kind, part, partitions))


def archive(site: Site, lost: Lost) -> None:
    site.once(f"{lost.prefix}.*", "--groups-interval", "100ms", "--groups", f"{lost.prefix}.*")


def end(site: Site, topic: str) -> None:
    """Deletes a topic; the inventory says so, as an archiver that follows it writes after half a minute."""
    delete_topic(site.bootstrap, topic)
    file = Path(site.address, "_inventory.json")
    inventory = parse_inventory(file.read_bytes(), file.name)
    file.write_bytes(encode(ended(inventory, TopicFolder(topic), None, time.time_ns() // 1_000_000)))


def stand(site: Site, lost: Lost) -> None:
    """Three groups, each with positions in several topics."""
    for number, kinds in enumerate((("one", "twelve"), ("deals", "compacted", "stamped"), ("deleted", "again", "one"))):
        group = lost.groups.setdefault(f"{lost.prefix}.group-{number}", {})
        for kind in kinds:
            topic = lost.topic(kind)
            group[topic] = {each: 7 + 11 * number + each for each in range(KINDS[kind])}
            commit(site.bootstrap, f"{lost.prefix}.group-{number}", topic, group[topic])


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    with required_parts():
        broker = KafkaBroker()
    with broker:
        site = folder_site(broker.bootstrap, tmp_path_factory.mktemp("restore") / "archive")
        lost = Lost(site, f"shop-{uuid.uuid4().hex[:6]}")
        for kind, partitions in KINDS.items():
            create_topic(broker.bootstrap, lost.topic(kind), partitions, SETTINGS.get(kind))
        create_topic(broker.bootstrap, lost.topic("gone"))
        produce(broker.bootstrap, lost.topic("gone"), values("gone", "a", 1, 10))
        archive(site, lost)
        end(site, lost.topic("gone"))
        fill(site, lost, "before")
        stand(site, lost)
        archive(site, lost)
        lost.at = time.time_ns() // 1_000_000 + 200
        for kind, partitions in KINDS.items():
            topic = lost.topic(kind)
            lost.contents[topic] = {each: read(broker.bootstrap, topic, each) for each in range(partitions)}
        wait_until(lambda: time.time_ns() // 1_000_000 > lost.at, 5, "the moment to pass")
        fill(site, lost, "after")
        for name, topics in lost.groups.items():
            for topic, positions in topics.items():
                commit(site.bootstrap, name, topic, {each: at + 20 for each, at in positions.items()})
        create_topic(broker.bootstrap, lost.topic("later"))
        archive(site, lost)
        for kind in ("deleted", "again"):
            delete_topic(broker.bootstrap, lost.topic(kind))
        create_topic(broker.bootstrap, lost.topic("again"), 3)
        produce(broker.bootstrap, lost.topic("again"), values("again", "new", 3, 30))
        archive(site, lost)
        broker.kill()
        yield lost


@pytest.fixture
def target(lost: Lost, broker: KafkaBroker, tmp_path: Path) -> Site:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return dataclasses.replace(lost.site, bootstrap=broker.bootstrap, env=env)


def restore(lost: Lost, *more: object) -> tuple[object, ...]:
    return ("restore", "--at", f"@{lost.at}", "--yes", *GZIP, *more)


def check_restored(target: Site, lost: Lost, before: str = "") -> None:
    """Topic by topic: every record before the moment in its order, none after; groups read on where they stood."""
    for topic, partitions in lost.contents.items():
        copy = before + topic
        assert partition_count(target.bootstrap, copy) == len(partitions)
        for number, wanted in partitions.items():
            found = read(target.bootstrap, copy, number)
            assert list(map(content, found)) == list(map(content, wanted)), (copy, number)
    for kind, settings in SETTINGS.items():
        assert settings.items() <= own_config(target.bootstrap, before + lost.topic(kind)).items()
    for name, topics in lost.groups.items():
        for topic, positions in topics.items():
            for number, at in positions.items():
                wanted_values = [each.value for each in lost.contents[topic][number] if each.offset >= at]
                assert read_on(target.bootstrap, before + name, before + topic, number) == wanted_values
    names = {
        name.removeprefix(before) for name in topic_names(target.bootstrap) if name.startswith(before + lost.prefix)
    }
    assert names == set(lost.contents)


def content(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, record.headers


def test_a_cluster_is_restored_as_of_one_moment(lost: Lost, target: Site, tmp_path: Path) -> None:
    planned = target.replayer_json(*restore(lost, "--dry-run"), *target.kafka)
    assert {each["topic"] for each in planned["plan"]["left_out"]} == {lost.topic("gone"), lost.topic("later")}
    report = tmp_path / "restored.json"
    told = target.replayer_json(*restore(lost, "--report", report), *target.kafka)
    assert told["verdict"] == "OK", told
    assert {each["proof"] for each in told["topics"]} == {"OK"}
    assert told["records"] == sum(len(records) for topic in lost.contents.values() for records in topic.values())
    assert json.loads(report.read_bytes())["topics"] == told["topics"]
    check_restored(target, lost)
    refused = target.replayer(*restore(lost), *target.kafka, check=2)
    assert "has begun already" in refused.stderr
    refused = target.replayer(*restore(lost, "--name", "another"), *target.kafka, check=2)
    assert "exists: give the restored one another name with --map" in refused.stderr
    more = ("--name", "third", "--map", r"(.*)=third.\1", "--group-map", r"(.*)=third.\1", "--dry-run")
    refused = target.replayer(*restore(lost, *more, "--replication-factor", "3"), *target.kafka, check=2)
    assert "cannot be created" in refused.stderr
    assert "replication factor" in refused.stderr.lower()


def test_an_edited_plan_and_topics_that_are_refused_or_fail(lost: Lost, target: Site, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    target.replayer(*restore(lost, "--plan", file), *target.kafka)
    plan = json.loads(file.read_bytes())
    wanted = {lost.topic("one"): "edited", lost.topic("stamped"): "refused", lost.topic("deleted"): "damaged"}
    plan["topics"] = [each | {"target": wanted[each["target"]]} for each in plan["topics"] if each["target"] in wanted]
    for each in plan["topics"]:
        each["settings"] |= {"max.message.bytes": "none"} if each["target"] == "refused" else {}
    file.write_text(json.dumps(plan))
    planned = ("restore", "--from-plan", file, "--yes", *GZIP, *target.kafka)
    refused = target.replayer(*planned, check=2)
    assert "topic 'refused' cannot be created" in refused.stderr
    file.write_text(json.dumps(plan | {"partial": True}))
    first = min(Path(lost.site.address, f"topic={lost.topic('deleted')}/partition=00000").glob("*.gz"))
    with damaged(first):
        told = target.replayer_json(*planned, check=3)
    found = {each["target"]: each for each in told["topics"]}
    states = {"edited": "restored", "refused": "refused", "damaged": "failed"}
    assert {name: each["state"] for name, each in found.items()} == states
    assert "cannot be created" in found["refused"]["error"]
    assert "is not restored" in told["groups_error"]
    copied = read(target.bootstrap, "edited")
    assert list(map(content, copied)) == list(map(content, lost.contents[lost.topic("one")][0]))
    assert committed(target.bootstrap, f"{lost.prefix}.group-0", "edited", [0]) == {0: None}


@contextmanager
def damaged(file: Path) -> Iterator[None]:
    """The file with another byte in its middle, for the time of the block."""
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    try:
        yield
    finally:
        file.write_bytes(whole)


@pytest.mark.timeout(120 + 10 * KILLS)
def test_a_restore_that_is_killed_continues(lost: Lost, target: Site) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    names = ("--map", r"(.*)=copy.\1", "--group-map", r"(.*)=copy.\1", "--name", "night")
    names += ("--rate", f"{20_000 // KILLS}/s")
    folder = Path(target.env["XDG_STATE_HOME"], "blockgz/jobs/night")

    def started(*more: object) -> tuple[object, ...]:
        resumed = ("--resume",) if (folder / "restore.json").exists() else ()
        return (*restore(lost, *names), *resumed, *more, *target.kafka)

    def kill_when(condition: Callable[[], object], number: signal.Signals = signal.SIGKILL) -> int:
        with start("replayer", *started(), *target.archive, env=target.env) as running:
            wait_until(lambda: condition() or not running.alive, 30, "the moment to kill", longest_pause=0.01)
            running.signal(number)
            return running.wait(30).exit_code

    def after(seconds: float) -> Callable[[], bool]:
        kill_at = time.monotonic() + seconds
        return lambda: time.monotonic() > kill_at

    kill_when(lambda: any(name.startswith("copy.") for name in topic_names(target.bootstrap)))
    for _ in range(KILLS):
        kill_when(after(randomly.uniform(0.8, 4)))
    assert kill_when(after(randomly.uniform(2, 4)), signal.SIGTERM) in (0, -signal.SIGTERM, 143)
    kill_when(lambda: len(list(folder.glob("topics/*.json"))) == len(KINDS))
    if not (folder / "groups.json").exists():
        place = (f"copy.{lost.prefix}.group-0", f"copy.{lost.topic('one')}", [0])
        before = committed(target.bootstrap, *place)
        with consuming(target.bootstrap, f"copy.{lost.prefix}.group-1", otherwise="earliest") as consumer:
            consumer.subscribe([f"copy.{lost.topic('one')}"])
            consumer.poll(timeout_ms=10_000)
            told = json.loads(target.replayer(*started("--json"), check=3).stdout)
            assert "consumers are at work in group" in told["groups_error"]
        assert committed(target.bootstrap, *place) == before
    told = json.loads(target.replayer(*started("--json")).stdout)
    assert told["verdict"] == "OK", told
    check_restored(target, lost, "copy.")


def test_a_sample_is_proved_and_what_is_not_compared_is_said(broker: KafkaBroker, tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "archive").partition("orders", 0)
    writer.commit(records(range(60_000), value_bytes=20), block_bytes=1 << 16)
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    site = dataclasses.replace(site, env={"XDG_STATE_HOME": str(tmp_path / "state")})

    def restored(how: str, *more: str) -> Any:
        names = ("--map", rf"(.*)={how}.{tmp_path.name}.\1")
        return site.replayer_json("restore", "--at", "-0h", "--yes", "--prove", how, *names, *more, *site.kafka)

    sampled = restored("sample", "--sample", "1%")
    (topic,) = sampled["topics"]
    assert (sampled["verdict"], topic["proof"], sampled["sample"]["share"]) == ("SAMPLED", "SAMPLED", 0.01)
    (note,) = (each for each in topic["notes"] if each.startswith("sampled:"))
    compared = 60_000 - int(note.split()[1])
    assert 0 < compared <= 30_000, "the first piece, the last and one more: 10,000 records each, fewer where a run ends"
    assert restored("none")["verdict"] == "UNPROVED"
