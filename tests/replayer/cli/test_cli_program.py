"""What holds for every command of the program, those inside groups too."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from blockgz.program.command import NEVER_FROM_ENVIRONMENT, completed
from blockgz.program.main import EXIT_CODES, CommandPlace, Program
from blockgz.program.options import TimeOption
from replayer.cli import COMMANDS, main


def replayer(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="replayer")


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ALL = list(commands(main))


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_every_help_shows_an_example_and_the_exit_codes(path: tuple[str, ...]) -> None:
    page = replayer(*path, "--help").stdout
    assert f"  replayer {' '.join(path)}" in page.split("Examples:")[1]
    assert all(f"{code:>3}  {meaning}" in page for code, meaning in EXIT_CODES.items())


def test_an_option_has_one_environment_variable_everywhere() -> None:
    variables: dict[str, set[str]] = {}
    for path, command in ALL:
        if isinstance(command, click.Group):
            continue
        page = " ".join(replayer(*path, "--help").stdout.split())
        assert "BLOCKGZ_DEBUG" in [option.envvar for option in command.params if isinstance(option, click.Option)]
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in NEVER_FROM_ENVIRONMENT:
                assert isinstance(option.envvar, str), (path, option.opts)
                assert option.envvar.startswith("BLOCKGZ_")
                assert f"[env var: {option.envvar}" in page
                variables.setdefault(option.envvar, set()).add(option.opts[-1])
    assert all(len(options) == 1 for options in variables.values()), variables


def test_every_option_that_takes_a_time_says_what_zone_it_is_in() -> None:
    found = set()
    for path, command in ALL:
        times = {param.name: param for param in command.params if isinstance(param, TimeOption)}
        takers = {"--from", "--to", "--at", "--since", "--until", "--time"}
        assert times.keys() >= {each.name for each in command.params if takers & {*each.opts}}, path
        assert not times or "timezone" in [param.name for param in command.params], path
        assert all("without a zone is UTC (see --timezone)" in str(param.help) for param in times.values())
        found |= {path[0]} if times else set()
    assert found >= {"cat", "drill", "export", "find", "grep", "groups", "replay", "restore", "spark", "tail", "verify"}


def test_consent_is_never_taken_from_the_environment() -> None:
    options = {option.opts[-1]: option.envvar for _, command in ALL for option in command.params}
    assert (options["--yes"], options["--into-source"]) == (None, None)


def test_a_mistyped_command_is_answered_with_those_that_look_alike() -> None:
    result = replayer("replya")
    assert result.exit_code == 2
    assert "No such command 'replya'. Did you mean 'replay'" in result.stderr
    assert "Did you mean" not in replayer("xyz").stderr


def test_the_help_page_has_the_whole_summaries() -> None:
    page = " ".join(replayer("--help").stdout.split())
    assert "..." not in page.split("Commands:")[1].split("Examples:")[0]
    assert all(place.summary in page for place in COMMANDS.values())


def test_commands_inside_groups_are_completed_once() -> None:
    @click.command("inner")
    @click.option("-l", "--long-name", "renamed")
    @click.option("-f", "template", envvar="BLOCKGZ_TEMPLATE")
    def inner(renamed: str | None, template: str | None) -> None:
        click.echo(f"{renamed} {template}")

    plain = click.Group("plain", commands=[inner])
    whole = completed(completed(click.Group("outer", commands=[plain])))
    result = CliRunner().invoke(
        whole, ["plain", "inner", "--debug"], env={"BLOCKGZ_LONG_NAME": "x", "BLOCKGZ_TEMPLATE": "y"}
    )
    assert (result.exit_code, result.output) == (0, "x y\n")
    assert [param.name for param in inner.params] == ["renamed", "template", "debug"]


def test_commands_of_a_group_inside_the_program_are_completed() -> None:
    nested = Program("nested", places={"reports": CommandPlace("replayer.cli.report:verify_report", "Reports.")})
    outer = completed(click.Group("outer", commands=[nested]))
    help_page = CliRunner().invoke(outer, ["nested", "reports", "--help"]).output
    assert "BLOCKGZ_REPORT_KEY" in help_page
    assert "BLOCKGZ_DEBUG" in help_page
