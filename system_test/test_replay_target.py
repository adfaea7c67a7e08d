"""Where a replay puts records and what it does to the target topic, on a real broker; Java's own client judges keys."""

import json
import random
import time
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.java_clients import produced_partitions
from system_test.support.programs import Completed, start
from system_test.support.topics import (
    NewRecord,
    alter_topic,
    create_topic,
    fill_topic,
    own_config,
    partition_count,
    read,
    topic_names,
    watermarks,
)

SEED = 20261121
HOUR = 3_600_000
AS_GZIP = ("--topic-config", "compression.type=gzip")
"""The foreign client cannot read what the product compresses by default."""
HOURS_OF_RETENTION = {"retention.ms": str(24 * HOUR)}


def replay(site: Site, topic: str, target: str, *options: object, check: int | None = 0) -> Completed:
    return site.replayer("replay", topic, "--to-topic", target, "--yes", *options, *site.kafka, check=check)


def archived(
    site: Site, topic: str, records: list[NewRecord], partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """A topic with these records, and the archive of it."""
    fill_topic(site.bootstrap, topic, records, partitions=partitions, config=config)
    site.once(topic)


def old_records(count: int, age_ms: int = 48 * HOUR) -> list[NewRecord]:
    then = time.time_ns() // 1_000_000 - age_ms
    return [NewRecord(b"%d" % number, timestamp=then + number) for number in range(count)]


def written_down(site: Site) -> list[Path]:
    return list(Path(site.env["XDG_STATE_HOME"]).glob("blockgz/retention/*.json"))


def test_by_key_puts_every_key_where_java_does(site: Site, topic_name: str) -> None:
    chance = random.Random(SEED)
    keys = [b"", b"a", "Zürich".encode(), bytes(range(256)), chance.randbytes(5000)]
    keys += [chance.randbytes(chance.randrange(1, 40)) for _ in range(300)]
    records = [NewRecord(b"%d" % n, key=keys[n % len(keys)], partition=n % 3) for n in range(3 * len(keys))]
    records += [NewRecord(b"no key %d" % n, partition=1) for n in range(20)]
    archived(site, topic_name, records, partitions=3)
    target, judge = f"{topic_name}-copy", f"{topic_name}-java"

    replay(site, topic_name, target, "--create-topic", "--partitions", "by-key:7", *AS_GZIP)
    create_topic(site.bootstrap, judge, 7)
    places = dict(zip(keys, produced_partitions(site.bootstrap, judge, keys), strict=True))

    copied = {partition: read(site.bootstrap, target, partition) for partition in range(7)}
    assert sum(map(len, copied.values())) == len(records)
    assert [p for p, rows in copied.items() for r in rows if r.key is not None and places[r.key] != p] == []
    for source in range(3):
        originals = read(site.bootstrap, topic_name, source)
        for rows in copied.values():
            values = {record.value for record in rows}
            mine = [record.value for record in originals if record.value in values]
            own = set(mine)
            assert [record.value for record in rows if record.value in own] == mine, f"seed {SEED}, order of {source}"
    assert all(any(r.key is None for r in rows) for rows in copied.values()), "records without a key are spread"


def test_a_topic_is_made_like_the_archived_one(site: Site, topic_name: str) -> None:
    records = [NewRecord(b"%d" % n, key=b"%d" % n, partition=n % 3) for n in range(30)]
    config = {"cleanup.policy": "compact", "max.message.bytes": "2000000", "segment.bytes": "2000000"}
    archived(site, topic_name, records, 3, config)
    plan = site.replayer(
        *("replay", topic_name, "--to-topic", "{topic}-copy", "--create-topic", "--dry-run", *site.kafka)
    )
    assert "is created with 3 partitions" in plan.stderr
    assert f"{topic_name}-copy" not in topic_names(site.bootstrap), "a dry run makes nothing"

    for more in ((), ("--dry-run",)):
        wrong = ("--create-topic", "--topic-config", "no.such=1", *more)
        refused = replay(site, topic_name, "{topic}-copy", *wrong, check=2)
        assert "cannot be created" in refused.stderr
        assert "no.such" in refused.stderr
    assert f"{topic_name}-copy" not in topic_names(site.bootstrap)

    replay(site, topic_name, "{topic}-copy", "--create-topic", "--topic-config", "segment.bytes=3000000")
    target = f"{topic_name}-copy"
    assert partition_count(site.bootstrap, target) == 3
    config = own_config(site.bootstrap, target)
    wanted = {"cleanup.policy": "compact", "max.message.bytes": "2000000", "segment.bytes": "3000000"}
    assert {name: config[name] for name in wanted} == wanted
    assert config["retention.ms"] == "-1", "as the source had it"
    report = site.replayer_json("verify", topic_name, "--against-topic", target, *site.kafka)
    assert (report["verdict"], report["records"]) == ("OK", 30)


def test_records_above_the_limit_that_the_topic_has_now(site: Site, topic_name: str) -> None:
    """A topic that is created takes them and gets its own limit last; one that exists is not written to at all."""
    noise = random.Random(SEED)
    records = [NewRecord(noise.randbytes(200_000 if n == 3 else 100), key=b"%d" % n) for n in range(10)]
    fill_topic(site.bootstrap, topic_name, records)
    alter_topic(site.bootstrap, topic_name, {"max.message.bytes": "100000"})
    site.once(topic_name)
    target = f"{topic_name}-copy"
    done = replay(site, topic_name, target, "--create-topic")
    assert f"{target} has max.message.bytes=" in done.stderr
    assert watermarks(site.bootstrap, target) == (0, 10)
    assert own_config(site.bootstrap, target)["max.message.bytes"] == "100000"
    assert written_down(site) == []

    create_topic(site.bootstrap, f"{target}-2", 1, {"max.message.bytes": "100000"})
    refused = replay(site, topic_name, f"{target}-2", check=2)
    assert "partition 0, offset 3 takes" in refused.stderr
    assert watermarks(site.bootstrap, f"{target}-2") == (0, 0)
    before = replay(site, topic_name, f"{target}-2", "--to", "3", "--json")
    assert json.loads(before.stdout)["records"] == 3


@pytest.mark.parametrize("before", [HOURS_OF_RETENTION, {}], ids=["own", "of-the-cluster"])
def test_retention_is_held_and_set_back(site: Site, topic_name: str, before: dict[str, str]) -> None:
    archived(site, topic_name, old_records(50, age_ms=30 * 24 * HOUR))
    target = f"{topic_name}-copy"
    # Without a setting of its own it has the broker's: seven days.
    create_topic(site.bootstrap, target, 1, before or {"retention.ms": None})
    was = own_config(site.bootstrap, target)
    assert was.get("retention.ms") == before.get("retention.ms")

    refused = replay(site, topic_name, target, check=2)
    assert "would delete the records" in refused.stderr
    assert "--retention hold" in refused.stderr
    assert (own_config(site.bootstrap, target), watermarks(site.bootstrap, target)) == (was, (0, 0))

    done = replay(site, topic_name, target, "--retention", "hold", "--json")
    assert json.loads(done.stdout)["records"] == 50
    assert "restored" in done.stderr
    assert own_config(site.bootstrap, target) == was
    assert written_down(site) == []


@pytest.mark.parametrize("how", ["undo", "resume"])
def test_a_killed_replay_leaves_a_retention_that_can_be_set_back(site: Site, topic_name: str, how: str) -> None:
    archived(site, topic_name, old_records(2000))
    target = f"{topic_name}-copy"
    create_topic(site.bootstrap, target, 1, HOURS_OF_RETENTION)
    was = own_config(site.bootstrap, target)
    options = ("replay", topic_name, "--to-topic", target, "--yes", "--transactional", "--retention", "hold")
    slowly = (*options, "--rate", "100/s", *site.kafka, *site.archive)
    with start("replayer", *slowly, env=site.env) as running:
        running.wait_for(lambda: watermarks(site.bootstrap, target)[1] > 0, 60, "the first records")
        running.kill()
    during = own_config(site.bootstrap, target)
    assert (during["retention.ms"], during["retention.bytes"]) == ("-1", "-1")
    assert len(written_down(site)) == 1

    if how == "undo":
        done = site.replayer("replay", topic_name, "--to-topic", target, "--undo-retention", *site.kafka)
        assert "restored: retention.ms=86400000" in done.stdout
        again = site.replayer("replay", topic_name, "--to-topic", target, "--undo-retention", *site.kafka)
        assert "is not lifted" in again.stdout
    else:
        site.replayer(*options, "--resume", *site.kafka)
        assert watermarks(site.bootstrap, target)[1] >= 2000
    assert own_config(site.bootstrap, target) == was
    assert written_down(site) == []
