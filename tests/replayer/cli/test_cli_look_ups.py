"""The program as a user runs it: output, contracts of --json, errors with their exit codes."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from index_format import objects
from index_format.keys import MARKER_OBJECT, TOPIC_CONFIG_OBJECT
from index_format.objects import TopicConfig
from index_format.record_formats import json_object
from index_format.records import Record
from replayer.cli import main
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.commands import exited, succeeded
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server


def replayer(*args: object, root: Path | None = None, env: dict[str, str] | None = None) -> Result:
    address = [] if root is None else ["-a", str(root)]
    return CliRunner().invoke(main, [*map(str, args), *address], prog_name="replayer", env=env)


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def orders(writer: ArchiveWriter) -> list[PartitionWriter]:
    """Two partitions of 60 records each, in two chunks, the second with a gap."""
    partitions = [writer.partition("orders", number) for number in range(2)]
    for partition in partitions:
        partition.commit(records(range(40)))
    partitions[1].lose(100)
    partitions[0].commit(records(range(40, 60)))
    partitions[1].commit(records(range(100, 120)))
    return partitions


class TestGet:
    def test_prints_the_value_and_a_newline(self, root: Path, orders: list[PartitionWriter]) -> None:
        assert replayer("get", "orders:0:6", root=root).stdout_bytes == (orders[0].records[6].value or b"") + b"\n"

    def test_json_is_the_archives_line_and_its_place(self, root: Path, orders: list[PartitionWriter]) -> None:
        (line,) = lines(replayer("get", "orders:0:5", "--json", root=root))
        assert line == {
            "topic": "orders",
            "partition": 0,
            "offset": 5,
            "timestamp": 1760000000005,
            "timestamp_type": "CreateTime",
            "key": "5",
            "headers": [{"key": "h", "value": "v"}, {"key": "h", "value": None}],
            "value": "value of 5 xxxxxxxxxxxxxxxxxxxx",
        }

    def test_stats_tell_the_cost(self, root: Path, orders: list[PartitionWriter]) -> None:
        (first,) = lines(replayer("get", "orders:0:5", "--stats", "--json", root=root))
        (again,) = lines(replayer("get", "orders:0:5", "--stats", "--json", root=root))
        (anew,) = lines(replayer("get", "orders:0:5", "--stats", "--json", "--no-cache", root=root))
        assert [each["record"]["offset"] for each in (first, again, anew)] == [5, 5, 5]
        first, again, anew = (each["stats"] for each in (first, again, anew))
        assert [each["requests"] for each in (first, again, anew)] == [3, 2, 3], "the index is cached"
        assert 0 < first["data_bytes_fetched"] < first["chunk_bytes"]
        assert first["data_bytes_fetched"] == again["data_bytes_fetched"] == anew["data_bytes_fetched"]
        assert (first["cached_bytes"], anew["cached_bytes"]) == (0, 0)
        assert first["index_bytes_fetched"] == again["index_bytes_fetched"] + again["cached_bytes"]
        assert first["bytes_fetched"] == first["data_bytes_fetched"] + first["index_bytes_fetched"]
        assert first["seconds"] > 0
        assert "3 requests" in replayer("get", "orders:0:5", "--stats", "--no-cache", root=root).stderr

    def test_many_at_once_share_what_they_read(self, root: Path, orders: list[PartitionWriter]) -> None:
        places = [f"orders:{p}:{offset}" for offset in range(39, -1, -1) for p in (1, 0)]
        found = lines(replayer("get", *places, "--stats", "--json", root=root))
        records_found = [(each["record"]["partition"], each["record"]["offset"]) for each in found]
        assert records_found == [(p, offset) for offset in range(39, -1, -1) for p in (1, 0)]
        assert found[0]["stats"]["requests"] == 6, "marker, index and one run of blocks of each partition"
        stdin = CliRunner().invoke(
            main, ["get", "-", "-f", "%o\n", "-a", str(root)], input="orders:0:3\n\n orders:1:4 "
        )
        assert (stdin.exit_code, stdin.stdout) == (0, "3\n4\n"), stdin.stderr

    @pytest.mark.parametrize(
        ("position", "offset"),
        [("2025-10-09T08:53:20.007Z", 7), ("@1760000000050", 100), ("earliest", 0), ("-1", 119), ("+40", 100)],
    )
    def test_positions(self, root: Path, orders: list[PartitionWriter], position: str, offset: int) -> None:
        result = replayer("get", f"orders:1:{position}", "-f", "%o", root=root)
        assert (result.exit_code, result.stdout) == (0, str(offset)), result.stderr

    def test_damage_costs_only_what_it_holds(self, root: Path, orders: list[PartitionWriter]) -> None:
        data = root / "topic=orders/partition=00000" / f"{40:020d}.gz"
        body = bytearray(data.read_bytes())
        body[orders[0].indexes[1].blocks[1].byte_offset + 30] ^= 0xFF
        data.write_bytes(body[: orders[0].indexes[1].blocks[-1].byte_offset])
        wanted = [f"orders:0:{offset}" for offset in (5, 40, 42, 59, 99)]
        result = replayer("get", *wanted, "-f", "%o\n", root=root)
        assert (result.exit_code, result.stdout) == (3, "5\n40\n")
        assert result.stderr.count("error: ") == 3

    def test_bytes_that_are_not_text(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("raw", 0).commit([Record(0, -1, -1, b"\xff", bytes(range(256)), (("h", b"\xfe"),))])
        (line,) = lines(replayer("get", "raw:0:0", "--json", root=root))
        assert line["key_base64"] == "/w=="
        assert line["headers"] == [{"key": "h", "value_base64": "/g=="}]
        assert line["timestamp_type"] == "NoTimestampType"
        assert replayer("get", "raw:0:0", root=root).stdout_bytes == bytes(range(256)) + b"\n"

    def test_several_continue_after_one_that_is_absent(self, root: Path, orders: list[PartitionWriter]) -> None:
        result = replayer("get", "orders:1:50", "orders:1:100", "-f", "%o\n", root=root)
        assert (result.exit_code, result.stdout) == (4, "100\n")
        assert "recorded gap [40..100)" in result.stderr

    def test_the_newest_record_of_a_transactional_topic(self, root: Path, writer: ArchiveWriter) -> None:
        """Its last offsets are those of the transaction's end: no record is there."""
        partition = writer.partition("orders", 0)
        partition.commit(records(range(5)), next_offset=6)
        partition.commit(records(range(6, 9)), next_offset=11)
        for position, offset in {"-1": 8, "-2": 8, "latest": 8, "-5": 6, "-6": 6, "-7": 4, "earliest": 0}.items():
            result = replayer("get", f"orders:0:{position}", "-f", "%o", root=root)
            assert (result.exit_code, result.stdout) == (0, str(offset)), position
        assert replayer("get", "orders:0:9", root=root).exit_code == 4
        assert replayer("get", "orders:0:@4000000000", root=root).exit_code == 4
        partition.lose(20)
        assert replayer("get", "orders:0:latest", "-f", "%o", root=root).stdout == "8"
        writer.partition("orders", 1)
        assert replayer("get", "orders:1:latest", root=root).exit_code == 4


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A background job of a shell is born with SIGINT ignored, and so are its children; a person's program is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestCat:
    def test_prints_values_by_default(self, root: Path, orders: list[PartitionWriter]) -> None:
        expected = b"".join((record.value or b"") + b"\n" for p in orders for record in p.records)
        assert replayer("cat", "orders", root=root).stdout_bytes == expected

    @pytest.mark.parametrize(
        ("args", "expected"),
        [
            (["orders:1", "--from", "38", "--to", "102"], ["1:38", "1:39", "1:100", "1:101"]),
            (["orders", "--from", "-2"], ["0:58", "0:59", "1:118", "1:119"]),
            (["orders:0", "--from", "+3", "--to", "+2"], ["0:3", "0:4"]),
            (["orders:0-1", "--at", "@1760000000002"], ["0:0", "0:1", "1:0", "1:1"]),
            (["orders:0,1", "--from", "2025-10-09T08:53:20.059Z", "-n", "3"], ["0:59", "1:100", "1:101"]),
            (["orders", "-n", "0"], []),
            (["orders", "--since", "@1760000000058", "--until", "@1760000000101"], ["0:58", "0:59", "1:100"]),
            (["orders", "--key", "58", "--key", "101"], ["0:58", "1:101"]),
            (["orders:0", "--null-key", "--header", "h=v", "--limit", "2"], ["0:0", "0:15"]),
            (["orders:0", "--null-key", "--key", "1", "--to", "4"], ["0:0", "0:1", "0:3"]),
            (["orders:0", "-o", "-2"], ["0:58", "0:59"]),
            (["orders:0", "-o", "beginning", "-o", "e@1760000000002"], ["0:0", "0:1"]),
            (["orders:1", "-o", "s@1760000000040", "-n", "1"], ["1:100"]),
            (["orders", "--partitions", "1", "--grep", "of 1[01]2 "], ["1:102", "1:112"]),
            (["orders", "-n", "61", "--from", "earliest", "--to", "latest"], [*(f"0:{n}" for n in range(60)), "1:0"]),
        ],
    )
    def test_selects(self, root: Path, orders: list[PartitionWriter], args: list[str], expected: list[str]) -> None:
        result = succeeded(replayer("cat", *args, "-f", "%p:%o\\n", root=root))
        assert result.stdout.split() == expected

    def test_where_nothing_is_chosen_it_says_what_there_is(self, root: Path, orders: list[PartitionWriter]) -> None:
        result = replayer("cat", "orders:0", "--from", "60", root=root)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "no records: orders:0 holds offsets [0..60)\n"

    def test_offsets_without_records_are_told(self, root: Path, orders: list[PartitionWriter]) -> None:
        asked = ("cat", "orders:1", "--from", "41", "--to", "60")
        result = replayer(*asked, root=root)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "no records at orders:1 [41..60): replayer get orders:1:41 says why\n"
        assert replayer("get", "orders:1:41", root=root).exit_code == 4
        for otherwise in (("--key", "41"), ("-n", "0")):
            assert replayer(*asked, *otherwise, root=root).stderr == ""

    @pytest.mark.parametrize(("start", "end"), [("30", "20"), ("@1760000000058", "@1760000000057")])
    def test_a_start_after_the_end_is_refused(
        self, root: Path, orders: list[PartitionWriter], start: str, end: str
    ) -> None:
        result = exited(replayer("cat", "orders", "--from", start, "--to", end, root=root), 2)
        assert "swap --from and --to" in result.stderr

    def test_positions_of_single_partitions(self, root: Path, orders: list[PartitionWriter], tmp_path: Path) -> None:
        file = tmp_path / "offsets.csv"
        file.write_text("group,orders,1,118\nother,7,3\n")
        args = ("cat", "orders", "--from", "58", "-f", "%p:%o\\n")
        result = replayer(*args, "--positions", file, root=root)
        assert result.stdout.split() == ["0:58", "0:59", "1:118", "1:119"]
        assert replayer(*args, "--positions", file, "--partitions", "0", root=root).exit_code == 4
        file.write_text("other,7,3\n")
        assert replayer(*args, "--positions", file, root=root).exit_code == 2

    def test_text_has_no_timestamps_to_choose_by(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("text", 0, record_format="text").commit([Record(0, 5, 0, None, b"line", ())])
        result = replayer("cat", "text", "--since", "2020-01-01", root=root)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "record format text hold none" in result.stderr

    def test_json_lines(self, root: Path, orders: list[PartitionWriter]) -> None:
        expected = [json_object(record, topic="orders", partition=1) for record in orders[1].records]
        assert lines(replayer("cat", "orders:1", "--json", root=root)) == expected

    def test_kcats_envelope(self, root: Path, orders: list[PartitionWriter]) -> None:
        first, second = lines(replayer("cat", "orders:0", "-J", "-n", "2", root=root))
        assert list(first) == ["topic", "partition", "offset", "tstype", "ts", "broker", "headers", "key", "payload"]
        assert first["headers"] == ["h", "v", "h", None]
        assert (first["tstype"], first["ts"], first["key"]) == ("create", 1760000000000, None)
        assert "headers" not in second

    def test_damage_ends_with_its_exit_code(self, root: Path, orders: list[PartitionWriter]) -> None:
        (data,) = root.glob("topic=orders/partition=00000/00000000000000000040.gz")
        data.write_bytes(data.read_bytes()[:-1] + b"\xff")
        result = exited(replayer("cat", "orders:0", "-f", "%o\\n", root=root), 3)
        assert result.stdout.split()[:40] == [str(offset) for offset in range(40)]
        assert "is damaged" in result.stderr

    @pytest.mark.slow
    def test_a_reader_that_goes_away_is_not_a_failure(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("big", 0).commit(records(range(5000), value_bytes=200), block_bytes=50_000)
        command = f"{sys.executable} -m replayer cat big -a {root} | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("value of 0")

    @pytest.mark.slow
    @pytest.mark.usefixtures("interruptible")
    def test_an_interrupt_has_its_exit_code(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("big", 0).commit(records(range(5000), value_bytes=200), block_bytes=50_000)
        command = [sys.executable, "-m", "replayer", "cat", "big", "-a", str(root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdout.read(10) == b"value of 0"
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate()
        assert program.returncode == 130
        assert b"Traceback" not in errors


class TestTail:
    def test_prints_the_end_of_each_partition(self, root: Path, orders: list[PartitionWriter]) -> None:
        result = replayer("tail", "orders", "-n", "2", "-f", "%p:%o\\n", root=root)
        assert result.stdout.split() == ["0:58", "0:59", "1:118", "1:119"], result.stderr
        result = replayer("tail", "orders:1", "-n", "3", "--null-key", "--json", root=root)
        assert [line["offset"] for line in lines(result)] == [111, 114, 117]
        assert replayer("tail", "orders:0", "--to", "4", root=root).stdout.splitlines()[2].startswith("value of 2")


class TestGrep:
    @pytest.mark.parametrize(
        ("args", "expected"),
        [
            (["of 1?1[12] ", "orders"], ["0:11", "0:12", "1:11", "1:12", "1:111", "1:112"]),
            (["OF 5 ", "orders", "-i"], ["0:5", "1:5"]),
            (["-F", "of 5 x", "orders:0"], ["0:5"]),
            (["-v", "value", "orders:0", "--to", "12"], ["0:3", "0:10"]),
            (["of 1", "orders:1", "--since", "@1760000000100", "-n", "1"], ["1:100"]),
            (["of .2 ", "orders", "--grep", "3", "--key", "32"], ["0:32", "1:32"]),
        ],
    )
    def test_finds(self, root: Path, orders: list[PartitionWriter], args: list[str], expected: list[str]) -> None:
        result = replayer("grep", *args, "-f", "%p:%o\\n", root=root)
        assert result.stdout.split() == expected, result.stderr

    def test_shows_the_place_or_the_count(self, root: Path, orders: list[PartitionWriter]) -> None:
        assert replayer("grep", "of 5 ", "orders:0", root=root).stdout == f"orders:0:5:value of 5 {20 * 'x'}\n"
        number = sum(b"of 5" in (record.value or b"") for partition in orders for record in partition.records)
        assert replayer("grep", "-c", "of 5", "orders", root=root).stdout == f"{number}\n"
        nothing = replayer("grep", "-c", "zzz", "orders", root=root)
        assert (nothing.exit_code, nothing.stdout) == (4, "0\n")


class TestFind:
    def test_offsets_of_a_time(self, root: Path, orders: list[PartitionWriter]) -> None:
        args = ("find", "orders", "--time", "@1760000000050", "--time", "@1760000000110")
        (found,) = lines(replayer(*args, "--json", root=root))
        assert [(row["partition"], row["offset"], row["timestamp_ms"], row["found"]) for row in found] == [
            (0, 50, 1760000000050, True),
            (1, 100, 1760000000100, True),
            (0, 60, None, False),
            (1, 110, 1760000000110, True),
        ]
        assert {"topic": "orders", "time_ms": 1760000000050}.items() <= found[0].items()
        assert lines(replayer(*args, "--format", "jsonl", root=root)) == found
        assert replayer(*args, root=root).stdout.splitlines()[3].split()[-2:] == ["(its", "end)"]
        assert replayer("find", "orders", "--time", "@1770000000", root=root).exit_code == 4

    def test_its_csv_is_a_file_of_positions(self, root: Path, orders: list[PartitionWriter], tmp_path: Path) -> None:
        found = replayer("find", "orders", "--time", "@1760000000059", "--format", "csv", root=root)
        assert found.stdout == "orders,0,59\norders,1,100\n"
        (file := tmp_path / "offsets.csv").write_text(found.stdout)
        result = replayer("cat", "orders", "--positions", file, "-n", "2", "-f", "%p:%o\\n", root=root)
        assert result.stdout.split() == ["0:59", "1:100"]

    def test_offsets_of_a_key(self, root: Path, orders: list[PartitionWriter]) -> None:
        expected = [(0, 58), (1, 101)]
        args = ("find", "orders", "--key", "58", "--key", "101")
        for more in ("--json",), ("--format", "jsonl"):
            rows = lines(replayer(*args, *more, root=root))
            assert [(row["partition"], row["offset"]) for row in rows] == expected
            assert all(row["timestamp_ms"] == 1760000000000 + row["offset"] for row in rows)
        assert replayer(*args, "--format", "csv", "-n", "1", root=root).stdout.splitlines() == [
            "topic,partition,offset,timestamp_ms",
            "orders,0,58,1760000000058",
        ]
        table = replayer(*args, root=root).stdout.splitlines()
        assert table[1].split() == ["0", "58", "2025-10-09T08:53:20.058Z"]
        assert replayer("find", "orders", "--key", "none", root=root).exit_code == 4


def test_ls(root: Path, orders: list[PartitionWriter], writer: ArchiveWriter) -> None:
    writer.partition("empty", 0)
    (listing,) = lines(replayer("ls", "--json", root=root))
    empty, topic = listing["topics"]
    assert (topic["topic"], topic["records"], topic["chunks"]) == ("orders", 120, 4)
    assert (topic["min_timestamp_ms"], topic["max_timestamp_ms"]) == (1760000000000, 1760000000119)
    assert [(p["partition"], p["start_offset"], p["next_offset"]) for p in topic["partitions"]] == [
        (0, 0, 60),
        (1, 0, 120),
    ]
    assert (empty["records"], empty["min_timestamp_ms"], empty["partitions"][0]["next_offset"]) == (0, None, None)
    table = replayer("ls", root=root).stdout.splitlines()
    assert table[2].split() == [
        *("orders", "2", "120"),
        *table[2].split()[3:5],
        *("2025-10-09T08:53:20Z", "2025-10-09T08:53:20Z"),
    ]


def test_a_table_in_a_pipe_cuts_no_name_off(root: Path, writer: ArchiveWriter) -> None:
    names = [249 * "a", 248 * "a" + "b"]
    for name in names:
        writer.partition(name, 0).commit(records(range(3)))
    lines_of_names = replayer("ls", root=root).stdout.splitlines()[1:]
    assert "".join(line.split()[0] for line in lines_of_names) == "".join(names)
    assert max(map(len, lines_of_names)) <= 80


def test_describe(root: Path, orders: list[PartitionWriter]) -> None:
    (described,) = lines(replayer("describe", "orders:1", "--json", root=root))
    (partition,) = described["partitions"]
    assert partition["gaps"] == [{"from": 40, "to": 100, "reason": "retention"}]
    assert (partition["epoch"], partition["writer"], partition["chunks"]) == (2, "writer-2", 2)
    assert partition["last_chunk_index"] == f"{100:020d}.index.json"
    assert "gap [40..100) (retention)" in replayer("describe", "orders", root=root).stdout


class TestDamagedMarkers:
    """What one damaged marker hides is one partition: the rest is listed all the same."""

    @pytest.fixture
    def damaged(self, root: Path, orders: list[PartitionWriter], writer: ArchiveWriter) -> None:
        alone, payments = writer.partition("alone", 0), writer.partition("payments", 0)
        alone.commit(records(range(5)))
        payments.commit(records(range(7)))
        (root / alone.keys.marker).write_bytes(b"{")
        (root / orders[1].keys.marker).unlink()

    def test_ls_lists_the_others(self, root: Path, damaged: None) -> None:
        result = exited(replayer("ls", "--json", root=root), 3)
        alone, orders, payments = json.loads(result.stdout)["topics"]
        assert (alone["records"], alone["partitions"], [each["partition"] for each in alone["damaged"]]) == (0, [], [0])
        assert (orders["records"], [each["partition"] for each in orders["partitions"]]) == (60, [0])
        (missing,) = orders["damaged"]
        assert missing["partition"] == 1
        assert f"{MARKER_OBJECT} of orders:1 is missing" in missing["error"]
        assert (payments["records"], payments["damaged"]) == (7, [])
        assert f"error: topic=alone/partition=00000/{MARKER_OBJECT} " in result.stderr
        assert f"error: the object {MARKER_OBJECT} of orders:1 is missing" in result.stderr
        table = replayer("ls", root=root)
        assert [line.split()[:3] for line in table.stdout.splitlines()[1:]] == [
            ["alone", "0", "0"],
            ["orders", "60", "3.8"],
            ["payments", "7", "511"],
        ]
        assert table.exit_code == 3

    def test_describe_shows_the_others(self, root: Path, damaged: None) -> None:
        result = exited(replayer("describe", "orders", "--json", root=root), 3)
        described = json.loads(result.stdout)
        assert [each["partition"] for each in described["partitions"]] == [0]
        assert [each["partition"] for each in described["damaged"]] == [1]
        assert f"error: the object {MARKER_OBJECT} of orders:1 is missing" in result.stderr

    def test_nothing_but_a_damaged_partition_is_the_error(self, root: Path, damaged: None) -> None:
        result = replayer("describe", "alone", root=root)
        assert (result.exit_code, result.stdout) == (3, "")
        assert f"error: topic=alone/partition=00000/{MARKER_OBJECT} " in result.stderr

    @pytest.mark.slow
    def test_a_damaged_catalog_hides_its_partition_alone(self, root: Path, writer: ArchiveWriter) -> None:
        whole, broken = (writer.partition("gappy", number) for number in range(2))
        whole.commit(records(range(5)))
        for offset in range(600):
            broken.commit(records([2 * offset]))
            broken.lose(2 * offset + 2)
        next(root.glob("topic=gappy/partition=00001/_catalog/1-*.json")).write_bytes(b"{")
        result = exited(replayer("describe", "gappy", "--json", root=root), 3)
        assert [each["partition"] for each in json.loads(result.stdout)["partitions"]] == [0]


@pytest.mark.parametrize("command", [["ls"], ["describe", "orders"], ["coverage"]])
def test_a_listing_has_the_same_rows_in_every_format(
    root: Path, orders: list[PartitionWriter], command: list[str]
) -> None:
    (document,) = lines(replayer(*command, "--format", "json", root=root))
    assert lines(replayer(*command, "--json", root=root)) == [document]
    rows = document["topics"] if command == ["ls"] else document["partitions"]
    assert lines(replayer(*command, "--format", "jsonl", root=root)) == rows
    table = list(csv.DictReader(replayer(*command, "--format", "csv", root=root).stdout.splitlines()))
    expected = [
        {
            name: json.dumps(cell) if isinstance(cell, list) else "" if cell is None else str(cell)
            for name, cell in row.items()
        }
        for row in rows
    ]
    assert [{name: cell.replace(" ", "") for name, cell in row.items()} for row in table] == [
        {name: cell.replace(" ", "") for name, cell in row.items()} for row in expected
    ]


class TestCoverage:
    def test_partitions_over_time_with_gaps(self, root: Path, orders: list[PartitionWriter]) -> None:
        (found,) = lines(replayer("coverage", "orders", "--json", root=root))
        assert (found["from_ms"], found["to_ms"], found["slices"]) == (1760000000000, 1760000000120, 60)
        first, second = found["partitions"]
        assert first["records_by_slice"] == [2] * 30 + [0] * 30
        assert second["records_by_slice"] == [2] * 20 + [0] * 30 + [2] * 10
        assert (first["gaps"], second["records"], second["next_offset"]) == ([], 60, 120)
        assert second["gaps"] == [
            {"from": 40, "to": 100, "reason": "retention", "after_ms": 1760000000039, "before_ms": 1760000000100}
        ]
        table = replayer("coverage", "orders", root=root).stdout.splitlines()
        assert f"|{'@' * 15}{' ' * 15}|" in table[2]
        assert f"|{'@' * 9}{'!' * 17}{'@' * 4}|" in table[3]
        assert table[4].startswith("orders:1: gap [40..100) (retention), at 2025-10-09T08:53:20.039")

    def test_pictures(self, root: Path, orders: list[PartitionWriter]) -> None:
        picture = ElementTree.fromstring(replayer("coverage", "--format", "svg", root=root).stdout)
        space = {"s": "http://www.w3.org/2000/svg"}
        assert [text.text for text in picture.findall("s:g/s:text", space)] == ["orders:0", "orders:1"]
        (gap,) = picture.findall("s:g/s:rect[@class='g']", space)
        assert gap.findtext("s:title", namespaces=space) == "gap: offsets [40..100) (retention)"
        assert float(gap.attrib["width"]) == pytest.approx(900 * 61 / 120, abs=1)
        page = replayer("coverage", "--format", "html", root=root).stdout
        assert "<svg" in page
        assert "<td>orders:1</td><td>40</td><td>100</td><td>retention</td>" in page

    def test_nothing_to_draw(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("empty", 0)
        assert replayer("coverage", "--format", "svg", root=root).exit_code == 4
        assert "No record has a timestamp" in replayer("coverage", "--format", "html", root=root).stdout
        assert replayer("coverage", root=root).stdout.splitlines()[1].split() == ["empty:0", "0", "-", "-", "0"]
        writer.partition("untimed", 0).commit([Record(0, -1, -1, None, b"v", ())])
        (found,) = lines(replayer("coverage", "untimed", "--json", root=root))
        (partition,) = found["partitions"]
        assert (partition["records"], partition["records_without_timestamp"]) == (1, 1)


class TestVerify:
    @pytest.mark.parametrize("depth", [[], ["--deep"], ["--records"]])
    def test_gaps_are_a_warning(self, root: Path, orders: list[PartitionWriter], depth: list[str]) -> None:
        result = replayer("verify", *depth, "--json", root=root)
        (report,) = lines(result)
        assert report["verdict"] == "WARNING"
        first, second = report["partitions"]
        assert (first["topic"], first["partition"], first["records"], first["chunks"]) == ("orders", 0, 60, 2)
        assert (second["first_offset"], second["next_offset"], second["lost"]) == (0, 120, [])
        assert second["gaps"] == [{"from": 40, "to": 100, "reason": "retention"}]

    def test_a_partition_that_the_topic_has_and_the_archive_has_not(
        self, root: Path, orders: list[PartitionWriter]
    ) -> None:
        config = TopicConfig(
            topic="orders", topic_id=None, partitions=4, replication_factor=None, config=None, defaults=None
        )
        (root / "topic=orders" / TOPIC_CONFIG_OBJECT).write_bytes(objects.encode(config))
        result = succeeded(replayer("verify", "orders", "--json", root=root))
        report = json.loads(result.stdout)
        assert report["verdict"] == "WARNING"
        assert report["absent"] == [{"topic": "orders", "partition": 2}, {"topic": "orders", "partition": 3}]
        text = replayer("verify", "orders", root=root).stdout
        assert "WARNING orders:3 is not here" in text
        assert json.loads(replayer("verify", "orders:0", "--json", root=root).stdout)["verdict"] == "OK"

    def test_damage_is_a_failure_that_names_what_is_lost(self, root: Path, orders: list[PartitionWriter]) -> None:
        (index,) = root.glob("topic=orders/partition=00001/00000000000000000100.index.json")
        index.unlink()
        result = exited(replayer("verify", "orders", "--json", root=root), 3)
        report = json.loads(result.stdout)
        assert report["verdict"] == "FAILURE"
        (lost,) = report["partitions"][1]["lost"]
        assert (lost["from"], lost["to"]) == (100, 120)
        assert "is missing" in lost["reason"]
        text = replayer("verify", "orders:1", root=root)
        assert "FAILURE orders:1 lost [100..120)" in text.stdout
        assert text.stdout.splitlines()[-1] == "FAILURE"


class TestErrors:
    @pytest.mark.parametrize(
        ("args", "exit_code", "what"),
        [
            (["get", "orders:0:1000"], 4, "there is no record orders:0:1000"),
            (["get", "order:0:1"], 4, "topic order is not in the archive"),
            (["get", "orders:7:1"], 4, "partition 7 of orders is not in the archive"),
            (["get", "orders:7"], 2, "'orders:7' names no record"),
            (["get", "orders:0:noon"], 2, "'noon' is not a position"),
            (["get", "orders:0:@1760000001000"], 4, "there is no record orders:0:@1760000001000"),
            (["get", "orders:0:+1000"], 4, "there is no record orders:0:+1000"),
            (["get", "orders:0:1", "--interval", "1"], 2, "is not a duration"),
            (["cat", "orders", "-o", "stored"], 2, "-o stored is not an offset"),
            (["cat", "orders", "-o", "5", "-o", "6"], 2, "-o sets the same end twice"),
            (["cat", "orders", "-o", "5", "--to", "6"], 2, "-o replaces --from and --to"),
            (["tail", "orders", "-F", "--to", "5"], 2, "has no end"),
            (["ls", "-a", "~no-such-user/archive"], 2, "names no home directory"),
            (["grep", "-c", "x", "orders", "--json"], 2, "prints a number"),
            (["find", "orders"], 2, "there is nothing to find"),
            (["find", "orders", "--time", "-1h", "--key", "5"], 2, "only --partitions can be combined with --time"),
            (["find", "orders", "--time", "-1h", "--json", "--format", "csv"], 2, "--json is --format json"),
            (["cat", "orders", "--grep", "("], 2, "is not a regular expression"),
            (["cat", "orders", "--since", "17"], 2, "is not a time"),
            (["cat", "orders:0", "--partitions", "0"], 2, "given twice"),
            (["cat", "no/topic"], 2, "is not a topic"),
            (["cat", "orders:x"], 2, "names no partitions"),
            (["cat", "orders", "--from", "yesterday"], 2, "is not a position"),
            (["cat", "orders", "--at", "17"], 2, "is not a time"),
            (["cat", "orders", "--at", "-1h", "--to", "5"], 2, "--to and --at"),
            (["cat", "orders", "-f", "%q"], 2, "%q is not a format token"),
            (["cat", "orders", "-J", "--json"], 2, "use only one of"),
            (["cat", "orders", "--bogus"], 2, "No such option"),
            (["cat", "orders", "--max-block-bytes", "10 apples"], 2, "is not a size"),
            (["cat", "orders", "--max-block-bytes", "20B"], 3, "a block claims"),
            (["cat"], 2, "TOPIC[:P[,P-P]] is missing"),
            (["frob"], 2, "No such command"),
            (["verify", "none"], 4, "topic none is not in the archive"),
        ],
    )
    def test_each_has_its_exit_code_and_its_reason(
        self, root: Path, orders: list[PartitionWriter], args: list[str], exit_code: int, what: str
    ) -> None:
        result = replayer(*args, env={"BLOCKGZ_ARCHIVE": str(root)})
        assert result.exit_code == exit_code, result.stderr
        first, *rest = result.stderr.splitlines()
        assert first.startswith("error: ")
        assert what in first
        assert rest
        assert all(line.startswith(("why:", "do:")) for line in rest)
        assert result.stdout == ""

    @pytest.mark.parametrize(
        ("address", "exit_code", "what"),
        [
            ("./none", 10, "there is no archive at file:///"),
            ("bucket", 2, "is not the address of an archive"),
            ("gs://bucket/x", 2, "is not the address of an archive"),
            ("file://dir", 2, "is not the address of an archive"),
            ("s3://", 2, "it names no bucket"),
            ("s3:///prefix", 2, "it names no bucket"),
            ("s3://b?x/a", 2, "'b?x' is not a bucket name"),
            ("s3://bucket/a?b", 2, "its prefix has '?'"),
            ("s3://bucket/a#b", 2, "its prefix has '#'"),
            ("s3://bucket/a\tb", 2, "its prefix has '\\t'"),
            ("s3://bucket/a/../b", 2, "S3 does not resolve '.' and '..'"),
        ],
    )
    def test_addresses(self, address: str, exit_code: int, what: str) -> None:
        result = replayer("ls", "-a", address)
        assert result.exit_code == exit_code, result.stderr
        assert what in result.stderr
        assert "Traceback" not in result.stderr

    def test_no_command_shows_the_help(self) -> None:
        result = exited(replayer(), 2)
        assert result.stderr.startswith("Usage: replayer")

    def test_no_address(self) -> None:
        result = exited(replayer("ls"), 2)
        assert "BLOCKGZ_ARCHIVE" in result.stderr

    def test_debug_shows_the_traceback(self, tmp_path: Path) -> None:
        assert "Traceback" in replayer("ls", "--debug", root=tmp_path / "none").stderr
        assert "Traceback" not in replayer("ls", root=tmp_path / "none").stderr

    @pytest.mark.slow
    def test_s3(self, root: Path, orders: list[PartitionWriter], monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        with s3_server() as url:
            bucket = Bucket(url, "archives")
            for path in filter(Path.is_file, root.rglob("*")):
                bucket.put(f"kafka/{path.relative_to(root)}", path.read_bytes())
            bucket.close()
            place = ("-a", "s3://archives/kafka", "--endpoint-url", url)
            (found,) = lines(replayer("get", "orders:0:5", "--stats", "--json", *place))
            assert (found["record"]["offset"], found["stats"]["requests"]) == (5, 3)
            assert len(lines(replayer("cat", "orders", "--json", *place))) == 120
            assert lines(replayer("verify", "--deep", "--json", *place))[0]["verdict"] == "WARNING"
            missing_bucket = replayer("ls", "-a", "s3://nothing-here", "--endpoint-url", url)
            assert (missing_bucket.exit_code, "no bucket nothing-here" in missing_bucket.stderr) == (10, True)
            empty_bucket = replayer("ls", "-a", "s3://archives/x", "--endpoint-url", url)
            assert (empty_bucket.exit_code, "no archive at s3://archives/x" in empty_bucket.stderr) == (10, True)
        bad_endpoint = replayer("ls", "-a", "s3://archives/x", "--endpoint-url", "nonsense")
        assert (bad_endpoint.exit_code, "is not an endpoint" in bad_endpoint.stderr) == (2, True)


@pytest.mark.parametrize("command", ["replay", "verify"])
def test_librdkafkas_properties_are_listed(command: str) -> None:
    result = succeeded(replayer(command, "-X", "list"))
    assert [line for line in result.stdout.splitlines() if line.startswith("queued.max.messages.kbytes ")]


@pytest.mark.usefixtures("orders")
def test_times_without_a_zone_are_of_the_one_that_is_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time(*args: str) -> int:
        (found,) = lines(replayer("find", "orders:0", "--time", *args, "--json", root=root))
        return int(found[0]["time_ms"])

    assert time("2025-10-09T08:53:20") == 1_760_000_000_000
    assert time("2025-10-09T10:53:20", "--timezone", "Europe/Berlin") == 1_760_000_000_000
    monkeypatch.setenv("BLOCKGZ_TIMEZONE", "Asia/Tokyo")
    assert time("2025-10-09T17:53:20") == 1_760_000_000_000
    assert replayer("get", "orders:0:2025-10-09T17:53:20.007", "-f", "%o", root=root).stdout == "7"


@pytest.mark.usefixtures("orders")
def test_a_time_that_daylight_saving_makes_double_is_refused_with_both(root: Path) -> None:
    zone = ("--timezone", "Europe/Berlin")
    for option in ("--from", "--to", "--at", "--since", "--until"):
        result = exited(replayer("cat", "orders", option, "2025-10-26T02:30", *zone, root=root), 2)
        assert "2025-10-26T00:30:00.000Z or 2025-10-26T01:30:00.000Z" in result.stderr
    positions = root / "positions.csv"
    positions.write_text("orders,0,2025-10-26T02:30\n")
    result = replayer("cat", "orders", "--positions", str(positions), *zone, root=root)
    assert (result.exit_code, "2025-10-26T02:30" in result.stderr) == (2, True)
    assert replayer("cat", "orders", "--positions", str(positions), root=root).exit_code == 0


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("name", "expected"), [("Europe/Berln", "Europe/Berlin"), ("/etc/passwd", "such as"), ("", "")]
)
def test_a_zone_that_does_not_exist_is_refused(root: Path, name: str, expected: str) -> None:
    result = replayer("cat", "orders", "--timezone", name, root=root)
    assert (result.exit_code, expected in result.stderr) == (2, True)
    assert "is not a time zone" in result.stderr


EDGES = {
    "largest": [1_760_000_000_000, 2**63 - 1],
    "lowest": [-(2**63), 1_760_000_000_000],
    "none": [-1, -1],
    "negative": [-5, -(10**12)],
    "micros": [1_760_000_000_000_000] * 2,
    "ns": [1_760_000_000_000_000_000] * 2,
}


@pytest.fixture
def edges(writer: ArchiveWriter) -> None:
    for topic, times in EDGES.items():
        partition = writer.partition(topic, 0)
        partition.commit(records(range(2), timestamps=times))
        partition.lose(5)
        partition.commit(records(range(5, 7), timestamps=times))


@pytest.mark.usefixtures("edges")
@pytest.mark.parametrize("topics", [[topic] for topic in EDGES] + [[*EDGES]], ids="+".join)
def test_coverage_of_any_timestamps(root: Path, topics: list[str]) -> None:
    found = json.loads(replayer("coverage", *topics, "--json", root=root).stdout)
    timed = any(max(EDGES[topic]) >= 0 for topic in topics)
    for topic, each in zip(topics, found["partitions"], strict=True):
        assert sum(each["records_by_slice"]) == (4 if max(EDGES[topic]) >= 0 else 0)
    for form in ("table", "svg", "html"):
        result = replayer("coverage", *topics, "--format", form, root=root)
        assert result.exit_code == (0 if timed or form != "svg" else 4), result.stderr
        assert "9223372036854775807" in result.stdout or "largest" not in topics
        assert '"nan' not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("edges")
def test_times_as_dates_or_milliseconds(root: Path) -> None:
    assert "9223372036854775807" in replayer("ls", root=root).stdout
    assert "2025-10-09" in replayer("ls", root=root).stdout
    for command in (["ls"], ["describe", "micros"], ["coverage"], ["find", "largest", "--time", "@1760000000"]):
        result = succeeded(replayer(*command, "--timestamps", "ms", root=root))
        assert "1760000000000" in result.stdout
        assert "2025-" not in result.stdout
    for topic, times in EDGES.items():
        assert replayer("cat", topic, "-n", "2", "-f", "%T ", root=root).stdout.split() == list(map(str, times))
        succeeded(replayer("find", topic, "--grep", "value", root=root))


@pytest.mark.slow
def test_records_on_the_wrong_side_of_a_time_are_named_and_printed(root: Path, writer: ArchiveWriter) -> None:
    """An end by majority warns and continues, an offset by Kafka's rule has a note if much lies behind it."""
    skewed = writer.partition("skewed", 0)
    skewed.commit(records(range(250), timestamps=[5_000] * 250))
    skewed.commit(records(range(250, 600), timestamps=[1_000] * 350))
    time = "1970-01-01T00:00:03Z"
    printed = replayer("cat", "skewed", "--at", time, root=root)
    assert (printed.exit_code, len(printed.stdout.splitlines())) == (0, 600)
    assert "warning: skewed:0  ends before offset 600 (Kafka's rule: 0)" in printed.stderr
    note = f"note: skewed:0  offset 0 is the first record stamped {time} or later: at least 350 records stamped before"
    for args in (("cat", "skewed", "--from", time), ("find", "skewed", "--time", time)):
        found = replayer(*args, root=root)
        assert (found.exit_code, note in found.stderr) == (0, True), found.stderr
