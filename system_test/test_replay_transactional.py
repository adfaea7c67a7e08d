"""Replays on a real broker: exactly once over kills, fencing, pauses and brokers that do not answer."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from system_test.replay_kills.killing import prepare, replay_and_kill
from system_test.support.archiving import Site
from system_test.support.bulk import FIRST_MS
from system_test.support.programs import Running, start
from system_test.support.topics import NewRecord, Record, create_topic, produce, read, watermarks
from tests.support.sampling import LONG

GZIP = ("-X", "compression.type=gzip")
"""The foreign client reads no lz4."""
SLOW = ("--rate", "200/s")
RECORDS = 2000


@pytest.fixture
def copy(site: Site, topic_name: str) -> str:
    """An archived topic of two partitions, and an empty one to replay it to."""
    create_topic(site.bootstrap, topic_name, 2)
    add(site, topic_name, 0, RECORDS)
    create_topic(site.bootstrap, f"{topic_name}-copy", 2)
    return f"{topic_name}-copy"


def add(site: Site, topic: str, first: int, count: int) -> None:
    """Produces more records, a quarter of them to partition 1, and archives them."""
    made = [
        NewRecord(b"%d" % number, b"k", int(number % 4 == 3), timestamp=FIRST_MS + number)
        for number in range(first, first + count)
    ]
    produce(site.bootstrap, topic, made)
    site.once(topic)


def command(site: Site, topic: str, copy: str, *options: str) -> list[str]:
    fixed = ("replay", topic, "--to-topic", copy, "--yes", "--json", *GZIP)
    return [*fixed, *options, *site.kafka, *site.archive]


def replaying(site: Site, topic: str, copy: str, *options: str) -> Running:
    return start("replayer", *command(site, topic, copy, *options), env=site.env)


def replayed(site: Site, topic: str, copy: str, *options: str, check: int = 0) -> dict[str, Any]:
    with replaying(site, topic, copy, *options) as program:
        done = program.wait(120).expect(check)
    result: dict[str, Any] = json.loads(done.stdout) if check in (0, 130) else {"stderr": done.stderr}
    return result


def contents(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [(record.timestamp, record.key, record.value, record.headers) for record in records]


def same(site: Site, topic: str, copy: str) -> None:
    """A reader of committed records finds in the copy what stands in the topic, once and in order."""
    for partition in range(2):
        wanted = contents(read(site.bootstrap, topic, partition))
        assert contents(read(site.bootstrap, copy, partition)) == wanted, f"partition {partition}"


def logged(site: Site, copy: str) -> int:
    return sum(watermarks(site.bootstrap, copy, partition)[1] for partition in range(2))


def test_killed_again_and_again_while_replaying(site: Site, topic_name: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    records, kills = (100_000, 5) if LONG else (25_000, 2)
    prepare(site, topic_name, records, seed)
    outcome = replay_and_kill(site, topic_name, f"{topic_name}-copy", records, kills, seed)
    print(outcome)
    assert (outcome.lost, outcome.doubled, outcome.out_of_order) == (0, 0, 0)
    assert outcome.kills > kills // 2
    assert outcome.last_run["complete"]
    assert outcome.last_run["records"] + outcome.last_run["records_before"] == records


def test_a_second_run_fences_the_first(site: Site, topic_name: str, copy: str) -> None:
    with replaying(site, topic_name, copy, "--transactional", *SLOW) as zombie:
        zombie.wait_for(lambda: logged(site, copy) > 0, 60, "the first records")
        second = replayed(site, topic_name, copy, "--transactional", "--resume")
        done = zombie.wait(90).expect(11)
    assert "another run of the same job has started" in done.stderr
    assert second["complete"]
    assert second["records"] + second["records_before"] == RECORDS
    same(site, topic_name, copy)
    again = replayed(site, topic_name, copy, "--transactional", "--resume")
    assert (again["records"], again["records_before"], again["complete"]) == (0, RECORDS, True)
    told = replayed(site, topic_name, copy, "--transactional", check=2)
    assert "is complete" in told["stderr"]
    same(site, topic_name, copy)


@pytest.mark.parametrize("mode", [("--transactional",), ()], ids=["transactional", "idempotent"])
def test_ended_and_gone_on_with(site: Site, topic_name: str, copy: str, tmp_path: Path, mode: tuple[str, ...]) -> None:
    """SIGTERM ends at a commit, and nothing that the archive takes in meanwhile belongs to the job."""
    kept = (*mode, "--jobs", str(tmp_path / "jobs"))
    with replaying(site, topic_name, copy, *kept, *SLOW) as program:
        program.wait_for(lambda: logged(site, copy) > 100, 60, "some records")
        program.signal(signal.SIGTERM)
        first = json.loads(program.wait(60).expect(143).stdout)
    assert not first["complete"]
    assert 0 < first["records"] < RECORDS
    wanted = {partition: contents(read(site.bootstrap, topic_name, partition)) for partition in range(2)}
    add(site, topic_name, RECORDS, 100)
    told = replayed(site, topic_name, copy, *kept, check=2)
    assert "--resume" in told["stderr"]
    second = replayed(site, topic_name, copy, *kept, "--resume")
    assert (second["records_before"], second["complete"]) == (first["records"], True)
    assert second["records"] == RECORDS - first["records"]
    assert {partition: contents(read(site.bootstrap, copy, partition)) for partition in range(2)} == wanted


def test_another_selection_or_another_history_is_not_gone_on_with(site: Site, topic_name: str, copy: str) -> None:
    named = ("--transactional", "--job", topic_name)
    replayed(site, topic_name, copy, *named, "--to", "10")
    told = replayed(site, topic_name, copy, *named, "--resume", "--to", "20", check=2)
    assert "not the replay that the job started with" in told["stderr"]
    told = replayed(site, topic_name, copy, "--transactional", "--job", "unheard-of", "--resume", check=2)
    assert "nothing is recorded for job unheard-of" in told["stderr"]
    assert sum(len(read(site.bootstrap, copy, partition)) for partition in range(2)) == 20


def test_paused_and_gone_on_with_by_signal(site: Site, topic_name: str, copy: str) -> None:
    with replaying(site, topic_name, copy, "--transactional", "--rate", "400/s") as program:
        program.wait_for(lambda: logged(site, copy) > 0, 60, "the first records")
        program.signal(signal.SIGUSR1)
        program.wait_for(lambda: '"status":"paused"' in program.stderr, 10, "the pause")
        program.wait_for(lambda: all_committed(site, copy), 20, "a commit")
        held = logged(site, copy)
        assert held < RECORDS
        program.signal(signal.SIGUSR2)
        program.wait_for(lambda: logged(site, copy) > held, 20, "more records")
        result = json.loads(program.wait(60).expect(0).stdout)
    assert result["complete"]
    same(site, topic_name, copy)


def all_committed(site: Site, copy: str) -> bool:
    """Whether no transaction is open: what is read is committed, up to the log's end."""
    return all(
        len(read(site.bootstrap, copy, partition)) == len(read(site.bootstrap, copy, partition, committed=False))
        for partition in range(2)
    )
