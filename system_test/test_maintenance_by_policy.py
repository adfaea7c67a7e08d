"""An archiver with a retention and compaction: chunks go and shrink while it archives, and every record is readable."""

import json
import re
import time

from system_test.support.archiving import Site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import run
from system_test.support.service import Service
from system_test.support.topics import NewRecord, create_topic, produce

SECONDS = 60
CHUNK = 10
OLD, RECORDS, MORE = 650, 2000, 100
POLICY = (
    *("--archive-retention", "10m", "--compact", "*", "--compact-chunks", "65"),
    *("--maintenance-interval", "500ms", "--chunk-records", str(CHUNK)),
)


def values(start: int, stop: int, timestamp: int) -> list[NewRecord]:
    return [NewRecord(b"value %d" % number, timestamp=timestamp) for number in range(start, stop)]


def test_an_archiver_maintains_what_it_archives(site: Site, broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name, 1)
    now = round(time.time() * 1000)
    produce(broker.bootstrap, topic_name, values(0, OLD, now - 3_600_000) + values(OLD, RECORDS, now))
    # Otherwise compaction would merge what is archived by then, and the rest would be too little for it.
    site.once(topic_name, "--group-id", topic_name, "--chunk-records", CHUNK)
    service = Service(site, topic_name, "--chunk-interval", "1s", *POLICY)
    with service.program as program:

        def maintenance() -> dict[str, object]:
            status, body = service.get("/status")
            return json.loads(body)["maintenance"] or {} if status == 200 else {}

        def is_maintained() -> bool:
            seen = maintenance()
            return seen.get("pruned_chunks") == 65 and int(str(seen.get("merged_chunks"))) >= 126

        program.wait_for(is_maintained, SECONDS, "old chunks are pruned, small ones merged")
        produce(broker.bootstrap, topic_name, values(RECORDS, RECORDS + MORE, now))
        service.wait_partition("more records are archived", durable_offset=RECORDS + MORE, stuck=None)
        seen = maintenance()
        assert (seen["retention_failures"], seen["compaction_failures"], seen["troubles"]) == (0, 0, [])
        metrics = service.get("/metrics")[1]
        assert "blockgz_pruned_chunks_total 65.0" in metrics
        assert re.search(r'blockgz_maintenance_age_seconds\{kind="compaction"\} \d', metrics)
        retired = re.search(r"blockgz_retired_rewrites\{.*\} (\d+)", metrics)
        assert retired is not None
        assert int(retired[1]) >= 2
        assert program.terminate().exit_code == 0
    maintained = site.marker(topic_name)["maintenance"]
    assert (maintained["pruned_before"], maintained["rewriting"]) == (OLD, None)
    (partition,) = json.loads(run("archiver", "status", *site.archive, "--json").stdout)["partitions"]
    assert partition["chunks"] <= (RECORDS + MORE) / CHUNK - 65 - 126
    assert partition["retired_chunks"] >= 64 + 128
    shown = site.replayer("cat", topic_name, "-f", "%o %s\n").stdout.splitlines()
    assert shown == [f"{offset} value {offset}" for offset in range(OLD, RECORDS + MORE)]
    site.replayer("verify", topic_name, "--deep")
