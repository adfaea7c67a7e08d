"""A replay into very many lanes by a process that may open few files."""

import json
import sys
from pathlib import Path

from system_test.support.archiving import Site
from system_test.support.environment import tool
from system_test.support.programs import Running, start
from system_test.support.topics import create_topic, read
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import in_long_run

LANES = 1000
OPEN_FILES = 1024
MOST_THREADS = 100


def limited(files: int, *arguments: str, site: Site) -> Running:
    """The replayer as a process that may open so many files."""
    replayer = Path(sys.executable).parent / "replayer"
    limit = f"--nofile={files}:{files}"
    return start(tool("prlimit"), limit, replayer, *arguments, *site.kafka, *site.archive, env=site.env)


@in_long_run
def test_a_thousand_lanes_in_transactions_with_1024_open_files(site: Site, topic_name: str) -> None:
    archive = ArchiveWriter(Path(site.address))
    made = records(range(20))
    for partition in range(LANES):
        archive.partition(topic_name, partition).commit(made)
    copy = f"{topic_name}-copy"
    create_topic(site.bootstrap, copy, LANES, {"retention.ms": "-1"})
    options = ("--to-topic", copy, "--transactional", "--yes", "--json", "-X", "compression.type=gzip")
    most = 0
    with limited(OPEN_FILES, "replay", topic_name, *options, site=site) as replay:

        def ended() -> bool:
            nonlocal most
            tasks = Path(f"/proc/{replay.pid}/task")
            most = max(most, len(list(tasks.iterdir())) if tasks.exists() else 0)
            return not replay.alive

        replay.wait_for(ended, 120, "the end")
        result = json.loads(replay.wait(1).expect(0).stdout)
    assert (result["complete"], result["records"]) == (True, LANES * len(made))
    assert 0 < most < MOST_THREADS
    for partition in (0, LANES // 2, LANES - 1):
        assert [each.value for each in read(site.bootstrap, copy, partition)] == [each.value for each in made]


def test_too_few_open_files_are_reported_at_the_start(site: Site, topic_name: str) -> None:
    ArchiveWriter(Path(site.address)).partition(topic_name, 0).commit(records(range(5)))
    copy = f"{topic_name}-copy"
    create_topic(site.bootstrap, copy, 1, {"retention.ms": "-1"})
    done = limited(90, "replay", topic_name, "--to-topic", copy, "--yes", site=site).wait(60).expect(2)
    assert "may open at most 90 files" in done.stderr
