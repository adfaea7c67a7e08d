"""SIGKILL at random moments: whoever comes next goes on, and in the end every record stands exactly once, in order."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from system_test.support.archiving import Site, store_site
from system_test.support.bulk import produce_bulk
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import create_topic
from system_test.support.waiting import wait_until
from tests.support.sampling import LONG

PARTITIONS = 4
CHUNK_RECORDS = 200
SMALL_CHUNKS = ("--once", "--chunk-records", str(CHUNK_RECORDS), "--block-bytes", "4KiB")
STARTING_SECONDS = 1.0
JITTER_SECONDS = 0.03
POLL_SECONDS = 0.005
S3_POLL_SECONDS = 0.05
"""A server of Python's that is asked all the time has no time for the archiver."""

CountIndexes = Callable[[], int]
"""How many chunk indexes are stored, those that no marker leads to among them."""


def test_killed_again_and_again_while_archiving(site: Site, topic_name: str, tmp_path: Path) -> None:
    home = tmp_path / "archive" / f"topic={topic_name}"
    records, kills = (100_000, 20) if LONG else (30_000, 4)
    kill_again_and_again(site, topic_name, records, kills, lambda: sum(1 for _ in home.glob("*/*.index.json")))


def test_killed_while_archiving_to_s3(broker: KafkaBroker, moto: MotoServer, topic_name: str) -> None:
    site = store_site(broker.bootstrap, moto, topic_name)
    prefix = f"{topic_name}/topic={topic_name}/"

    def count() -> int:
        return sum(key.endswith(".index.json") for key in moto.keys(prefix))

    kill_again_and_again(site, topic_name, 5_000, 3, count, S3_POLL_SECONDS)


def test_asked_to_end_while_draining(site: Site, topic_name: str, tmp_path: Path) -> None:
    """Where the grace does not suffice for all that is left, it says so, and does not look like success."""
    records = 20_000
    create_topic(site.bootstrap, topic_name, 1)
    produce_bulk(site.bootstrap, topic_name, records, partitions=1, value_bytes=100, seed=1)
    home = tmp_path / "archive" / f"topic={topic_name}"
    with site.start(topic_name, *SMALL_CHUNKS, "--grace", "100ms", "--json") as archiver:
        wait_until(lambda: any(home.glob("*/*.index.json")), 60, "a chunk", longest_pause=POLL_SECONDS)
        done = archiver.terminate()
    assert done.exit_code == 143, done.transcript
    assert f"1 of 1 partitions were drained ({topic_name}:0)" in done.stderr
    (partition,) = json.loads(done.stdout)["partitions"]
    assert partition["drained"] is False
    assert partition["records"] == (partition["next_offset"] or 0) < records
    (rest,) = site.once(topic_name)["partitions"]
    # A commit that was on its way as the grace ended may have arrived after the report.
    assert rest["drained"]
    assert records - partition["records"] - CHUNK_RECORDS <= rest["records"] <= records - partition["records"]
    assert len(site.exact(topic_name).records) == records


def kill_again_and_again(
    site: Site, topic: str, records: int, kills: int, count: CountIndexes, poll_seconds: float = POLL_SECONDS
) -> None:
    """Most kills come once a random share of the chunks is stored, a quarter of them while the archiver starts."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    create_topic(site.bootstrap, topic, PARTITIONS)
    produce_bulk(site.bootstrap, topic, records, partitions=PARTITIONS, value_bytes=100, seed=seed)
    chunks = records // CHUNK_RECORDS
    starts = kills // 4
    shares = sorted(randomly.randrange(chunks * 9 // 10) for _ in range(kills - starts))
    lives: list[int | None] = [*shares]
    for _ in range(starts):
        lives.insert(randomly.randrange(len(lives) // 2), None)
    for stored in lives:
        live_and_die(site, topic, stored, randomly, count, poll_seconds)

    site.run(topic, *SMALL_CHUNKS, timeout=120)
    checked = [site.exact(topic, partition) for partition in range(PARTITIONS)]
    assert [len(each.records) for each in checked] == [records // PARTITIONS] * PARTITIONS
    assert [each.gaps for each in checked] == [[]] * PARTITIONS
    assert all(each.marker["epoch"] > kills // 4 for each in checked), "most lives came as far as their claim"
    print(f"{count() - sum(len(each.entries) for each in checked)} orphans beside {chunks} chunks or more")
    assert site.replayer_json("verify", topic, "--deep", "--records")["verdict"] == "OK"
    report = site.replayer_json("verify", topic, "--against-topic", topic, *site.kafka)
    assert (report["verdict"], report["records"]) == ("OK", records)


def live_and_die(
    site: Site, topic: str, stored: int | None, randomly: random.Random, count: CountIndexes, poll_seconds: float
) -> None:
    """One life of the archiver: up to `stored` indexes and at least one more, or some moment of its start for None."""
    with site.start(topic, *SMALL_CHUNKS) as archiver:
        lifetime = STARTING_SECONDS if stored is None else JITTER_SECONDS
        if stored is not None:
            goal = max(stored, count() + 1)
            wait_until(lambda: count() >= goal or not archiver.alive, 60, "progress", longest_pause=poll_seconds)
        moment = time.monotonic() + randomly.uniform(0, lifetime)
        wait_until(lambda: time.monotonic() >= moment, 60, "the moment", longest_pause=POLL_SECONDS)
        done = archiver.kill()
    assert done.exit_code == -9, f"it ended by itself\n{done.transcript}"


pytestmark = pytest.mark.timeout(240, func_only=True)
