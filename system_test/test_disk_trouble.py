"""Local disks that are full or broken: what was fetched waits for them, and nothing is lost."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

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
        if request.param == "full":
            disk = stack.enter_context(FullDisk(tmp_path / "disk", size=DISK, room=ROOM))
            trouble = Trouble(disk.folder, {}, "No space left on device", disk.make_room)
        else:
            broken = broken_disk(tmp_path, "write", "*/blockgz-buffer-*.chunk", after=2)
            trouble = Trouble(tmp_path / "buffer", broken.env, "Input/output error", broken.mend)
        yield trouble


def test_what_the_buffer_holds_is_committed_and_the_rest_waits_in_memory(
    site: Site, topic: str, buffer: Trouble
) -> None:
    whole = ("--chunk-records", RECORDS, *SMALL, "--buffer-dir", buffer.folder)
    with replace(site, env=buffer.env).start(topic, *whole) as archiver:
        archiver.wait_for(lambda: buffer.why in archiver.stderr, 60, "a block that is not taken")
        archiver.wait_for(lambda: site.marker(topic)["next_offset"], 60, "the commit of what was taken")
        buffer.end()
        done = archiver.terminate()
    assert done.exit_code == 0, done.transcript
    assert "Traceback" not in done.stderr and " stopped " not in done.stderr
    checked = site.exact(topic)
    assert (len(checked.records), checked.gaps) == (RECORDS, [])
    assert len(checked.entries) > 1 and checked.marker["epoch"] == 1, "nothing was read twice"
    assert not list(buffer.folder.glob("*/*.chunk"))


def test_a_running_service_waits_for_space_on_the_disk_of_its_archive(site: Site, topic: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(FullDisk(tmp_path / "archive", size=DISK, room=ROOM))
        chunks = (topic, "--chunk-records", 200, *SMALL, "--buffer-dir", tmp_path / "buffer")
        with site.start(*chunks) as archiver:
            archiver.wait_for(lambda: "No space left on device" in archiver.stderr, 60, "the full disk")
            disk.make_room()
            archiver.wait_for(lambda: site.marker(topic)["next_offset"] == RECORDS, 60, "the commits")
            done = archiver.terminate()
        assert done.exit_code == 0, done.transcript
        checked = site.exact(topic)
        assert (len(checked.records), checked.gaps, checked.marker["epoch"]) == (RECORDS, [], 1)
        assert not list(disk.folder.rglob("*.tmp"))


def test_an_archive_on_a_full_disk_ends_with_its_last_whole_chunk(site: Site, topic: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
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


@pytest.mark.parametrize("after", [0, 3], ids=["data", "marker"])
def test_a_failed_fsync_costs_a_running_service_the_claim_and_not_the_chunk(
    site: Site, topic: str, tmp_path: Path, after: int
) -> None:
    pattern = "*.gz.*.tmp" if after == 0 else "*/partition=00000"
    disk = broken_disk(tmp_path, "fsync", pattern, after=after)
    with replace(site, env=disk.env).start(topic, "--chunk-records", 1000, *SMALL) as archiver:
        archiver.wait_for(lambda: disk.failed, 60, "a failed fsync")
        disk.mend()
        archiver.wait_for(lambda: site.marker(topic)["next_offset"] == RECORDS, 60, "the commits")
        done = archiver.terminate()
    assert done.exit_code == 0, done.transcript
    assert "Input/output error" in done.stderr
    checked = site.exact(topic)
    assert (len(checked.records), checked.gaps) == (RECORDS, [])
    assert checked.marker["epoch"] > 1, "the claim was given up"
