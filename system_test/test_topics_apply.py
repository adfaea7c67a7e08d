"""`replayer topics` on a real broker: topics are compared with the archived ones, and made like them."""

import json
from typing import Any

import pytest

from system_test.support.archiving import Site
from system_test.support.programs import Completed
from system_test.support.topics import (
    NewRecord,
    add_partitions,
    alter_topic,
    create_topic,
    delete_topic,
    fill_topic,
    own_config,
    partition_count,
    topic_names,
)
from system_test.support.waiting import wait_until

CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "segment.bytes": "2000000"}


@pytest.fixture
def archived(site: Site, topic_name: str) -> str:
    """A topic of three partitions with settings of its own, and the archive of it."""
    fill_topic(
        site.bootstrap,
        topic_name,
        [NewRecord(b"%d" % n, b"k", n % 3) for n in range(9)],
        partitions=3,
        config=CONFIG | {"unclean.leader.election.enable": "true"},
    )
    site.once(topic_name)
    return topic_name


def diff(site: Site, *arguments: str, exit_code: int) -> dict[str, Any]:
    return site.replayer_json("topics", "diff", *arguments, *site.kafka, check=exit_code)


def apply(site: Site, *arguments: str, check: int = 0) -> Completed:
    return site.replayer("topics", "apply", *arguments, *site.kafka, check=check)


def gone(site: Site, topic: str) -> None:
    delete_topic(site.bootstrap, topic)
    wait_until(lambda: topic not in topic_names(site.bootstrap), 30, f"{topic} to be gone")


def test_a_topic_that_is_lost_is_made_again(site: Site, archived: str) -> None:
    told = diff(site, archived, exit_code=0)
    assert (told["equal"], told["topics"][0]["differences"]) == (True, [])
    gone(site, archived)
    assert diff(site, archived, exit_code=3)["topics"][0]["state"] == "missing"

    planned = apply(site, archived, "--dry-run")
    assert f"topic {archived} is created with 3 partitions and cleanup.policy=compact,delete" in planned.stderr
    assert "unclean.leader.election.enable=true belonged to the old brokers" in planned.stderr
    refused = apply(site, archived, check=2)
    assert "no topic was changed" in refused.stderr
    assert archived not in topic_names(site.bootstrap), "neither a dry run nor a refusal makes anything"

    done = apply(site, archived, "--yes", "--replication-factor", "1")
    assert "done, and read back as planned" in done.stdout
    made = own_config(site.bootstrap, archived)
    assert {name: made[name] for name in CONFIG} == CONFIG
    assert "unclean.leader.election.enable" not in made
    assert partition_count(site.bootstrap, archived) == 3
    assert diff(site, archived, exit_code=0)["equal"], "what was made is equal"
    assert "nothing is changed" in apply(site, archived, "--yes").stderr


def test_partitions_and_settings_that_differ_are_set_and_others_stay(site: Site, archived: str) -> None:
    gone(site, archived)
    other = {"cleanup.policy": "delete", "retention.ms": "-1", "flush.ms": "9000", "max.message.bytes": "2000000"}
    create_topic(site.bootstrap, archived, 2, other)
    told = diff(site, archived, exit_code=3)["topics"][0]
    assert told["partitions"] == {"archived": 3, "live": 2}
    assert {each["setting"]: (each["archived"], each["live"]) for each in told["differences"]} == {
        "partitions": ("3", "2"),
        "cleanup.policy": ("compact,delete", "delete"),
        "segment.bytes": ("2000000", "1073741824"),
        "flush.ms": (None, "9000"),
        "max.message.bytes": (None, "2000000"),
    }

    done = apply(site, archived, "--yes", "--ignore", "max.message.bytes")
    assert "flush.ms stays as only the live topic has it" in done.stderr
    assert "records of a key that come later" in done.stderr
    assert partition_count(site.bootstrap, archived) == 3
    assert own_config(site.bootstrap, archived) == other | {
        "cleanup.policy": "compact,delete",
        "segment.bytes": "2000000",
    }
    left = diff(site, archived, exit_code=3)["topics"][0]["differences"]
    assert [each["setting"] for each in left] == ["flush.ms", "max.message.bytes"]

    told = json.loads(apply(site, archived, "--yes", "--reset-extra", "--json").stdout)["topics"][0]
    assert (told["resets"], told["done"], told["failed"]) == (["flush.ms", "max.message.bytes"], True, [])
    assert own_config(site.bootstrap, archived) == CONFIG
    diff(site, archived, exit_code=0)


def test_partitions_are_never_removed(site: Site, archived: str) -> None:
    add_partitions(site.bootstrap, archived, 5)
    wait_until(lambda: partition_count(site.bootstrap, archived) == 5, 30, "partitions")
    told = diff(site, archived, exit_code=3)["topics"][0]["differences"]
    assert told == [{"setting": "partitions", "archived": "3", "live": "5"}]
    done = apply(site, archived, "--yes", "--reset-extra")
    assert "5 partitions stay, as none is removed" in done.stderr
    assert partition_count(site.bootstrap, archived) == 5


def test_what_the_cluster_refuses_stops_no_other_topic(site: Site, archived: str, topic_name: str) -> None:
    other = f"{topic_name}-z"
    fill_topic(site.bootstrap, other, [NewRecord(b"1", b"k")], config=CONFIG)
    site.once(other)
    gone(site, archived)
    alter_topic(site.bootstrap, other, {"segment.bytes": "3000000"})
    done = apply(site, archived, other, "--yes", "--replication-factor", "3", check=3)
    assert f"topic '{archived}' cannot be created" in done.stderr
    assert "replication factor" in done.stderr.lower()
    assert f"{other}: done, and read back" in done.stdout
    assert own_config(site.bootstrap, other)["segment.bytes"] == "2000000"
    assert archived not in topic_names(site.bootstrap)
