"""`archiver run --once --workers N`: several processes drain a share of the partitions each, and report as one."""

import json
import os
import signal
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.bulk import produce_bulk
from system_test.support.topics import create_topic
from system_test.support.waiting import wait_until

PARTITIONS = 5
RECORDS = 20_000
SMALL_CHUNKS = ("--chunk-records", "200", "--block-bytes", "4KiB")


def filled(site: Site, topic: str) -> str:
    create_topic(site.bootstrap, topic, PARTITIONS)
    produce_bulk(site.bootstrap, topic, RECORDS, partitions=PARTITIONS, value_bytes=100, seed=1)
    return topic


def forks(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_all_partitions_in_one_report(site: Site, topic_name: str) -> None:
    """More workers than one topic has partitions for, so that some have nothing to do."""
    topics = [filled(site, topic_name), f"{topic_name}-small"]
    create_topic(site.bootstrap, topics[1], 1)
    done = site.once(*topics, "--workers", "7")
    found = [(each["topic"], each["partition"], each["drained"], each["error"]) for each in done["partitions"]]
    assert found == [*((topics[0], number, True, None) for number in range(PARTITIONS)), (topics[1], 0, True, None)]
    assert done["records"] == RECORDS
    assert [len(site.exact(topics[0], number).records) for number in range(PARTITIONS)] == [
        each["records"] for each in done["partitions"][:-1]
    ]
    again = site.once(*topics, "--workers", "2")
    assert (again["records"], {each["drained"] for each in again["partitions"]}) == (0, {True})


def test_one_that_is_killed_is_named_and_another_run_continues(site: Site, topic_name: str, tmp_path: Path) -> None:
    home = tmp_path / "archive" / f"topic={filled(site, topic_name)}"
    with site.start(topic_name, "--once", "--workers", "2", *SMALL_CHUNKS, "--json") as archiver:
        wait_until(lambda: any(home.glob("*/*.index.json")), 60, "a chunk", longest_pause=0.005)
        os.kill(forks(archiver.pid)[1], signal.SIGKILL)
        done = archiver.wait(60)
    assert done.exit_code == 3, done.transcript
    assert "worker 1 was killed by SIGKILL before it had drained its partitions" in done.stderr
    told = json.loads(done.stdout)["partitions"]
    assert {each["drained"] for each in told} == {True}
    assert 0 < len(told) < PARTITIONS
    rest = site.once(topic_name, "--workers", "2")
    assert len(rest["partitions"]) == PARTITIONS
    assert sum(len(site.exact(topic_name, number).records) for number in range(PARTITIONS)) == RECORDS


@pytest.mark.parametrize("workers", [1, 2])
def test_asked_to_end_they_end_in_order(site: Site, topic_name: str, tmp_path: Path, workers: int) -> None:
    """Where the grace does not suffice for all that is left, a run says so, and does not look like success."""
    home = tmp_path / "archive" / f"topic={filled(site, topic_name)}"
    ended = ("--workers", workers, "--grace", "100ms", "--json")
    with site.start(topic_name, "--once", *SMALL_CHUNKS, *ended) as archiver:
        wait_until(lambda: any(home.glob("*/*.index.json")), 60, "a chunk", longest_pause=0.005)
        done = archiver.terminate()
    assert done.exit_code == 143, done.transcript
    assert "the run ended before" in done.stderr
    if workers == 1:
        told = json.loads(done.stdout)["partitions"]
        assert not all(each["drained"] for each in told) and sum(each["records"] for each in told) < RECORDS
    site.once(topic_name)
    assert sum(len(site.exact(topic_name, number).records) for number in range(PARTITIONS)) == RECORDS


@pytest.mark.parametrize("workers", [1, 2])
def test_a_topic_that_is_missing_keeps_no_other_from_being_drained(site: Site, topic_name: str, workers: int) -> None:
    create_topic(site.bootstrap, topic_name, 2)
    produce_bulk(site.bootstrap, topic_name, 2, partitions=2, value_bytes=20, seed=1)
    missing = f"{topic_name}-later"
    done = site.run(topic_name, missing, "--once", "--workers", workers, check=3)
    assert f"the cluster has no topic {missing}" in done.stderr
    assert done.stderr.count(" topic_missing ") == 1
    assert [len(site.exact(topic_name, number).records) for number in range(2)] == [1, 1]


def test_what_keeps_all_of_them_from_starting_is_reported_once(site: Site, topic_name: str) -> None:
    done = site.run(f"{topic_name}-not-there", "--once", "--workers", "3", "--json", check=2)
    assert (done.stdout, done.stderr.count("error:")) == ("", 1)
