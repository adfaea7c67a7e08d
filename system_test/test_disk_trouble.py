"""Local disks that are full or broken: chunks are dropped and read from Kafka again, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from system_test.conftest import required_parts
from system_test.support.archiving import Site
from system_test.support.bulk import produce_bulk
from system_test.support.disk_trouble import FullDisk, broken_disk
from system_test.support.topics import create_topic

RECORDS = 4000
DISK = 2 << 20
ROOM = 96 << 10
SMALL = ("--block-bytes", "16KiB")


@pytest.fixture
def topic(site: Site, topic_name: str) -> str:
    """More than fits into ROOM, and less than fits onto the disk."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    create_topic(site.bootstrap, topic_name)
    produce_bulk(site.bootstrap, topic_name, RECORDS, partitions=1, value_bytes=200, seed=seed)
    return topic_name


@dataclass(frozen=True)
class Trouble:
    """A buffer folder that takes no chunk, why, and how that ends."""

    folder: Path
    env: Mapping[str, str]
    why: str
    end: Callable[[], None]


@pytest.fixture(params=["full", "broken"])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trouble]:
    with ExitStack() as stack:
        with required_parts():
            if request.param == "full":
                disk = stack.enter_context(FullDisk(tmp_path / "disk", size=DISK, room=ROOM))
                trouble = Trouble(disk.folder, {}, "No space left on device", disk.make_room)
            else:
                broken = broken_disk(tmp_path, "write", "*/blockgz-buffer-*.chunk", after=2)
                trouble = Trouble(tmp_path / "buffer", broken.env, "Input/output error", broken.mend)
        yield trouble


def test_a_chunk_that_the_buffer_does_not_take_is_read_again(site: Site, topic: str, buffer: Trouble) -> None:
    whole = ("--chunk-records", RECORDS, *SMALL, "--buffer-dir", buffer.folder)
    with replace(site, env=buffer.env).start(topic, *whole) as archiver:
        archiver.wait_for(lambda: archiver.stderr.count(buffer.why) >= 2, 60, "the second failure")
        marker = site.marker(topic)
        assert (marker["next_offset"], marker["tail"]) == (None, [])
        buffer.end()
        archiver.wait_for(lambda: site.marker(topic)["next_offset"] == RECORDS, 60, "the commit")
        done = archiver.terminate()
    assert done.exit_code == 0, done.transcript
    assert "Traceback" not in done.stderr
    checked = site.exact(topic)
    assert (len(checked.records), len(checked.entries), checked.gaps) == (RECORDS, 1, [])
    assert checked.marker["epoch"] >= 3, "each failure ended a claim"
    assert not list(buffer.folder.glob("*/*.chunk"))


def test_an_archive_on_a_full_disk_ends_with_its_last_whole_chunk(site: Site, topic: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        with required_parts():
            disk = stack.enter_context(FullDisk(tmp_path / "archive", size=DISK, room=ROOM))
        chunks = (topic, "--once", "--chunk-records", 200, *SMALL, "--buffer-dir", tmp_path / "buffer")
        failed = site.run(*chunks, check=1)
        assert "No space left on device" in failed.stderr and "free space" in failed.stderr
        kept = site.exact(topic).records
        assert 0 < len(kept) < RECORDS
        disk.make_room()
        site.run(*chunks)
        checked = site.exact(topic)
        assert (len(checked.records), checked.gaps) == (RECORDS, [])
        assert checked.records[: len(kept)] == kept
        assert not list(disk.folder.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("pattern", "after"),
    [
        pytest.param("*.gz.*.tmp", 0, id="data"),
        # Of the claim, the data, the index; then comes the marker of the first chunk, which is renamed by then.
        pytest.param("*/partition=00000", 3, id="folder of the marker"),
    ],
)
def test_a_failed_fsync_ends_the_claim(site: Site, topic: str, tmp_path: Path, pattern: str, after: int) -> None:
    with required_parts():
        disk = broken_disk(tmp_path, "fsync", pattern, after=after)
    chunks = (topic, "--once", "--chunk-records", 1000, *SMALL)
    failed = replace(site, env=disk.env).run(*chunks, check=1)
    assert "Input/output error" in failed.stderr
    assert len(disk.failed) == 1, "a failed fsync is never repeated: the second would tell nothing"
    before = site.marker(topic)
    assert before["next_offset"] == (None if after == 0 else 1000)
    disk.mend()
    site.run(*chunks)
    checked = site.exact(topic)
    assert (len(checked.records), checked.gaps) == (RECORDS, [])
    assert checked.marker["epoch"] == before["epoch"] + 1
