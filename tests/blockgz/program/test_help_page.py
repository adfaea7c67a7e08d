"""Help pages: what comes first, the groups of options, the width, and that nothing is cut."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from blockgz.program.help_page import GROUPS, OWN
from replayer.cli import main as replayer

MOST_OWN_OPTIONS = 12
"""A command with more of its own needs another group."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = [(program, path, command) for program in (archiver, replayer) for path, command in commands(program)]
EACH = pytest.mark.parametrize(
    ("program", "path", "command"), ALL, ids=[f"{program.name} {' '.join(path)}" for program, path, _ in ALL]
)


def page(program: click.Group, *path: str) -> str:
    return CliRunner().invoke(program, [*path, "--help"], prog_name=program.name, terminal_width=110).stdout


@EACH
def test_examples_come_before_options_and_exit_codes_last(
    program: click.Group, path: tuple[str, ...], command: click.Command
) -> None:
    text = page(program, *path)
    headings = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    groups = [heading for heading in headings if heading in GROUPS]
    assert headings[0] == "Examples"
    assert headings[-1] == "Exit codes"
    assert groups == sorted(groups, key=list(GROUPS).index)
    assert groups[-1] == "Program"


@EACH
def test_every_option_is_shown_once(program: click.Group, path: tuple[str, ...], command: click.Command) -> None:
    text = page(program, *path)
    lines = [line.strip().split("  ")[0] for line in text.split("Exit codes:")[0].splitlines()]
    for param in command.params:
        if isinstance(param, click.Option):
            shown = [line for line in lines if param.opts[-1] in line.replace(",", " ").split()]
            assert shown, param.opts
    grouped = {name for names in GROUPS.values() for name in names}
    own = [param for param in command.params if isinstance(param, click.Option) and param.name not in grouped]
    assert len(own) <= MOST_OWN_OPTIONS


def test_an_option_is_in_one_group() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert GROUPS[OWN] == ()


@EACH
def test_no_summary_is_cut(program: click.Group, path: tuple[str, ...], command: click.Command) -> None:
    if isinstance(command, click.Group):
        text = " ".join(page(program, *path).split("Commands:")[1].split("Options:")[0].split())
        assert "..." not in text
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            assert inner.get_short_help_str(1000) in text


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("100", 100), ("200", 110)])
def test_the_page_is_as_wide_as_the_terminal_up_to_110(columns: str, widest: int) -> None:
    program = [sys.executable, "-m", "replayer", "verify", "--help"]
    done = subprocess.run(program, env=os.environ | {"COLUMNS": columns}, check=True, capture_output=True, text=True)
    described = done.stdout.split("Archive and cluster:")[1].splitlines()
    assert widest - 12 < max(map(len, described)) <= widest


def test_the_most_used_commands_come_first() -> None:
    assert list(archiver.list_commands(click.Context(archiver)))[:2] == ["run", "status"]


@pytest.mark.parametrize(
    ("program", "words", "suggested"),
    [
        (archiver, ["run", "--memry", "1"], "--memory"),
        (archiver, ["repair", "indx"], "index"),
        (replayer, ["replay", "--to-topc", "x"], "--to-topic"),
        (replayer, ["cat", "--archiv", "x"], "--archive"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_looks_alike(
    program: click.Group, words: list[str], suggested: str
) -> None:
    result = CliRunner().invoke(program, words, prog_name=program.name)
    assert result.exit_code == 2
    assert f"'{suggested}'" in result.stderr.splitlines()[0]
