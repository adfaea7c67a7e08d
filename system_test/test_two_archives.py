"""Two archives of one cluster never share the partitions of a topic silently."""

import json
import sys
from pathlib import Path

import pytest

from system_test.support import hurried
from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, run
from system_test.support.topics import NewRecord, create_topic, produce

PARTITIONS = 4
RECORDS = 200
QUICK = ("--chunk-interval", "300ms", "-v")


@pytest.fixture
def sites(broker: KafkaBroker, tmp_path: Path, topic_name: str) -> tuple[Site, Site]:
    create_topic(broker.bootstrap, topic_name, PARTITIONS)
    records = [NewRecord(b"%d" % number, partition=number % PARTITIONS) for number in range(PARTITIONS * RECORDS)]
    produce(broker.bootstrap, topic_name, records)
    return folder_site(broker.bootstrap, tmp_path / "first"), folder_site(broker.bootstrap, tmp_path / "second")


def is_whole(site: Site, topic: str) -> bool:
    try:
        return all(site.marker(topic, number)["next_offset"] == RECORDS for number in range(PARTITIONS))
    except OSError:
        return False


def test_each_has_a_group_of_its_own(sites: tuple[Site, Site], topic_name: str) -> None:
    first, second = sites
    with first.start(topic_name, *QUICK) as one, second.start(topic_name, *QUICK) as two:
        one.wait_for(lambda: is_whole(first, topic_name), 60, "all in the first archive")
        two.wait_for(lambda: is_whole(second, topic_name), 60, "all in the second archive")
        one.terminate().expect(0)
        two.terminate().expect(0)
    groups = {site.marker(topic_name)["group_id"] for site in sites}
    assert groups == {json.loads(site.fetch("_archive.json"))["group_id"] for site in sites}
    assert len(groups) == 2


def test_a_group_of_another_archive_is_refused(sites: tuple[Site, Site], topic_name: str) -> None:
    first, second = sites
    shared = ("--group-id", topic_name)
    with first.start(topic_name, *QUICK, *shared) as one:
        one.wait_for(lambda: is_whole(first, topic_name), 60, "all in the first archive")
        one.terminate().expect(0)
    refused = second.run(topic_name, *QUICK, *shared, check=11)
    assert "another archive uses consumer group" in refused.stderr and "--group-id" in refused.stderr
    found = run("archiver", "doctor", topic_name, *shared, *second.kafka, *second.archive, "--json", check=1)
    assert [each["verdict"] for each in json.loads(found.stdout)["findings"] if each["check"] == "group"] == ["fail"]
    for options in ((*shared, "--takeover"), shared):
        with second.start(topic_name, *QUICK, *options) as two:
            two.wait_for(lambda: is_whole(second, topic_name), 60, "all in the second archive")
            two.wait_for(lambda: two.stderr.count(" claimed ") == PARTITIONS, 60, "the claims")
            two.terminate().expect(0)
    first.run(topic_name, *QUICK, *shared, check=11)


def test_one_that_comes_while_the_other_runs_is_found_by_both(sites: tuple[Site, Site], topic_name: str) -> None:
    """The second one takes over by an option; the first finds out by its commits, and says so."""
    first, second = sites
    shared = ("--group-id", topic_name)
    command = (sys.executable, "-m", hurried.__name__, "run", topic_name, *QUICK, *shared)
    with Running((*command, *first.kafka, *first.archive), None, None) as one:
        one.wait_for(lambda: is_whole(first, topic_name), 60, "all in the first archive")
        with second.start(topic_name, *QUICK, *shared, "--takeover") as two:
            two.wait_for(lambda: " claimed " in two.stderr, 60, "a partition of the other's")
            assert "another archive uses consumer group" in one.wait(90).expect(11).stderr
            two.wait_for(lambda: is_whole(second, topic_name), 60, "all in the second archive")
            two.terminate().expect(0)
