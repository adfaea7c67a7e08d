"""A point in time on many clocks: skewed records and backfills, restored and replayed by the commands."""

import json
import time
import uuid
from pathlib import Path

import pytest

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, create_topic, produce, read
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, records

MINUTE = 60_000
HOUR = 60 * MINUTE
T0 = 1_760_000_000_000 // HOUR * HOUR
AT = T0 + 50 * MINUTE
GZIP = ("-X", "compression.type=gzip")


@pytest.fixture
def skewed(broker: KafkaBroker, tmp_path: Path) -> Site:
    """1,000 records of an hour, the hundredth stamped 85 minutes ahead, and 100 old ones that were written later."""
    writer = ArchiveWriter(tmp_path / "archive").partition("orders", 0)
    for first in range(0, 1000, 100):
        stamps = [T0 + n * HOUR // 1000 + (85 * MINUTE if n == 100 else 0) for n in range(first, first + 100)]
        writer.commit(records(range(first, first + 100), timestamps=stamps), block_bytes=2000)
    writer.commit(records(range(1000, 1100), timestamps=[T0 - HOUR + n for n in range(100)]), block_bytes=2000)
    return folder_site(broker.bootstrap, tmp_path / "archive")


def test_a_skewed_record_and_a_backfill_are_named_and_need_a_choice(skewed: Site, tmp_path: Path) -> None:
    run = uuid.uuid4().hex[:6]
    restore = ("restore", "--at", f"@{AT}", "--yes", *GZIP, *skewed.kafka)

    def renamed(how: str) -> tuple[str, ...]:
        return ("--map", rf"(.*)={how}.{run}.\1", "--name", f"{how}-{run}")

    refused = skewed.replayer(*restore, *renamed("unsaid"), check=2)
    line = "ends before offset 834 (Kafka's rule: 100). 1 record stamped 2025-10-09T08:50:00Z or later is included"
    assert line in refused.stderr
    assert "100 records stamped before the time would be left out, from offset 1000 on" in refused.stderr
    assert "--at-rule majority" in refused.stderr
    assert "--at-rule first" in refused.stderr
    assert "--at-rule majority" in skewed.replayer(*restore, *renamed("unsaid"), "--dry-run", check=2).stderr
    told = skewed.replayer_json(*restore, *renamed("majority"), "--at-rule", "majority")
    assert (told["verdict"], told["records"]) == ("OK", 834)
    assert any(line in note for note in told["topics"][0]["notes"])
    assert skewed.replayer_json(*restore, *renamed("first"), "--at-rule", "first")["records"] == 100
    file = tmp_path / "plan.json"
    written = skewed.replayer(*restore, *renamed("edited"), "--plan", file)
    assert "look at the cuts in" in written.stderr
    plan = json.loads(file.read_bytes())
    assert plan["topics"][0]["cuts"] == {"0": 834}
    plan["topics"][0]["cuts"] = {"0": 500}
    file.write_text(json.dumps(plan))
    edited = ("restore", "--from-plan", file, "--yes", "--name", f"edited-{run}", *GZIP, *skewed.kafka)
    assert skewed.replayer_json(*edited)["records"] == 500
    resumed = ("restore", "--resume", "--name", f"edited-{run}", "--yes", *GZIP, *skewed.kafka)
    assert skewed.replayer_json(*resumed)["records"] == 500


def test_what_the_archiver_saw_of_the_log_decides(broker: KafkaBroker, site: Site) -> None:
    topic = f"events-{uuid.uuid4().hex[:6]}"
    create_topic(broker.bootstrap, topic)

    def archive(count: int, ahead: int = 0) -> int:
        now = time.time_ns() // 1_000_000
        produce(broker.bootstrap, topic, [NewRecord(b"%d" % n, timestamp=now + ahead) for n in range(count)])
        site.once(topic, "--groups-interval", "100ms", "--ends-interval", "100ms")
        return time.time_ns() // 1_000_000

    archive(10)
    at = archive(2000, ahead=45 * MINUTE) + 1100
    wait_until(lambda: time.time_ns() // 1_000_000 > at + 1100, 5, "the moment to pass")
    archive(1500)
    told = site.replayer_json(
        "restore", topic, "--at", f"@{at}", "--map", r"(.*)=decided.\1", "--yes", *GZIP, *site.kafka
    )
    assert (told["verdict"], told["records"]) == ("OK", 2010)
    assert len(read(broker.bootstrap, f"decided.{topic}", 0)) == 2010
    (line,) = (note for note in told["topics"][0]["notes"] if "Kafka's rule: 10" in note)
    assert "2000 records stamped" in line
    assert "The log's end was seen at" in line
