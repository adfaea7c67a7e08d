"""Lost objects of an archive: read from a real broker again, or accepted as lost, beside a running archiver."""

import json
from pathlib import Path
from typing import Any

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Completed, run
from system_test.support.topics import NewRecord, create_topic, delete_records, produce

BEGAN = 1_760_000_000_000
CHUNKS, CHUNK = 4, 50


def archived(site: Site, broker: KafkaBroker, topic: str) -> None:
    for start in range(0, CHUNKS * CHUNK, CHUNK):
        rows = [NewRecord(b"value %d" % n, key=b"k%d" % n, timestamp=BEGAN + n) for n in range(start, start + CHUNK)]
        produce(broker.bootstrap, topic, rows)
        site.run(topic, "--once")


def repair(site: Site, command: str, *arguments: object, check: int | None = 0) -> Completed:
    return run("archiver", "repair", command, *arguments, *site.archive, check=check)


def plan(site: Site, command: str, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(repair(site, command, *arguments, "--dry-run", "--json").stdout)
    return found


def data_of(root: Path, number: int) -> Path:
    return sorted(root.glob("topic=*/partition=*/*.gz"))[number]


def offsets(site: Site, topic: str) -> list[int]:
    lines = site.replayer("cat", topic, "--json").stdout.splitlines()
    return [json.loads(line)["offset"] for line in lines]


def test_lost_records_come_back_or_are_accepted_while_an_archiver_runs(
    broker: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    root, topic = tmp_path / "archive", topic_name
    site = folder_site(broker.bootstrap, root)
    create_topic(broker.bootstrap, topic, 1)
    archived(site, broker, topic)
    everything = list(range(CHUNKS * CHUNK))
    place = f"{topic}:0"

    # The bytes are wrong, so that nothing has to wait for a second answer of the store.
    for number in (1, 3):
        damaged = bytearray(data_of(root, number).read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        data_of(root, number).write_bytes(damaged)
    site.replayer("verify", "--deep", check=3)
    refused = repair(site, "accept-loss", place, *site.kafka, "--dry-run", check=None)
    assert "repair refetch" in refused.stderr
    with site.start(topic, "--chunk-interval", "1s") as archiver:
        rows = plan(site, "refetch", place, *site.kafka)["lost"]
        assert {row["result"] for row in rows} == {"comes back"}
        repair(site, "refetch", place, *site.kafka, "--yes")
        produce(broker.bootstrap, topic, [NewRecord(b"later", timestamp=BEGAN + 1000)])
        archiver.wait_for(lambda: site.marker(topic)["next_offset"] > len(everything), 60)
        archiver.terminate().expect(0)
    everything.append(CHUNKS * CHUNK)
    site.run(topic, "--once")
    site.replayer("verify", "--records")
    assert offsets(site, topic) == everything
    site.replayer("verify", topic, "--against-topic", topic, *site.kafka)

    lost = data_of(root, 0)
    start = int(lost.name[:20])
    damaged = bytearray(lost.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    lost.write_bytes(damaged)
    delete_records(broker.bootstrap, topic, CHUNK)
    (row,) = plan(site, "accept-loss", place, *site.kafka)["lost"]
    repair(site, "accept-loss", f"{place}:{row['from']}-{row['to']}", *site.kafka, "--yes")
    assert start == 0
    assert offsets(site, topic) == [at for at in everything if not row["from"] <= at < row["to"]]
    verified = site.replayer_json("verify", "--deep")
    assert verified["verdict"] == "WARNING"
    site.run(topic, "--once")
