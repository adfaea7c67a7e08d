"""Restores that meet what an operator meets in a bad night, and that are finished nevertheless, on a real broker."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from index_format.groups import Group, GroupPosition
from index_format.groups import encode as encode_groups
from index_format.keys import TopicFolder, dated_key, groups_home
from replayer.kafka.admin import kafka_groups
from replayer.restore.document import topic_job
from system_test.support.archiving import Site
from system_test.support.consumer_groups import commit, committed
from system_test.support.programs import Completed, run
from system_test.support.programs import start as start_program
from system_test.support.topics import (
    NewRecord,
    create_topic,
    delete_topic,
    own_config,
    produce,
    read,
    topic_names,
    watermarks,
)
from system_test.support.waiting import wait_until
from tests.index_format.builders import groups_of
from tests.support.archives import ArchiveWriter, put_topic_config, records

AT = "@1760000900000"
SLOT = 1_760_000_500_000
FOREIGN = "message.timestamp.of.another.version.ms"
"""No broker knows this setting."""


@pytest.fixture
def archive(broker_site: Site, tmp_path: Path) -> tuple[ArchiveWriter, Site]:
    """An archive that no cluster here wrote, and a site with it."""
    site = dataclasses.replace(broker_site, address=str(tmp_path / "archive"), env={"XDG_STATE_HOME": str(tmp_path)})
    return ArchiveWriter(tmp_path / "archive"), site


def restore(site: Site, *arguments: object) -> Completed:
    """Run a command about a restore, which needs no archive."""
    return run("replayer", "restore", *arguments, env=site.env, check=None)


def group_names(bootstrap: str) -> list[str]:
    return kafka_groups({"bootstrap.servers": bootstrap}).ids()


def test_a_setting_that_the_cluster_does_not_know_is_left_out_and_named(
    archive: tuple[ArchiveWriter, Site], topic_name: str
) -> None:
    writer, site = archive
    writer.partition(topic_name, 0).commit(records(range(40)))
    put_topic_config(writer, topic_name, 1, {FOREIGN: "5", "cleanup.policy": "compact", "segment.bytes": "2000000"})
    names = ("restore", topic_name, "--at", AT, "--name", topic_name, "--map", r"(.*)=new.\1", *site.kafka)
    chosen = site.replayer(*names, "--dry-run", "--topic-config", f"{FOREIGN}=6", check=2).stderr
    assert f"Unknown topic config name: {FOREIGN}" in chosen
    assert "--omit-topic-config" in chosen
    told = site.replayer(*names, "--yes")
    assert f"{FOREIGN}=5 is left out, because the cluster does not accept it" in told.stderr
    found = own_config(site.bootstrap, f"new.{topic_name}")
    assert (found["cleanup.policy"], found["segment.bytes"]) == ("compact", "2000000")
    copied = (
        "replay",
        topic_name,
        "--to-topic",
        "{topic}-copy",
        "--create-topic",
        "--topic-config",
        "cleanup.policy=delete",
        "--topic-config",
        "retention.ms=-1",
        *site.kafka,
    )
    assert f"{FOREIGN}=5 is left out" in site.replayer(*copied, "--yes").stderr
    silent = site.replayer(*copied, "--dry-run", "--job", "other", "--omit-topic-config", FOREIGN, check=None).stderr
    assert FOREIGN not in silent


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_restore_that_meets_a_lost_object_is_finished(
    archive: tuple[ArchiveWriter, Site], topic_name: str, is_missing: bool
) -> None:
    """One that is missing is in the plan, and --partial does the rest; one that is damaged is met on the way."""
    writer, site = archive
    whole, torn = f"{topic_name}-whole", f"{topic_name}-torn"
    both, alone = f"{topic_name}-both", f"{topic_name}-alone"
    for topic in (whole, torn):
        partition = writer.partition(topic, 0)
        for start in (0, 20, 40):
            partition.commit(records(range(start, start + 20)))
        standing = {alone: 33, both: 25} if topic == whole else {both: 25}
        groups = [Group(name, SLOT, (GroupPosition(0, offset, "m"),)) for name, offset in standing.items()]
        table = encode_groups(groups_of(*groups, topic=topic))
        writer.put(dated_key(groups_home("topic", TopicFolder(topic)), SLOT), table)
    lost = sorted(Path(site.address, f"topic={torn}/partition=00000").rglob("*.gz"))[1]
    body = lost.read_bytes()
    lost.unlink()
    if not is_missing:
        lost.write_bytes(bytes(len(body)))
    named = (
        "restore",
        "--map",
        r"(.*)=new.\1",
        "--name",
        topic_name,
        "--yes",
        "-X",
        "compression.type=gzip",
        *site.kafka,
    )

    planned = site.replayer(*named, "--at", AT, "--dry-run", check=2 if is_missing else 0).stderr
    assert (f"{lost.name} is missing, {torn}:0 [20..40): put the object back" in planned) is is_missing
    skipping = site.replayer(*named, "--at", AT, "--dry-run", "--on-damage", "skip", check=3 if is_missing else 0)
    assert (f"{lost.name} is missing, {torn}:0 [20..40)" in skipping.stderr) is is_missing

    failed = site.replayer_json(*named, "--at", AT, "--partial", check=3)
    states = {each["target"]: each["state"] for each in failed["topics"]}
    assert states == {f"new.{whole}": "restored", f"new.{torn}": "refused" if is_missing else "failed"}
    (told,) = (each for each in failed["topics"] if each["target"] == f"new.{torn}")
    hint = "--on-damage skip" if is_missing else f"replayer restore --resume --on-damage skip --name {topic_name}"
    assert hint in told["error" if is_missing else "do"]
    assert (failed["groups_error"], failed["groups"]) == (None, {alone: 1})
    (first, second) = (note for note in failed["group_notes"] if both in note)
    assert f"group {both} is not set: it has positions in new.{torn}, which is not restored" in first
    assert f"replayer groups apply --job {topic_job(topic_name, whole)} --group {both} --at" in second
    assert committed(site.bootstrap, alone, f"new.{whole}", [0]) == {0: 33}
    assert committed(site.bootstrap, both, f"new.{whole}", [0]) == {0: None}

    ended = site.replayer_json(*named, "--resume", "--on-damage", "skip", check=3)
    assert {each["state"] for each in ended["topics"]} == {"restored"}
    assert ended["verdict"] == "WARNING"
    (skipped,) = (each["skipped"] for each in ended["topics"] if each["skipped"])
    assert "[20.." in skipped[0]
    assert ended["groups"] == {alone: 1, both: 2}
    assert any(f"group {both}: its position 25" in note and "next record" in note for note in ended["group_notes"])
    copied = read(site.bootstrap, f"new.{torn}", 0)
    assert [int(record.value.split()[2]) for record in copied if record.value] == [
        number for number in (*range(20), *range(40, 60)) if number % 7 != 3
    ]
    place = committed(site.bootstrap, both, f"new.{torn}", [0])[0]
    assert next(each.timestamp for each in copied if each.offset >= place) == records([40])[0].timestamp

    again = site.replayer_json(*named, "--resume", check=3)
    assert [(each["state"], each["records"]) for each in again["topics"]] == [
        (each["state"], each["records"]) for each in ended["topics"]
    ]
    assert again["group_notes"] == ["the groups were set by an earlier run"]


def test_a_restore_is_listed_and_undone_as_one_thing(archive: tuple[ArchiveWriter, Site], topic_name: str) -> None:
    """What others wrote to stays, and so does a group that has positions elsewhere."""
    writer, site = archive
    topics = [f"{topic_name}-{each}" for each in ("a", "b")]
    shared, own = f"{topic_name}-shared", f"{topic_name}-own"
    for topic in topics:
        writer.partition(topic, 0).commit(records(range(20)))
        groups = [Group(name, SLOT, (GroupPosition(0, 5, "m"),)) for name in (own, shared)]
        writer.put(
            dated_key(groups_home("topic", TopicFolder(topic)), SLOT), encode_groups(groups_of(*groups, topic=topic))
        )
    named = ("--map", r"(.*)=new.\1", "--name", topic_name, "--at", AT, "--yes", "-X", "compression.type=gzip")
    site.replayer("restore", *named, *site.kafka)
    listed = restore(site, "ls", "--json").expect(0).stdout
    (told,) = (each for each in json.loads(listed)["restores"] if each["restore"] == topic_name)
    assert (told["state"], told["topics_done"], told["topics_of"], told["groups"]) == ("complete", 2, 2, 2)
    produce(site.bootstrap, f"new.{topics[0]}", [NewRecord(b"foreign", partition=0)])
    commit(site.bootstrap, shared, f"new.{topics[0]}", {0: 1})

    copies = dataclasses.replace(site, address=f"{site.address}-copies")
    copies.once(*(f"new.{topic}" for topic in topics))
    undo = ("undo", topic_name, *copies.archive, *site.kafka)
    assert "--yes is not set" in restore(site, *undo).expect(2).stderr
    planned = json.loads(restore(site, *undo, "--dry-run", "--json").expect(3).stdout)
    assert ([each["topic"] for each in planned["topics"]], planned["groups"]) == ([f"new.{topics[1]}"], [own, shared])
    assert "holds records that are not in the job's run map" in planned["left"][0]
    done = restore(site, *undo, "--yes").expect(3)
    assert f"topic new.{topics[0]} stays" in done.stderr
    assert f"for the rest: replayer restore undo {topic_name}" in done.stdout
    there = topic_names(site.bootstrap)
    assert (f"new.{topics[0]}" in there, f"new.{topics[1]}" in there) == (True, False)
    assert set(group_names(site.bootstrap)) >= {shared, own}, "both have positions in what stays"

    assert f"1 partitions in {copies.address} are marked as undone" in done.stderr
    shutil.rmtree(Path(copies.address, f"topic=new.{topics[1]}"))
    gone = copies.replayer("ls", check=3).stderr.splitlines()
    assert gone[-1].startswith("gone: 1 partitions of undone restores;")
    assert not [line for line in gone if line.startswith("error")]

    delete_topic(site.bootstrap, f"new.{topics[0]}")
    wait_until(lambda: f"new.{topics[0]}" not in topic_names(site.bootstrap), 30, "the topic to be gone")
    restore(site, *undo, "--yes").expect(0)
    assert not {shared, own} & set(group_names(site.bootstrap))
    assert json.loads(restore(site, "status", topic_name, "--json").expect(0).stdout)["state"] == "undone"
    again = site.replayer("restore", "--resume", "--name", topic_name, "--yes", *site.kafka, check=3)
    assert "no longer exists in the target" in again.stderr
    assert not {f"new.{topic}" for topic in topics} & set(topic_names(site.bootstrap))


KEEPS = ("--topic-config", "retention.ms=-1")


def lose(site: Site, topic: str, number: int) -> None:
    """Make a chunk unreadable: its object holds zeros."""
    lost = sorted(Path(site.address, f"topic={topic}/partition=00000").rglob("*.gz"))[number]
    lost.write_bytes(bytes(lost.stat().st_size))


@pytest.mark.parametrize("kills", [False, True], ids=["ended", "killed"])
@pytest.mark.parametrize("command", ["replay", "restore"])
def test_what_was_skipped_before_an_interruption_is_in_the_last_report(
    archive: tuple[ArchiveWriter, Site], topic_name: str, command: str, kills: bool
) -> None:
    writer, site = archive
    partition = writer.partition(topic_name, 0)
    for start, end in ((0, 20), (20, 40), (40, 2000)):
        partition.commit(records(range(start, end)))
    lose(site, topic_name, 1)
    copy = f"new.{topic_name}"
    into = ("--at", AT, "--name", "r", "--map", r"(.*)=new.\1")
    if command == "replay":
        into = ("--to-topic", copy, "--create-topic", *KEEPS, "--transactional", "--job", "r")
    words = (command, topic_name, *into, "--on-damage", "skip", "--yes", "-X", "compression.type=gzip", *site.kafka)
    job = "r" if command == "replay" else topic_job("r", f"{topic_name}~1")
    noted = Path(site.env["XDG_STATE_HOME"], "blockgz", "jobs", job, "skipped")

    def has_passed() -> bool:
        there = copy in topic_names(site.bootstrap)
        return noted.exists() and there and watermarks(site.bootstrap, copy, 0)[1] > 500

    with start_program("replayer", *words, "--rate", "300/s", *site.archive, env=site.env) as running:
        running.wait_for(has_passed, 60, "records behind the damage")
        running.kill() if kills else running.terminate()
        running.wait(30)
    done = site.replayer_json(*words, "--resume", check=3)
    told = done if command == "replay" else done["topics"][0]
    first, last = told["skipped"][0], told["skipped"][-1]
    assert (first["from"], last["to"]) == (20, 40) if command == "replay" else "[20.." in first and "..40)" in last
    whole = site.replayer_json(*words, "--resume", check=3)
    assert (whole if command == "replay" else whole["topics"][0])["skipped"] == told["skipped"], "once more"


@pytest.mark.parametrize("mode", [("--transactional",), ()], ids=["transactional", "idempotent"])
def test_a_topic_whose_first_record_failed_is_deleted_again(
    archive: tuple[ArchiveWriter, Site], topic_name: str, mode: tuple[str, ...]
) -> None:
    writer, site = archive
    partition = writer.partition(topic_name, 0)
    for start in (0, 20):
        partition.commit(records(range(start, start + 20)))
    first, second, given = (f"{topic_name}-{each}" for each in ("first", "second", "given"))

    def replay(copy: str, *options: str, check: int) -> str:
        words = ("replay", topic_name, "--to-topic", copy, "--job", copy, "--yes", "-X", "compression.type=gzip")
        return site.replayer(*words, *mode, *options, *site.kafka, check=check).stderr

    create_topic(site.bootstrap, given, 1)
    lose(site, topic_name, 0)
    assert f"topic {first}, which this run created, was empty and is deleted again" in replay(
        first, "--create-topic", *KEEPS, check=3
    )
    assert "deleted again" not in replay(given, check=3)
    assert {first, given} & topic_names(site.bootstrap) == {given}
    jobs = json.loads(run("replayer", "jobs", "--json", env=site.env).stdout)["jobs"]
    assert first not in [each["job"] for each in jobs]
    replay(first, "--create-topic", *KEEPS, "--on-damage", "skip", check=3)
    assert first in topic_names(site.bootstrap)

    other = f"{topic_name}-other"
    partition = writer.partition(other, 0)
    for start in (0, 20):
        partition.commit(records(range(start, start + 20)))
    lose(site, other, 1)
    words = ("replay", other, "--to-topic", second, "--create-topic", *KEEPS, "--job", second, "--yes", *mode)
    failed = site.replayer(*words, "-X", "compression.type=gzip", *site.kafka, check=3)
    assert "deleted again" not in failed.stderr
    assert watermarks(site.bootstrap, second, 0)[1] >= 17, "what came before the damage stays"
