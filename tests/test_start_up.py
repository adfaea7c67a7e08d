"""No command imports what it does not use: a short one takes a quarter of a second, of which imports are nearly all."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from archiver.cli import main as archiver
from blockgz.program.main import Program
from replayer.cli import main as replayer
from replayer.cli.spark import command as replayer_spark
from tests.support.archives import ArchiveWriter, records

ROOT = Path(__file__).parent.parent
PANDAS = {"pandas._libs", "pandas.core.api"}
"""Pyarrow would load it with the first array; that it is looked for does no harm."""
CLIENTS = {"confluent_kafka", "aiobotocore", "botocore", "boto3"}
SERVICES = {"structlog", "pydantic", "yaml", "prometheus_client", "http.server", "pyspark"}
ARROW = {"numpy", "pyarrow", "isal", "zstandard"}
ALWAYS = PANDAS | CLIENTS | SERVICES
"""What no command that reads a folder may import."""

STARTS = {
    "archiver --help": ALWAYS | ARROW | {"asyncio", "msgspec", "rich.console", "blockgz.config", "archiver.cli.run"},
    "replayer --help": ALWAYS | ARROW | {"asyncio", "msgspec", "rich.console", "replayer.cli.get"},
    "replayer spark --help": ALWAYS | ARROW | {"asyncio", "msgspec", "rich.console"},
    "replayer ls": ALWAYS | ARROW,
    "replayer describe orders": ALWAYS | ARROW,
    "replayer get orders:0:1": ALWAYS
    | {"pyarrow.compute", "numpy.ma", "rich.console", "replayer.replay", "blockgz.record_filter"},
    "replayer cat orders": ALWAYS | {"numpy.ma", "rich.console", "replayer.replay"},
    "replayer verify --records": ALWAYS,
}
"""Commands, and what each of them does not use."""


@pytest.mark.slow
@pytest.mark.parametrize("command", STARTS)
def test_a_command_imports_nothing_that_it_does_not_use(command: str, tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(3)))
    loaded = imported(command, tmp_path)
    assert f"{command.split(maxsplit=1)[0]}.cli" in loaded
    assert loaded & STARTS[command] == set()


@pytest.mark.slow
def test_what_a_look_up_imports_is_seen(tmp_path: Path) -> None:
    """Were nothing seen, the test above would always pass."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(3)))
    assert {"numpy", "pyarrow", "blockgz.archive.lookup"} <= imported("replayer get orders:0:1", tmp_path)


def imported(command: str, archive: Path) -> set[str]:
    """The modules that a whole program imports."""
    where = [] if "--help" in command else ["-a", str(archive)]
    program = [sys.executable, "-X", "importtime", "-m", *command.split(), *where]
    done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=ROOT)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize("group", [archiver, replayer, replayer_spark], ids=["archiver", "replayer", "replayer spark"])
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(group: click.Command) -> None:
    assert isinstance(group, Program)
    context = click.Context(group)
    for name, (_, summary) in group.places.items():
        command = group.get_command(context, name)
        assert command is not None
        assert summary == command.get_short_help_str(limit=1000), name


@pytest.mark.parametrize("program", ["archiver", "replayer"])
@pytest.mark.parametrize(("chosen", "then"), [(None, "1"), ("3", "3")])
def test_openblas_has_one_thread_unless_the_user_chose(
    program: str, chosen: str | None, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", chosen)
    code = f"""
import os, sys
import {program}.__main__ as program
assert "numpy" not in sys.modules
program.run_to_exit = lambda *_: print(os.environ["OPENBLAS_NUM_THREADS"])
program.run()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == then
