"""`replayer export`: what every format holds is what was archived, and what fails leaves nothing behind."""

import asyncio
import csv
import io
import json
import os
import resource
import stat
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.selection import SelectedBatch
from index_format.records import Record, batch_from_records
from replayer import export as exporting
from replayer.cli import main
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import exited

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
NASTY = [
    Record(0, -1, -1, None, None, ()),
    Record(1, 1_760_000_000_001, 0, b"", b"", (("h", None), ("h", b""), ("h", b"\xff"))),
    Record(2, 0, 1, b"\x00\xff", b'quote " comma, line\r\nend \x00', ()),
    Record(5, 1_760_000_000_005, 0, "ключ".encode(), "値".encode() * 1_700_000, ()),
    Record(6, 1_760_000_000_004, 0, b"k", b"NULL", (("", b"x"),)),
]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path / "archive")
    writer.partition("orders", 0).commit(NASTY, block_bytes=100)
    second = writer.partition("orders", 1)
    second.commit(records(range(40)))
    second.commit(records(range(40, 60)))
    return writer.root


def run(archive: Path, *args: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, args), "-a", str(archive)], prog_name="replayer")


def expected() -> list[dict[str, Any]]:
    """As Spark's Kafka source would have them."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": partition,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": record.timestamp_type,
            "headers": [{"key": key, "value": value} for key, value in record.headers or ()] or None,
        }
        for partition, held in enumerate((NASTY, records(range(60))))
        for record in held
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _back(row: dict[str, Any]) -> dict[str, Any]:
    """A row of CSV or JSON as Arrow would give it."""
    headers = row["headers"]
    return {
        **row,
        "key": _bytes(row["key"]),
        "value": _bytes(row["value"]),
        "timestamp": datetime.fromisoformat(row["timestamp"]),
        "headers": headers and [{"key": each["key"], "value": _bytes(each["value"])} for each in headers],
    }


def read_parquet(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def read_arrow(path: Path) -> list[dict[str, Any]]:
    return list(pa.ipc.open_file(path).read_all().to_pylist())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [_back(json.loads(line)) for line in path.read_bytes().splitlines()]


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Nulls are empty and without quotes, which the csv module does not tell from empty texts: Arrow does."""
    import pyarrow.csv  # noqa: PLC0415

    texts = {name: pa.string() for name in ("key", "value", "topic", "timestamp", "headers")}
    options = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=True, quoted_strings_can_be_null=False)
    large = pyarrow.csv.ReadOptions(block_size=64 << 20)
    rows = pyarrow.csv.read_csv(path, large, convert_options=options).to_pylist()
    assert [row["offset"] for row in rows] == [
        int(row["offset"]) for row in csv.DictReader(io.StringIO(path.read_text(), newline=""))
    ]
    return [_back({**row, "headers": row["headers"] and json.loads(row["headers"])}) for row in rows]


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "parquet": read_parquet, "csv": read_csv, "jsonl": read_jsonl, "arrow": read_arrow,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _large_cells() -> Iterator[None]:
    before = csv.field_size_limit(32 << 20)
    yield
    csv.field_size_limit(before)


@pytest.mark.parametrize("group_bytes", [1, 32 << 20], ids=["many groups", "one group"])
@pytest.mark.parametrize("file_format", READERS)
def test_every_format_holds_every_record(
    archive: Path, tmp_path: Path, file_format: str, group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "GROUP_BYTES", group_bytes)
    path = tmp_path / f"out.{file_format}"
    done = run(archive, "orders", path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"65 records exported to {path} (")
    rows = READERS[file_format](path)
    assert rows == expected() and list(rows[0]) == COLUMNS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_texts_and_a_selection(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    choice = ("--from", "10", "--to", "50", "-n", "30", "--value-as", "text", "--key-as", "text")
    assert run(archive, "orders:1", path, *choice, "--json").exit_code == 0
    rows = read_parquet(path)
    assert [row["offset"] for row in rows] == list(range(10, 40))
    assert rows[0]["key"] == "10" and rows[0]["value"] is None and str(rows[1]["value"]).startswith("value of 11 ")


def test_texts_in_csv_may_hold_quotes_and_line_ends(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert run(archive, "orders:0", path, "--value-as", "text").exit_code == 0
    with path.open(newline="") as file:
        values = [row["value"] for row in csv.DictReader(file)]
    assert values == [(record.value or b"").decode() for record in NASTY]


def test_what_is_not_text_is_named(archive: Path, tmp_path: Path) -> None:
    done = exited(run(archive, "orders", tmp_path / "out.csv", "--key-as", "text"), 1)
    assert "the key of orders:0:2 is not text" in done.stderr and "--key-as binary" in done.stderr
    assert not list(tmp_path.glob("*out*"))


def test_standard_output(archive: Path) -> None:
    piped = run(archive, "orders", "-", "--format", "jsonl", "--json")
    assert [json.loads(line)["offset"] for line in piped.stdout_bytes.splitlines()][:5] == [0, 1, 2, 5, 6]
    assert json.loads(piped.stderr)["records"] == 65
    stream = run(archive, "orders", "-", "--format", "arrow")
    assert pa.ipc.open_stream(stream.stdout_bytes).read_all().num_rows == 65


@pytest.mark.parametrize(
    ("destination", "more", "said"),
    [
        ("out.xls", (), "the format of .*out.xls is not known"),
        ("-", ("--format", "parquet"), "parquet cannot be written to a pipe"),
        ("there.csv", (), "there.csv exists already"),
        ("", ("--format", "csv", "--overwrite"), "it is a folder, a pipe or a device"),
        ("out.csv", ("--format", "parkett"), "parkett"),
    ],
)
def test_a_wrong_destination_is_a_usage_error(
    archive: Path, tmp_path: Path, destination: str, more: tuple[str, ...], said: str
) -> None:
    (tmp_path / "there.csv").write_text("mine")
    done = exited(run(archive, "orders", destination if destination == "-" else tmp_path / destination, *more), 2)
    assert any(part in done.stderr for part in (said, said.replace(".*", f"{tmp_path}/")))
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_device_is_never_replaced(archive: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    assert run(archive, "orders", pipe, "--overwrite").exit_code == 2
    assert pipe.is_fifo()


def test_an_older_file_is_replaced_where_that_is_asked_for(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    assert run(archive, "orders:1", path, "--overwrite").exit_code == 0
    assert len(read_csv(path)) == 60


def test_damage_leaves_no_file_or_is_skipped(archive: Path, tmp_path: Path) -> None:
    (first, _) = sorted((archive / "topic=orders/partition=00001").glob("*.gz"))
    first.write_bytes(bytes(first.stat().st_size))
    path = tmp_path / "out.jsonl"
    assert run(archive, "orders", path).exit_code == 3
    assert not list(tmp_path.glob("*out*"))
    done = run(archive, "orders", path, "--on-damage", "skip")
    assert done.exit_code == 3 and "orders:1 skipped offsets [" in done.stderr
    assert [row["offset"] for row in read_jsonl(path)] == [0, 1, 2, 5, 6, *range(40, 60)]


@pytest.mark.slow
@pytest.mark.parametrize("file_format", READERS)
def test_a_full_disk_leaves_nothing_behind(archive: Path, tmp_path: Path, file_format: str) -> None:
    path = tmp_path / f"out.{file_format}"
    done = subprocess.run(
        [sys.executable, "-m", "replayer", "export", "orders", path, "--value-as", "binary", "-a", archive],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.returncode == 1, done.stderr
    assert f"{path} cannot be written" in done.stderr and "File too large" in done.stderr
    assert not list(tmp_path.glob("*out*"))


def _batches(count: int, taken: list[int], fault: BaseException | None = None) -> AsyncIterator[SelectedBatch]:
    """Batches of one record each, which note that they were taken; then the fault."""

    async def given() -> AsyncIterator[SelectedBatch]:
        partition = cast("ArchivedPartition", SimpleNamespace(topic="orders", partition=0))
        for offset in range(count):
            taken.append(offset)
            yield partition, batch_from_records([Record(offset, 0, 0, None, b"x", ())])
        if fault is not None:
            raise fault

    return given()


@pytest.mark.parametrize("file_format", READERS)
def test_one_group_is_in_memory_at_a_time(tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "GROUP_BYTES", 1)
    taken: list[int] = []
    ahead: list[int] = []
    form = exporting.ExportForm(file_format)
    written = 0

    def advance(rows: int, _bytes: int) -> None:
        nonlocal written
        written += rows
        ahead.append(len(taken) - written)

    asyncio.run(exporting.export(_batches(20, taken), str(tmp_path / "out"), form, advance=advance))
    assert ahead == [0] * 20


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), asyncio.CancelledError()], ids=["interrupt", "cancelled"])
@pytest.mark.parametrize("file_format", READERS)
def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, file_format: str, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "GROUP_BYTES", 1)
    exported = exporting.export(_batches(3, [], fault), str(tmp_path / "out"), exporting.ExportForm(file_format))
    with pytest.raises(type(fault)):
        asyncio.run(exported)
    assert not list(tmp_path.iterdir())


def test_a_file_that_appeared_meanwhile_is_kept(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    monkeypatch.setattr(exporting, "sync_file", lambda _: path.write_text("mine"))
    done = run(archive, "orders", path)
    assert done.exit_code == 2 and "exists already" in done.stderr
    assert path.read_text() == "mine" and [each.name for each in tmp_path.glob("*out*")] == ["out.csv"]


def test_a_folder_that_is_missing_is_named(archive: Path, tmp_path: Path) -> None:
    done = exited(run(archive, "orders", tmp_path / "none" / "out.csv"), 1)
    assert f"there is no folder {tmp_path / 'none'}" in done.stderr and "make the folder first" in done.stderr


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_time_that_no_column_holds_is_named(tmp_path: Path, file_format: str) -> None:
    far = records(range(3), timestamps=[0, 2**63 - 1, 0])
    writer = ArchiveWriter(tmp_path / "far")
    writer.partition("orders", 0).commit(far)
    done = run(writer.root, "orders", tmp_path / f"out.{file_format}")
    assert done.exit_code == 1 and not list(tmp_path.glob("*out*"))
    assert "the timestamp of orders:0:1 does not fit into a column of times" in done.stderr


EDGES = [-(2**63), -(10**15), -5, -1, 0, 1_760_000_000_007, 1_760_000_000_000_000, 1_760_000_000_000_000_000, 2**63 - 1]
PRINTED = {-5: "1969-12-31T23:59:59.995Z", -1: "1969-12-31T23:59:59.999Z", 0: "1970-01-01T00:00:00.000Z"}
PRINTED |= {1_760_000_000_007: "2025-10-09T08:53:20.007Z"}


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_a_time_without_a_date_is_exported_as_its_number(tmp_path: Path, file_format: str) -> None:
    writer = ArchiveWriter(tmp_path / "far")
    writer.partition("orders", 0).commit(records(range(len(EDGES)), timestamps=EDGES))
    dates, numbers = tmp_path / f"dates.{file_format}", tmp_path / f"numbers.{file_format}"
    assert run(writer.root, "orders", dates).exit_code == 0
    assert run(writer.root, "orders", numbers, "--timestamps", "ms").exit_code == 0
    found = []
    for path in (dates, numbers):
        with path.open() as file:
            rows = list(csv.DictReader(file)) if file_format == "csv" else [json.loads(line) for line in file]
        assert [list(row) for row in rows] == [COLUMNS] * len(EDGES)
        found.append([row["timestamp"] for row in rows])
    assert found[0] == [PRINTED.get(each, str(each)) for each in EDGES]
    assert found[1] == ([str(each) for each in EDGES] if file_format == "csv" else EDGES)


def test_parquet_keeps_instants(archive: Path, tmp_path: Path) -> None:
    assert run(archive, "orders", tmp_path / "out.parquet", "--timestamps", "ms").exit_code == 0
    assert pq.read_schema(tmp_path / "out.parquet").field("timestamp").type == pa.timestamp("us", "UTC")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("export", "orders", "-", "--format", "csv"), ("cat", "orders", "--json")])
def test_a_full_standard_output_is_no_bug(archive: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "replayer", *arguments, "-a", archive],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert "the output cannot be written" in done.stderr and "No space left on device" in done.stderr
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
