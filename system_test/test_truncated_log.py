"""A partition whose log lost records that were archived, as after an unclean leader election: how it goes on."""

import json
from pathlib import Path

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Completed, run
from system_test.support.topics import NewRecord, create_topic, produce

BEGAN = 1_760_000_000_000
ARCHIVED = 200
"""In two chunks."""
KEPT = 150
"""So much of it is in the log that comes after."""
WRITTEN = 300


def fill(broker: KafkaBroker, topic: str, start: int, stop: int, word: str = "value") -> None:
    rows = [NewRecord(b"%s %d" % (word.encode(), n), timestamp=BEGAN + n) for n in range(start, stop)]
    produce(broker.bootstrap, topic, rows)


def diverged(site: Site, topic: str, how: str) -> Completed:
    return run("archiver", "repair", "diverged", topic, how, *site.kafka, *site.archive)


def value_at(site: Site, topic: str, offset: int) -> str:
    (line,) = site.replayer("get", f"{topic}:0:{offset}", "--json").stdout.splitlines()
    value: str = json.loads(line)["value"]
    return value


def test_it_continues_where_log_and_archive_agree_and_readers_see_one_partition(
    own_broker: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    broker, topic = own_broker, topic_name
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    create_topic(broker.bootstrap, topic, 1)
    for start in range(0, ARCHIVED, 100):
        fill(broker, topic, start, start + 100)
        site.run(topic, "--once")
    broker.stop()
    broker.lose_log(topic)
    broker.start()
    fill(broker, topic, 0, KEPT)
    fill(broker, topic, KEPT, WRITTEN, "other")

    refused = site.run(topic, "--once", check=1)
    assert "is not the one that was archived" in refused.stderr
    plan = diverged(site, topic, "--dry-run")
    assert f"continues in {topic}~2 from offset 100; 100 records" in plan.stdout
    diverged(site, topic, "--yes")
    site.run(topic, "--once")

    assert [value_at(site, topic, offset) for offset in (0, 99, 100, 149, 150, 299)] == [
        *("value 0", "value 99", "value 100", "value 149", "other 150", "other 299")
    ]
    assert value_at(site, f"{topic}~1", 199) == "value 199", "what the log lost stays readable"
    printed = site.replayer("cat", topic, "--json").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in printed] == list(range(WRITTEN))
    site.replayer("verify", topic, "--records")
    site.replayer("verify", topic, "--against-topic", topic, *site.kafka)
    assert "nothing to repair" in diverged(site, topic, "--dry-run").stderr
