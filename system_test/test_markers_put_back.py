"""What verify says of an archive that is being written, and of one whose marker was put back afterwards."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.errors import Verdict
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from replayer.verify.report import Depth, PartitionFindings
from replayer.verify.verifying import verify_partition
from system_test.support.archiving import Site
from system_test.support.bulk import produce_bulk
from system_test.support.topics import create_topic
from system_test.support.waiting import wait_until
from tests.support.key_pair import key_pair
from tests.support.sampling import mostly_long

RECORDS = 8_000
CHUNK_RECORDS = 25
KILLS = 3


@pytest.mark.parametrize(
    "layout", mostly_long([("topic",), ("seed", "--record-format", "text")]), ids=lambda layout: layout[0]
)
def test_markers_that_were_put_back_are_told_from_writers_at_work(
    site: Site, topic_name: str, tmp_path: Path, layout: tuple[str, ...]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    home = "_blockgz/" if layout[0] == "seed" else ""
    marker = tmp_path / "archive" / f"{home}topic={topic_name}" / "partition=00000" / "last_chunk_index.json"
    options = ("--once", "--chunk-records", str(CHUNK_RECORDS), "--layout", *layout)
    create_topic(site.bootstrap, topic_name, 1)
    produce_bulk(site.bootstrap, topic_name, RECORDS, partitions=1, value_bytes=30, seed=seed)

    early, looks, orphans = b"", 0, 0
    randomly = random.Random(seed)
    for kill in range(KILLS + 1):
        stop_at = randomly.randint(2, 20) if kill < KILLS else RECORDS
        with site.start(topic_name, *options) as archiver:
            wait_until(marker.exists, 60, "a marker")
            first = verified(tmp_path / "archive", topic_name)
            while archiver.alive:
                report = verified(tmp_path / "archive", topic_name)
                assert report.verdict is Verdict.OK, report
                looks, orphans = looks + 1, orphans + len(report.orphans)
                if report.chunks - first.chunks >= stop_at:
                    archiver.kill()
        early = early or marker.read_bytes()
        assert verified(tmp_path / "archive", topic_name).verdict is Verdict.OK
    print(f"{looks} verifications of an archive at work, which named {orphans} orphans")
    assert looks > KILLS

    report = verified(tmp_path / "archive", topic_name)
    assert (report.records, report.next_offset) == (RECORDS, RECORDS)
    earlier = tmp_path / "earlier.json"
    keys = key_pair(tmp_path)
    site.replayer("verify", "--report", earlier, "--sign-key", keys[0])
    end = json.loads(early)["next_offset"] or 0
    newest = marker.read_bytes()
    marker.write_bytes(early)
    (found,) = site.replayer_json("verify", topic_name, check=3)["partitions"]
    assert [(lost["from"], lost["to"]) for lost in found["lost"]] == [(end, RECORDS)]
    since = site.replayer_json("verify", "--since-report", earlier, "--key", keys[1], check=3)["since_report"]
    assert [(each["from"], each["to"]) for each in since["differences"]] == [(0, RECORDS)]

    marker.write_bytes(newest)
    produce_bulk(site.bootstrap, topic_name, 100, partitions=1, value_bytes=30, seed=seed)
    site.run(topic_name, *options)
    result = site.replayer("verify", "--since-report", earlier, "--key", keys[1])
    assert result.stdout.splitlines()[-2].endswith("1 partitions, OK")


def verified(archive: Path, topic: str, partition: int = 0) -> PartitionFindings:
    reader = LocalReader(LocalAddress(str(archive)))
    return asyncio.run(verify_partition(ArchiveReader(reader), topic, partition, Depth.STRUCTURE, lambda *_: None))
