"""`archiver compact` on a folder: the plan, what it does, what reads the archive then, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from archiver.commit.commit import commit_chunk
from archiver.commit.driver import Driver, UnreadLog
from archiver.commit.objects import read_marker
from archiver.maintain.throttle import Throttle
from benchmarks.compact import ROWS, collect, figures_of, small_chunks
from benchmarks.compact import command as run
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings
from blockgz.store.writer import FileBody
from index_format.keys import data_suffix
from index_format.marker import MAX_RETIRED, Maintenance, Marker, Retired, decode_marker, encode
from replayer.cli import main as replayer_main
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.chunks import finished_chunk, identity_of
from tests.support.memory_store import content_of

CHUNKS = 300


def archived(root: Path) -> list[Any]:
    """What the other program reads of it."""
    result = CliRunner().invoke(replayer_main, ["cat", "orders:0", "-a", str(root), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def is_sound(root: Path) -> None:
    verified = CliRunner().invoke(replayer_main, ["verify", "--records", "-a", str(root)])
    assert verified.exit_code == 0, verified.output


def marker_of(root: Path, writer: PartitionWriter) -> Marker:
    return decode_marker((root / writer.keys.marker).read_bytes())


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_hundreds_of_small_chunks_become_a_few(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, CHUNKS)
    before, found = figures_of(root, writer), archived(root)
    asked = run("compact", "-a", root)
    assert asked.exit_code == 2 and "add --yes" in asked.output
    result = run("compact", "-a", root, "--yes")
    assert result.exit_code == 0, result.output
    assert "compacted 1 of 1 partitions" in result.stdout
    assert archived(root) == found
    is_sound(root)
    assert figures_of(root, writer).objects > before.objects, "readers of the old marker find everything"
    collect(root)
    after = figures_of(root, writer)
    print(before, after)
    tail = len(marker_of(root, writer).tail)
    assert (before.chunks, after.chunks) == (CHUNKS, 1 + tail)
    assert after.objects < before.objects // 3
    assert after.requests < before.requests * 2 // 3
    assert archived(root) == found
    is_sound(root)


@pytest.mark.slow
def test_what_is_read_and_stored_is_within_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 150)
    taken: list[int] = []
    monkeypatch.setattr(Throttle, "take", lambda _, num_bytes: taken.append(num_bytes))
    result = run("compact", "-a", root, "--rate", "1KiB", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert sum(taken) > 2 * json.loads(result.stdout)["moved_bytes"] > 0
    is_sound(root)
    refused = run("compact", "-a", root, "--rate", "0")
    assert refused.exit_code == 2 and "--rate 0 moves nothing" in refused.output


@pytest.mark.slow
def test_an_archiver_goes_on_after_a_compaction(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, 150)
    identity = identity_of(partition=0)
    driver = Driver(
        open_existing_store(str(root), S3Settings()), UnreadLog(), lambda attempt, cause: None, lambda: True
    )
    held = driver.run(read_marker(identity.keys.marker))
    assert run("compact", "-a", root, "--yes").exit_code == 0
    assert held is not None
    more = records(range(150 * ROWS, 150 * ROWS + 6))
    for row in more:  # what it holds is older than the compaction
        chunk = finished_chunk("json", (row,), row.offset, row.offset + 1)
        path = tmp_path / f"chunk-{row.offset}"
        path.write_bytes(content_of(chunk.body))
        body = FileBody(path, chunk.body.size, chunk.body.sha256)
        held = driver.run(commit_chunk(identity, held, chunk._replace(body=body)))
    assert [each["offset"] for each in archived(root)] == [each.offset for each in [*writer.records, *more]]
    is_sound(root)


def test_a_dry_run_and_a_partition_with_nothing_to_merge_write_nothing(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, 140)
    before = contents(root)
    result = run("compact", "orders", "-a", root, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    (partition,) = told["partitions"]
    tail = len(writer.marker.tail)
    assert (told["dry_run"], partition["chunks"], partition["chunks_after"]) == (True, 140, 1 + tail)
    assert (partition["catalogs"], partition["catalogs_after"], partition["compacted"]) == (2, 1, False)
    large = run("compact", "orders", "-a", root, "--small-bytes", "1", "--yes")
    assert (large.exit_code, large.stdout.splitlines()) == (0, ["nothing to compact"])
    assert contents(root) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "suffix"),
    [
        (["--codec", "zstd", "--zstd-level", "9"], data_suffix("json", "zstd")),
        (["--record-format", "arrow", "--gzip-level", "6"], data_suffix("arrow", "gzip")),
        (["--block-bytes", "1KiB"], data_suffix("json", "gzip")),
    ],
)
def test_chunks_are_converted(options: list[str], suffix: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 80)
    found = archived(root)
    result = run("compact", "-a", root, *options, "--yes")
    assert result.exit_code == 0, result.output
    assert any(path.name.endswith(suffix) for path in root.rglob("*~r*"))
    assert archived(root) == found
    is_sound(root)
    again = run("compact", "-a", root, *options, "--yes")
    assert again.stdout.startswith("nothing to compact")


def test_what_an_archiver_is_told_by_variables_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 70)
    monkeypatch.setenv("BLOCKGZ_CODEC", "zstd")
    monkeypatch.setenv("BLOCKGZ_ZSTD_LEVEL", "9")
    monkeypatch.setenv("BLOCKGZ_BLOCK_BYTES", "1KiB")
    monkeypatch.setenv("BLOCKGZ_RECORD_FORMAT", "arrow")
    result = run("compact", "-a", root, "--yes")
    assert result.exit_code == 0, result.output
    assert not list(root.rglob("*.zst")) and not list(root.rglob("*.arrows*"))


@pytest.mark.slow
def test_text_stays_text(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = ArchiveWriter(root).partition("lines", 0, record_format="text")
    for chunk in range(70):
        values = [each._replace(key=None, value=b"a line", headers=()) for each in records(range(chunk, chunk + 1))]
        writer.commit(values)
    small_chunks(tmp_path / "other", 1)
    refused = run("compact", "-a", root, "--record-format", "json", "--yes")
    assert refused.exit_code == 3
    assert "cannot be converted to json" in refused.stderr
    done = run("compact", "-a", root, "--codec", "zstd", "--yes")
    assert done.exit_code == 0, done.output
    is_sound(root)


@pytest.mark.slow
def test_who_cannot_be_compacted_is_reported_and_the_rest_is_done(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive = ArchiveWriter(root)
    writers = [archive.partition("orders", number) for number in range(3)]
    for writer in writers:
        for chunk in range(70):
            writer.commit(records(range(ROWS * chunk, ROWS * (chunk + 1))))
    full = writers[1]
    retired = tuple(Retired(references=full.marker.catalogs[0], token=f"t{number}") for number in range(MAX_RETIRED))
    marker = replace(full.marker, version=2, maintenance=Maintenance(retired=retired))
    archive.put(full.keys.marker, encode(marker))
    result = run("compact", "-a", root, "--yes", "--json")
    assert result.exit_code == 3, result.output
    told = json.loads(result.stdout)
    assert [each["compacted"] for each in told["partitions"]] == [True, False, True]
    (problem,) = told["problems"]
    assert problem["where"] == "orders:1"
    assert "archiver gc" in result.stderr
    assert marker_of(root, full) == marker


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--zstd-level", "9"], "a level alone converts nothing"),
        (["--codec", "zstd", "--gzip-level", "9"], "give --zstd-level"),
        (["--codec", "gzip", "--zstd-level", "9"], "give --gzip-level"),
        (["--block-bytes", "0"], "--block-bytes must be more than 0"),
        (["--chunk-bytes", "0"], "--chunk-bytes must be more than 0"),
        (["--buffer-bytes", "0"], "--buffer-bytes must be more than 0"),
        (["unknown"], "is not in the archive"),
        (["--codec", "lz4"], "lz4"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 1)
    result = run("compact", *arguments, "-a", root, "--yes")
    assert result.exit_code in (2, 4)
    assert said in result.output


def test_layout_seed_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    ArchiveWriter(root, layout="seed").partition("lines", 0, record_format="text").commit(
        [each._replace(key=None, value=b"a line", headers=()) for each in records(range(3))]
    )
    result = run("compact", "-a", root, "--yes")
    assert result.exit_code == 2
    assert "layout seed" in result.output
