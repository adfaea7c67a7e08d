"""`archiver demo`: the main job end to end, each step a command that the user could have typed."""

import base64
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archiver.demo import (
    MEAN_SPACING_MS,
    PARTITIONS,
    DemoCluster,
    DemoRecord,
    demo_records,
    mock_cluster,
    own_topics,
    produce,
)
from blockgz.errors import MASK, BlockgzError
from blockgz.kafka.secrets import is_secret
from blockgz.program.main import closing
from blockgz.program.options import LocalPath, kafka_options
from blockgz.program.terminal import unescaped
from blockgz.units import timestamp_text

RECORDS = 20_000
PAGE = "127.0.0.1:0"
CLIENTS_HOST = "127.0.0.1"
PREVIEW_LINES = 6
COMMAND_SECONDS = 300
# Milliseconds between the newest record and now, so that no broker finds a record in the future.
SPARE_MS = 60_000


class DemoMismatch(BlockgzError):
    """A step of the demo whose result is not what was produced."""


@click.command(
    epilog=closing(
        "archiver demo",
        "archiver demo --serve",
        "archiver demo --broker",
        "archiver demo --keep ./demo-archive",
        "archiver demo -b localhost:9092",
    )
)
@kafka_options("A cluster to use instead of the one in this process.")
@click.option(
    "--keep",
    type=LocalPath(path_type=Path, file_okay=False),
    envvar="BLOCKGZ_DEMO_KEEP",
    help="Leave the archive in this new folder.",
)
@click.option("--serve", is_flag=True, help="End with the page of replayer serve on the archive, until Ctrl-C.")
@click.option("--broker", is_flag=True, help="End with replayer broker on the archive, until Ctrl-C.")
def demo(*, kafka: dict[str, str], keep: Path | None, serve: bool, broker: bool) -> None:
    """Archive a topic, look up records, replay to a point in time, and prove that the copy is equal.

    Nothing has to be installed: the broker runs inside this process, and the archive is a folder. With -b, the topics
    are created on that cluster and deleted afterwards.
    """
    if serve and broker:
        raise click.UsageError("--serve and --broker both run until Ctrl-C: use one of them")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep} is not empty")
    with tempfile.TemporaryDirectory(prefix="blockgz-demo-") as scratch:
        folder = keep.absolute() if keep is not None else Path(scratch) / "archive"
        environment = _own_environment(Path(scratch))
        is_given = "bootstrap.servers" in kafka
        with own_topics(kafka, uuid.uuid4().hex[:8]) if is_given else mock_cluster() as cluster:
            shown = _Demo(cluster, folder, environment)
            shown.tell()
            if serve:
                shown.serve()
            if broker:
                shown.serve_clients()


def _free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server((CLIENTS_HOST, 0)) as server:
        return int(server.getsockname()[1])


def _own_environment(scratch: Path) -> dict[str, str]:
    """Return the environment of the commands, without settings: they must do the same when typed in."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKGZ_")}
    folders = {f"XDG_{kind.upper()}_HOME": str(scratch / kind) for kind in ("cache", "config", "state")}
    return inherited | folders


class _Demo:
    def __init__(self, cluster: DemoCluster, folder: Path, environment: dict[str, str]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._environment = environment
        self._connection = ["-b", cluster.properties["bootstrap.servers"]]
        for name, value in cluster.properties.items():
            self._connection += ["-X", f"{name}={value}"] if name != "bootstrap.servers" else []
        self._archive = ["-a", str(folder)]
        self._screen = Console(file=unescaped(sys.stdout), highlight=False, soft_wrap=True)
        self._steps: list[tuple[str, str, float]] = []
        newest = int(time.time() * 1000) - SPARE_MS
        self._records = list(demo_records(RECORDS, PARTITIONS, newest - (RECORDS + 3) * MEAN_SPACING_MS))
        self._offsets: dict[int, list[int]] = {}
        self._moment = self._records[RECORDS * 2 // 3].timestamp

    def tell(self) -> None:
        """Run all steps and print the table; raises if one of them does not match."""
        self._step(f"produce {RECORDS:,} records", self._produce)
        self._step("archive the topic into a folder", self._archive_topic)
        self._step("look at the files", self._show_files)
        self._step("fetch three records by offset", self._fetch_three)
        self._step("seek a time", self._seek)
        self._step("replay as of that time", self._replay)
        self._step("verify the copy record by record", self._verify_copy)
        self._step("verify the archive", self._verify_archive)
        table = Table("step", "result", "seconds", box=None, pad_edge=False, title=None)
        table.columns[2].justify = "right"
        for title, result, seconds in self._steps:
            table.add_row(title, result, f"{seconds:.1f}")
        table.add_row("all", "everything matches", f"{sum(seconds for _, _, seconds in self._steps):.1f}", style="bold")
        self._screen.print()
        self._screen.print(table)

    def serve(self) -> None:
        """Serve the page until a user ends it."""
        topic, spare = self._cluster.topic, self._cluster.spare_topic
        hint = f"To try a replay, send {topic} to {spare}, which is empty." if spare else ""
        self._serve_until_ended(["serve", *self._archive, *self._connection, "--allow-replay", "--http", PAGE], hint)

    def serve_clients(self) -> None:
        """Serve the archive to Kafka clients until a user ends it."""
        where = f"{CLIENTS_HOST}:{_free_port()}"
        hint = f"In another terminal, try: kcat -C -b {where} -t {self._cluster.topic} -p 0 -o 17 -c 1"
        self._serve_until_ended(["broker", *self._archive, "--listen", where], hint)

    def _serve_until_ended(self, words: list[str], hint: str) -> None:
        self._screen.print(Text(f"\n$ {shlex.join(('replayer', *map(_without_secret, words)))}", style="cyan"))
        if hint:
            self._say(hint)
        server = subprocess.Popen([sys.executable, "-m", "replayer", *words], env=self._environment)
        try:
            server.wait()
        except KeyboardInterrupt:
            server.terminate()
            server.wait()

    def _step(self, title: str, action: Callable[[], str]) -> None:
        self._screen.print(f"\n{len(self._steps) + 1}. {title[0].upper()}{title[1:]}", style="bold", markup=False)
        started = time.monotonic()
        result = action()
        self._steps.append((title, result, time.monotonic() - started))

    def _produce(self) -> str:
        self._offsets = produce(self._cluster.properties, self._cluster.topic, self._records)
        total = sum(len(record.value or b"") for record in self._records)
        self._say(
            f"orders of a shop, {total / 1e6:.1f} MB of values; every hundredth a tombstone, without key, with four "
            "headers (one key three times, one value null), binary, or empty"
        )
        return f"{sum(map(len, self._offsets.values())):,} records in {PARTITIONS} partitions"

    def _archive_topic(self) -> str:
        topic = self._cluster.topic
        options = ["--once", "--block-bytes", "64KiB", "--groups", "none", "--json"]
        result = self._run_json("archiver", "run", topic, *self._connection, *self._archive, *options)
        stored = sum(partition["stored_bytes"] for partition in result["partitions"])
        self._expect("archived records", result["records"], RECORDS)
        return f"{result['records']:,} records in {stored / 1e6:.1f} MB"

    def _show_files(self) -> str:
        files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
        for path in visible:
            self._say(f"{path.stat().st_size:>9,}  {path.relative_to(self._folder)}")
        chunk = next(path for path in visible if path.suffix == ".gz")
        index = orjson.loads(chunk.with_name(chunk.name.replace(".gz", ".index.json")).read_bytes())
        index["chunks"] = [*index["chunks"][:2], f"… {len(index['chunks'])} blocks in all"]
        self._say(f"\nthe index of {chunk.relative_to(self._folder)}:")
        self._say(orjson.dumps(index).decode())
        self._say("")
        lines = self._run("sh", "-c", f"zcat {shlex.quote(str(chunk))} | head -2").splitlines()
        for line in lines:
            orjson.loads(line)
        return f"{len(visible)} files; zcat prints JSON lines"

    def _fetch_three(self) -> str:
        fetched = size = 0
        for partition, share in ((0, 0.1), (1, 0.5), (3, 0.9)):
            number = int(len(self._offsets[partition]) * share)
            offset = self._offsets[partition][number]
            where = f"{self._cluster.topic}:{partition}:{offset}"
            answer = self._run_json("replayer", "get", where, *self._archive, "--stats", "--json")
            self._expect_record(answer["record"], partition, number)
            stats = answer["stats"]
            self._say(
                f"{stats['requests']} requests: {stats['data_bytes_fetched']:,} bytes of a chunk of "
                f"{stats['chunk_bytes']:,}, the rest of {stats['bytes_fetched']:,} is marker and index"
            )
            fetched, size = fetched + stats["data_bytes_fetched"], size + stats["chunk_bytes"]
        return f"3 of 3 right, {fetched / size:.1%} of the bytes read"

    def _seek(self) -> str:
        moment = timestamp_text(self._moment)
        where = f"{self._cluster.topic}:2"
        line = self._run_json("replayer", "cat", where, *self._archive, "--from", moment, "-n", "1", "--json")
        number = self._first_at_or_after(2, self._moment)
        self._expect_record(line, 2, number)
        return f"offset {line['offset']}, {moment}"

    def _replay(self) -> str:
        target = ["--to-topic", self._cluster.restored_topic, "--at", timestamp_text(self._moment), "--yes", "--json"]
        result = self._run_json("replayer", "replay", self._cluster.topic, *self._archive, *self._connection, *target)
        wanted = sum(self._first_at_or_after(partition, self._moment) for partition in range(PARTITIONS))
        self._expect("replayed records", result["records"], wanted)
        return f"{result['records']:,} records"

    def _verify_copy(self) -> str:
        options = ["--against-topic", self._cluster.restored_topic, "--at", timestamp_text(self._moment), "--json"]
        return self._verify(*self._connection, *options)

    def _verify_archive(self) -> str:
        self._verify("--deep", "--records", "--json")
        return self._verify(*self._connection, "--against-topic", self._cluster.topic, "--json")

    def _verify(self, *options: str) -> str:
        result = self._run_json("replayer", "verify", self._cluster.topic, *self._archive, *options)
        self._expect("verdict", result["verdict"], "OK")
        return f"OK, {sum(partition['records'] for partition in result['partitions']):,} records"

    def _first_at_or_after(self, partition: int, moment: int) -> int:
        """Return how many records of the partition were produced before the first at or after the moment."""
        timestamps = [record.timestamp for record in self._of(partition)]
        return next((number for number, time_ms in enumerate(timestamps) if time_ms >= moment), len(timestamps))

    def _of(self, partition: int) -> list[DemoRecord]:
        return [record for record in self._records if record.partition == partition]

    def _expect_record(self, line: dict[str, Any], partition: int, number: int) -> None:
        produced = self._of(partition)[number]
        self._expect("offset", line["offset"], self._offsets[partition][number])
        self._expect("timestamp", line["timestamp"], produced.timestamp)
        self._expect("key", _content(line, "key"), produced.key)
        self._expect("value", _content(line, "value"), produced.value)
        headers = [(header["key"], _content(header, "value")) for header in line.get("headers", [])]
        self._expect("headers", headers, produced.headers)

    def _expect(self, what: str, found: Any, produced: Any) -> None:
        if found != produced:
            raise DemoMismatch(f"{what}: expected {produced!r}, found {found!r}", why="this is a bug in blockgz")

    def _run_json(self, program: str, *arguments: str) -> dict[str, Any]:
        output = self._run(program, *arguments)
        result: dict[str, Any] = orjson.loads(output)
        return result

    def _run(self, program: str, *arguments: str) -> str:
        """Show the command and the head of its output, and return all of it."""
        shown = arguments[-1] if program == "sh" else shlex.join((program, *map(_without_secret, arguments)))
        self._screen.print(Text(f"$ {shown}", style="cyan"))
        command = [program] if program == "sh" else [sys.executable, "-m", program]
        done = subprocess.run(
            [*command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        self._preview((done.stderr + done.stdout).splitlines())
        if done.returncode:
            raise DemoMismatch(
                f"the command ended with exit code {done.returncode}", why=" ".join(done.stderr.split())[-500:]
            )
        return done.stdout

    def _preview(self, lines: Sequence[str]) -> None:
        width = max(40, shutil.get_terminal_size().columns - 4)
        for line in lines[:PREVIEW_LINES]:
            self._say(line if len(line) <= width * 3 else line[: width * 3] + " …")
        if len(lines) > PREVIEW_LINES:
            self._say(f"… {len(lines) - PREVIEW_LINES} more lines")

    def _say(self, text: str) -> None:
        self._screen.print(Text(text, style="dim"))


def _without_secret(argument: str) -> str:
    name, separator, value = argument.partition("=")
    return f"{name}={MASK}" if separator and is_secret(name, value) else argument


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text: str | None = fields[name]
    return None if text is None else text.encode()
