"""Options that reach a command as one value."""

from typing import NamedTuple

import click
from click.testing import CliRunner

from blockgz.program.options import Argument, Option, OptionSet


class Window(NamedTuple):
    first: int
    last: int | None


class Wanted(NamedTuple):
    name: str
    window: Window
    tags: tuple[str, ...]


window_options = OptionSet(
    "window",
    Window,
    Option("--from", "first", type=int, default=1, help="First."),
    Option("--to", "last", parse=int, help="Last."),
)

wanted_options = OptionSet(
    "wanted",
    Wanted,
    Argument("name", parse=str.upper),
    window_options,
    Option("--tag", "tags", multiple=True, parse=lambda tags: tuple(reversed(tags)), help="Tag."),
)


@click.command()
@wanted_options
@Option("--number", parse=lambda text: int(text) + 1)
def nested(wanted: Wanted, number: int | None) -> None:
    click.echo(f"{wanted.name} {tuple(wanted.window)} {wanted.tags} {number}")


def test_values_are_made_of_what_was_given() -> None:
    result = CliRunner().invoke(nested, ["x", "--to", "7", "--tag", "a", "--tag", "b", "--number", "3"])
    assert result.output == "X (1, 7) ('b', 'a') 4\n"


def test_what_was_not_given_is_not_parsed() -> None:
    assert CliRunner().invoke(nested, ["x"]).output == "X (1, None) () None\n"


def test_help_lists_the_options_in_order() -> None:
    page = CliRunner().invoke(nested, ["--help"]).output
    places = [page.index(name) for name in ("--from", "--to", "--tag", "--number")]
    assert places == sorted(places)


def test_a_set_can_be_used_twice() -> None:
    @click.command()
    @window_options
    def plain(window: Window) -> None:
        click.echo(window.first)

    assert CliRunner().invoke(plain, ["--from", "4"]).output == "4\n"
