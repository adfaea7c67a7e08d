"""A drill on a real broker: a share is restored and proved, and nothing of it stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, fill_topic, topic_names
from tests.support.archives import ArchiveWriter, records

TOPICS, PARTITIONS, RECORDS = 3, 4, 50


@pytest.fixture
def site(broker: KafkaBroker, topic_name: str, tmp_path: Path) -> Site:
    """An archive of topics that the cluster does not have."""
    writer = ArchiveWriter(tmp_path / "archive")
    for topic in range(TOPICS):
        for partition in range(PARTITIONS):
            writer.partition(f"{topic_name}-{topic}", partition).commit(records(range(RECORDS)))
    return folder_site(broker.bootstrap, tmp_path / "archive")


def drill(site: Site, *options: object, check: int = 0) -> dict[str, Any]:
    done = site.replayer("drill", "--yes", "--json", *options, *site.kafka, check=check, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def made(site: Site, topic: str) -> set[str]:
    return {each for each in topic_names(site.bootstrap) if each.startswith(f"drill.{topic}")}


def test_a_share_is_proved_and_nothing_of_it_stays(site: Site, topic_name: str, tmp_path: Path) -> None:
    told = drill(site, "--sample", "50%", "--seed", "7", f"{topic_name}-*")
    assert (told["verdict"], told["partitions"], told["partitions_of"]) == ("SAMPLED", 6, TOPICS * PARTITIONS)
    assert told["records"] == 6 * RECORDS
    assert {each["proof"] for each in told["topics"]} == {"OK"}
    assert told["whole"]["records"] == TOPICS * PARTITIONS * RECORDS
    assert told["whole"]["seconds"] > told["seconds"]
    assert made(site, topic_name) == set()
    jobs = tmp_path / "state" / "blockgz" / "jobs"
    assert [each.name for each in jobs.iterdir() if each.is_dir() and any(each.rglob("*.json"))] == []
    again = drill(site, "--sample", "50%", "--seed", "7", f"{topic_name}-*")
    assert [each["partitions"] for each in again["topics"]] == [each["partitions"] for each in told["topics"]]


def test_damage_is_a_failure_and_what_was_made_is_removed_all_the_same(
    site: Site, topic_name: str, tmp_path: Path
) -> None:
    data = next((tmp_path / "archive" / f"topic={topic_name}-1" / "partition=00002").glob("*.gz"))
    body = bytearray(data.read_bytes())
    body[len(body) // 2] ^= 0xFF
    data.write_bytes(bytes(body))
    told = drill(site, "--sample", "100%", check=3)
    assert told["verdict"] == "FAILURE"
    assert any(f"{topic_name}-1" in text for text in told["skipped"])
    assert made(site, topic_name) == set()


def test_a_topic_of_somebody_else_is_not_touched(site: Site, topic_name: str) -> None:
    foreign = f"drill.{topic_name}-0"
    fill_topic(site.bootstrap, foreign, [NewRecord(b"mine")])
    told = drill(site, "--sample", "100%", check=3)
    assert any("exists" in text for text in told["lacks"])
    assert told["partitions"] == (TOPICS - 1) * PARTITIONS
    assert made(site, topic_name) == {foreign}
