"""What a read of a damaged archive gives: an error by default, the rest of the records where it is told to skip."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import Filter, GreaterThanOrEqual

from blockgz.archive.positions import AT_START
from blockgz.spark.errors import ReadFailed
from replayer.spark import stream
from replayer.spark.source import FilteredReader
from replayer.spark.source_options import parse_options
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import mostly_long

CHUNKS, CHUNK = 140, 10
"""Enough chunks for catalogs."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    part = ArchiveWriter(root).partition("orders", 0)
    for first in range(0, CHUNKS * CHUNK, CHUNK):
        part.commit(records(range(first, first + CHUNK)))
    return root


@pytest.fixture
def archive(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "archive"))


def chunk_of(archive: Path, suffix: str) -> Path:
    """A file of the tenth chunk."""
    (found,) = archive.rglob(f"*{9 * CHUNK:020d}{suffix}")
    return found


def damage_data(archive: Path) -> None:
    data = chunk_of(archive, ".gz")
    data.write_bytes(bytes(data.stat().st_size))


def lose_index(archive: Path) -> None:
    chunk_of(archive, ".index.json").unlink()


def lose_catalog(archive: Path) -> None:
    min(archive.rglob("_catalog/*")).unlink()


def read(archive: Path, *filters: Filter, **more: str) -> list[int]:
    given = {"path": str(archive), "subscribe": "orders", **more}
    reader = FilteredReader(parse_options(given, default_start=AT_START), ("offset",))
    reader.pushFilters(list(filters))
    return [
        offset for task in reader.partitions() for rows in reader.read(task) for offset in rows["offset"].to_pylist()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_data, lose_index, lose_catalog])
@pytest.mark.parametrize("filters", [(), (GreaterThanOrEqual(("offset",), 95),)], ids=["whole", "filtered"])
@pytest.mark.parametrize("size", mostly_long(["10000", "1000000"]), ids=["many tasks", "one task"])
def test_damage_ends_a_read_or_is_skipped(
    archive: Path,
    damage: Callable[[Path], None],
    filters: tuple[Filter, ...],
    size: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(archive)
    with pytest.raises(ReadFailed):
        read(archive, *filters, taskBytes=size)
    capfd.readouterr()
    found = read(archive, *filters, taskBytes=size, onDamage="skip")
    assert found == sorted(set(found))
    lost = set(range(95 if filters else 0, CHUNKS * CHUNK)) - set(found)
    assert lost and max(lost) < CHUNK * CHUNKS / 2
    if damage is not lose_catalog:
        assert lost <= set(range(90, 100))
    assert "blockgz: FAILURE orders:0 skipped offsets [" in capfd.readouterr().err


@pytest.mark.parametrize("columns", [("value", "offset"), ("offset", "timestamp", "timestampType")])
def test_a_time_that_microseconds_cannot_hold_is_null(tmp_path: Path, columns: tuple[str, ...]) -> None:
    times = [1_760_000_000_000_000_000, 2**63 - 1, -(2**63), -1, 1_760_000_000_000]
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(5), timestamps=times))
    options = parse_options({"path": str(tmp_path), "subscribe": "orders"}, default_start=AT_START)
    reader = FilteredReader(options, columns)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [name for batch in batches for name in batch.schema.names] == [*columns]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(5))
    if "timestamp" in columns:
        found = [each.value for each in batches[0].column("timestamp")]
        assert found == [None, None, None, -1000, 1_760_000_000_000_000]


@pytest.mark.parametrize("bound", ["startingTimestamp", "endingTimestamp"])
def test_records_on_the_wrong_side_of_a_time_are_told_on_stderr(
    tmp_path: Path, bound: str, capfd: pytest.CaptureFixture[str]
) -> None:
    skewed = ArchiveWriter(tmp_path).partition("skewed", 0)
    skewed.commit(records(range(250), timestamps=[5_000] * 250))
    skewed.commit(records(range(250, 600), timestamps=[1_000] * 350))
    options = parse_options({"path": str(tmp_path), "subscribe": "skewed", bound: "3000"}, default_start=AT_START)
    FilteredReader(options, ("offset",)).partitions()
    note = "blockgz: note: skewed:0  offset 0 is the first record stamped 1970-01-01T00:00:03Z or later: at least 350"
    assert capfd.readouterr().err.count(note) == 1
    asyncio.run(stream.initial(options))
    assert capfd.readouterr().err.count(note) == (bound == "startingTimestamp")
