"""The README's five commands as a reader would type them, from a topic to its proved copy, and what they print.

BLOCKGZ_BIN names the folder of the programs, where others than those of this environment are meant.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from archiver.demo import MEAN_SPACING_MS, demo_records, produce
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.topics import create_topic

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = Path(os.environ.get("BLOCKGZ_BIN", Path(sys.executable).parent))
RECORDS, PARTITIONS = 20_000, 4
FOUR_HOURS_MS = 4 * 3600 * 1000

VARIES = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
    (r"--job [0-9a-f]{12}", "--job NAME"),
    (r"[\d.,]+ ms|[\d.,]+ s\b|[\d,]+ records/s", "TIME"),
    (r"[\d.]+ [kMG]?B", "SIZE"),
    (r" +", " "),
)
"""What is another one each time; and columns are as wide as what they hold."""


class Block(NamedTuple):
    """A command of the README and the lines below it."""

    command: str
    output: list[str]


def blocks() -> Iterator[Block]:
    for block in re.findall(r"```\n\$ (.*?)```", README.read_text(), re.DOTALL):
        command, *output = block.splitlines()
        yield Block(command, output)


def plain(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text)
    return text.splitlines()


def walked(bootstrap: str, archive: str, env: Mapping[str, str], folder: Path) -> None:
    """Each command with this broker and archive in the place of the README's prints what stands there."""
    newest = int(time.time()) * 1000 - 60_000
    create_topic(bootstrap, "orders", PARTITIONS, {"retention.ms": "-1"})
    create_topic(bootstrap, "orders-copy", PARTITIONS, {"retention.ms": "-1"})
    first = newest - (RECORDS + 3) * MEAN_SPACING_MS
    produce({"bootstrap.servers": bootstrap}, "orders", list(demo_records(RECORDS, PARTITIONS, first)))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((newest - FOUR_HOURS_MS) / 1000))
    commands = 0
    for command, output in blocks():
        here = re.sub(r"--at \S+", f"--at {at}", command)
        here = here.replace("localhost:9092", bootstrap).replace("./archive", archive)
        program, *arguments = shlex.split(here)
        done = subprocess.run(
            [PROGRAMS / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=folder,
            env=env,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        said = done.stdout + _last_note(done.stderr)
        said = re.sub(
            r" --endpoint-url \S+", "", said.replace(bootstrap, "localhost:9092").replace(archive, "./archive")
        )
        assert plain(said.splitlines()) == plain(output), f"{command}\n{said}"
        commands += 1
    assert commands == 5


def _last_note(stderr: str) -> str:
    """What people see below the result: the proof's command, or the cost of a look-up."""
    return "".join(line for line in stderr.splitlines(keepends=True) if re.match(r"to prove it:|\d+ requests", line))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKGZ_", "AWS_", "PYTHON"))}
    return {**kept, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "80"}


def test_with_a_folder(environment: dict[str, str], own_broker: KafkaBroker, tmp_path: Path) -> None:
    walked(own_broker.bootstrap, "./archive", environment, tmp_path)


def test_with_s3(
    environment: dict[str, str], own_broker: KafkaBroker, versitygw: VersityGateway, tmp_path: Path
) -> None:
    s3 = {**versitygw.env, "BLOCKGZ_ENDPOINT_URL": versitygw.endpoint_url}
    walked(own_broker.bootstrap, versitygw.url("readme"), {**environment, **s3}, tmp_path)
