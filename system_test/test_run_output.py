"""What `archiver run` says while it runs: its start, its progress, and nothing of it on stdout."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.bulk import produce_bulk
from system_test.support.topics import create_topic

PARTITIONS = 2
RECORDS = 40_000


@pytest.fixture
def site(site: Site, topic_name: str) -> Site:
    create_topic(site.bootstrap, topic_name, PARTITIONS)
    produce_bulk(site.bootstrap, topic_name, RECORDS, partitions=PARTITIONS, value_bytes=500, seed=1)
    return site


def test_a_drain_says_what_it_does(site: Site, topic_name: str) -> None:
    done = site.run(topic_name, "--once", "--json", "--log-format", "json")
    started = [json.loads(line) for line in done.stderr.splitlines()]
    (start,) = [line for line in started if line["event"] == "started"]
    group = json.loads(site.fetch("_archive.json"))["group_id"]
    assert (start["topics"], start["partitions"], start["group"]) == (topic_name, PARTITIONS, group)
    assert json.loads(done.stdout)["records"] == RECORDS


def test_who_follows_hears_of_progress(site: Site, topic_name: str) -> None:
    with site.start(topic_name) as archiver:
        archiver.wait_for(lambda: " progress offsets=" in archiver.stderr, 60, "a line about progress")
        archiver.terminate().expect(0)
    assert archiver.stderr.index(" started ") < archiver.stderr.index(" progress ")


def test_a_terminal_shows_a_bar(site: Site, topic_name: str) -> None:
    """Zlib at its hardest takes long enough for a person to see it."""
    ours, theirs = pty.openpty()
    command = [Path(sys.executable).parent / "archiver", "run", topic_name, "--once", *site.kafka, *site.archive]
    slow = ("--gzip-library", "zlib", "--gzip-level", "9", "--memory", "32MiB")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = b""
    with subprocess.Popen(
        [*map(str, command), *slow], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as archiver:
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal is gone with its last user
                break
            shown += piece
            if not piece:
                break
        assert archiver.stdout is not None
        table = archiver.stdout.read().decode()
        assert archiver.wait(60) == 0
    os.close(ours)
    text = shown.decode()
    assert " started " in text and "archiving" in text and "records/s" in text
    assert "archiving" not in table and topic_name in table
