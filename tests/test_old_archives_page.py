"""docs/old-archives.md shows commands and options that exist, and all ways in which old records may lie."""

import re
import shlex
from pathlib import Path

import click
import pytest

from archiver.cli import main as archiver_main
from archiver.importing import IMPORT_GROUP
from index_format.chunk_index import UNVERIFIED
from index_format.old_objects import OLD_FORMATS
from replayer.cli import main as replayer_main

PAGE = (Path(__file__).parent.parent / "docs/old-archives.md").read_text()
COMMANDS = re.findall(r"^(?:archiver|replayer) .+$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line: str) -> None:
    program, *words = shlex.split(line)
    command: click.Command = archiver_main if program == "archiver" else replayer_main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    with command.make_context(line, words, resilient_parsing=True):
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known


def test_words() -> None:
    _, table = PAGE[PAGE.index("| `--old-format` |") :].split("\n\n")[0].split("|---|---|")
    assert re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE) == list(OLD_FORMATS)
    assert f"`{IMPORT_GROUP}`" in PAGE and f"`{UNVERIFIED}`" in PAGE
