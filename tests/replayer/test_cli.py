"""The program as a user runs it: output, contracts of --json, errors with their exit codes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from index_format.record_formats.json_lines import json_object
from index_format.records import Record
from replayer.cli import COMMANDS, main
from replayer.cli.program import EXIT_CODES
from tests.support.archives import ArchiveWriter, PartitionWriter, records
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
        first, second = lines(replayer("get", "orders:0:5", "orders:0:39", "--stats", "--json", root=root))
        assert first["record"]["offset"] == 5
        assert first["stats"]["requests"] == 3
        assert second["stats"]["requests"] == 1
        assert 0 < first["stats"]["data_bytes_fetched"] < first["stats"]["chunk_bytes"]
        assert second["stats"]["bytes_fetched"] == second["stats"]["data_bytes_fetched"]
        assert first["stats"]["seconds"] > 0
        assert "3 requests" in replayer("get", "orders:0:5", "--stats", root=root).stderr

    def test_bytes_that_are_not_text(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("raw", 0).commit([Record(0, -1, -1, b"\xff", bytes(range(256)), (("h", b"\xfe"),))])
        (line,) = lines(replayer("get", "raw:0:0", "--json", root=root))
        assert line["key_base64"] == "/w=="
        assert line["headers"] == [{"key": "h", "value_base64": "/g=="}]
        assert line["timestamp_type"] == "NoTimestampType"
        assert replayer("get", "raw:0:0", root=root).stdout_bytes == bytes(range(256)) + b"\n"

    def test_several_go_on_behind_one_that_is_absent(self, root: Path, orders: list[PartitionWriter]) -> None:
        result = replayer("get", "orders:1:50", "orders:1:100", "-f", "%o\n", root=root)
        assert (result.exit_code, result.stdout) == (4, "100\n")
        assert "recorded gap from 40 to 100" in result.stderr


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
            (["orders", "-n", "61", "--from", "earliest", "--to", "latest"], [*(f"0:{n}" for n in range(60)), "1:0"]),
        ],
    )
    def test_selects(self, root: Path, orders: list[PartitionWriter], args: list[str], expected: list[str]) -> None:
        result = replayer("cat", *args, "-f", "%p:%o\\n", root=root)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.split() == expected

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
        result = replayer("cat", "orders:0", "-f", "%o\\n", root=root)
        assert result.exit_code == 3
        assert result.stdout.split()[:40] == [str(offset) for offset in range(40)]
        assert "is damaged" in result.stderr

    def test_a_reader_that_goes_away_is_no_failure(self, root: Path, writer: ArchiveWriter) -> None:
        writer.partition("big", 0).commit(records(range(5000), value_bytes=200), block_bytes=50_000)
        command = f"{sys.executable} -m replayer cat big -a {root} | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("value of 0")

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
        *("orders", "2", "120", "4"),
        *table[2].split()[4:6],
        *("0..120", "2025-10-09T08:53:20.000+00:00", "2025-10-09T08:53:20.119+00:00"),
    ]


def test_describe(root: Path, orders: list[PartitionWriter]) -> None:
    (described,) = lines(replayer("describe", "orders:1", "--json", root=root))
    (partition,) = described["partitions"]
    assert partition["gaps"] == [{"from": 40, "to": 100, "reason": "retention"}]
    assert (partition["epoch"], partition["writer"], partition["chunks"]) == (2, "writer-2", 2)
    assert partition["last_chunk_index"] == f"{100:020d}.index.json"
    assert "gap 40..100 (retention)" in replayer("describe", "orders", root=root).stdout


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

    def test_damage_is_a_failure_that_names_what_is_lost(self, root: Path, orders: list[PartitionWriter]) -> None:
        (index,) = root.glob("topic=orders/partition=00001/00000000000000000100.index.json")
        index.unlink()
        result = replayer("verify", "orders", "--json", root=root)
        assert result.exit_code == 3
        report = json.loads(result.stdout)
        assert report["verdict"] == "FAILURE"
        (lost,) = report["partitions"][1]["lost"]
        assert (lost["from"], lost["to"]) == (100, 120)
        assert "is missing" in lost["reason"]
        text = replayer("verify", "orders:1", root=root)
        assert "FAILURE orders:1 lost 100..120" in text.stdout
        assert text.stdout.splitlines()[-1] == "FAILURE"


class TestErrors:
    @pytest.mark.parametrize(
        ("args", "exit_code", "what"),
        [
            (["get", "orders:0:1000"], 4, "there is no record orders:0:1000"),
            (["get", "order:0:1"], 4, "topic order is not in the archive"),
            (["get", "orders:7:1"], 4, "partition 7 of orders is not in the archive"),
            (["get", "orders:7"], 2, "'orders:7' names no record"),
            (["cat", "no/topic"], 2, "is not a topic"),
            (["cat", "orders:x"], 2, "names no partitions"),
            (["cat", "orders", "--from", "yesterday"], 2, "is not a position"),
            (["cat", "orders", "--at", "17"], 2, "is not a time"),
            (["cat", "orders", "--at", "-1h", "--to", "5"], 2, "--to and --at"),
            (["cat", "orders", "-f", "%q"], 2, "%q is not a format token"),
            (["cat", "orders", "-J", "--json"], 2, "exclude each other"),
            (["cat", "orders", "--bogus"], 2, "No such option"),
            (["cat", "orders", "--max-block-bytes", "10 apples"], 2, "is not a size"),
            (["cat", "orders", "--max-block-bytes", "20B"], 3, "a block says"),
            (["cat"], 2, "Missing argument"),
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
            ("s3://", 2, "is not the address of an archive"),
        ],
    )
    def test_addresses(self, address: str, exit_code: int, what: str) -> None:
        result = replayer("ls", "-a", address)
        assert result.exit_code == exit_code, result.stderr
        assert what in result.stderr
        assert "Traceback" not in result.stderr

    def test_no_command_shows_the_help(self) -> None:
        result = replayer()
        assert result.exit_code == 2
        assert result.stderr.startswith("Usage: replayer")

    def test_no_address(self) -> None:
        result = replayer("ls")
        assert result.exit_code == 2
        assert "BLOCKGZ_ARCHIVE" in result.stderr

    def test_debug_shows_the_traceback(self, tmp_path: Path) -> None:
        assert "Traceback" in replayer("ls", "--debug", root=tmp_path / "none").stderr
        assert "Traceback" not in replayer("ls", root=tmp_path / "none").stderr

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


def commands() -> list[click.Command]:
    context = click.Context(main)
    return [command for name in COMMANDS if (command := main.get_command(context, name)) is not None]


def test_every_help_shows_an_example_and_the_exit_codes() -> None:
    for args in ([], *([command.name] for command in commands())):
        page = replayer(*args, "--help").stdout
        assert "Examples:" in page
        assert all(f"{code:>3}  {meaning}" in page for code, meaning in EXIT_CODES.items())


def test_an_option_has_one_environment_variable_everywhere() -> None:
    variables: dict[str, set[str]] = {}
    for command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert isinstance(parameter.envvar, str), (command.name, parameter.opts)
                assert parameter.envvar.startswith("BLOCKGZ_")
                variables.setdefault(parameter.envvar, set()).add(parameter.opts[-1])
    assert all(len(options) == 1 for options in variables.values()), variables


@pytest.mark.parametrize("command", ["replay", "verify"])
def test_librdkafkas_properties_are_listed(command: str) -> None:
    result = replayer(command, "-X", "list")
    assert result.exit_code == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("queued.max.messages.kbytes ")]
