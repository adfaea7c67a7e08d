"""What was archived once and is gone is missed."""

import json
import shutil
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.programs import run
from system_test.support.topics import NewRecord, delete_topic, fill_topic
from tests.support.sampling import mostly_long

PARTITIONS = 6


def listed(site: Site) -> dict[tuple[str, int], dict[str, object]]:
    inventory = json.loads(site.fetch("_inventory.json"))
    return {(each["topic"], each["incarnation"]): each for each in inventory["incarnations"]}


@pytest.mark.parametrize("options", mostly_long([(), ("--workers", "3"), ("--single-writer",)]))
def test_every_partition_is_listed_and_a_lost_one_is_noticed(
    site: Site, topic_name: str, options: tuple[str, ...]
) -> None:
    rows = [NewRecord(b"%d" % number, partition=number) for number in range(4)]
    fill_topic(site.bootstrap, topic_name, rows, partitions=PARTITIONS)
    site.once(topic_name, *options)
    site.once(topic_name, *options)
    claimed = listed(site)[topic_name, 1]
    assert claimed["partitions"] == list(range(PARTITIONS)) and claimed["until"] is None and claimed["topic_id"]
    assert json.loads(site.fetch("_archive.json"))["inventory"] is True
    run("replayer", "verify", "--expect", topic_name, *site.archive, check=0)
    shutil.rmtree(Path(site.address) / f"topic={topic_name}" / "partition=00002")
    found = run("replayer", "verify", *site.archive, "--json", check=3)
    assert json.loads(found.stdout)["missing"] == [{"topic": topic_name, "incarnation": 1, "partition": 2}]
    for command in (("replayer", "ls"), ("replayer", "describe", topic_name)):
        assert f"{topic_name}:2 is missing" in run(*command, *site.archive, check=3).stderr
    assert "all of it is gone" in run("archiver", "status", *site.archive, check=3).stdout
    run("archiver", "forget", f"{topic_name}:2", "--yes", *site.archive, check=0)
    run("replayer", "verify", *site.archive, check=0)
    shutil.rmtree(Path(site.address) / f"topic={topic_name}")
    assert "FAILURE" in run("replayer", "verify", *site.archive, check=3).stdout


def test_a_topic_that_is_created_again_ends_the_incarnation_before(site: Site, topic_name: str) -> None:
    for _ in range(2):
        fill_topic(site.bootstrap, topic_name, [NewRecord(b"here")])
        site.once(topic_name)
        delete_topic(site.bootstrap, topic_name)
    first, second = listed(site)[topic_name, 1], listed(site)[topic_name, 2]
    assert first["until"] is not None and second["until"] is None
    assert first["topic_id"] != second["topic_id"]


def test_a_declared_inventory_that_was_deleted_is_rebuilt(site: Site, topic_name: str) -> None:
    fill_topic(
        site.bootstrap, topic_name, [NewRecord(b"%d" % number, partition=number) for number in range(2)], partitions=2
    )
    site.once(topic_name)
    (Path(site.address) / "_inventory.json").unlink()
    run("replayer", "verify", *site.archive, check=3)
    assert " inventory_rebuilt " in site.run(topic_name, "--once").stderr
    assert listed(site)[topic_name, 1]["partitions"] == [0, 1]
    assert "was rebuilt from a listing" in run("replayer", "verify", *site.archive, check=0).stdout
