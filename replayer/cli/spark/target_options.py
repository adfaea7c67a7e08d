"""Options about where a job writes."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def mode_option(function: F) -> F:
    """Adds --mode; passes `mode: str`, as Spark has it."""
    option = click.option(
        "--mode",
        type=click.Choice(["error", "append", "overwrite"]),
        default="error",
        show_default=True,
        envvar="BLOCKGZ_SPARK_MODE",
        help="Where something is there already: refuse, add to it, or put this in its place.",
    )
    return option(function)


def partition_by_option(function: F) -> F:
    """Adds --partition-by; passes `partition_by: tuple[str, ...]`."""
    option = click.option(
        "--partition-by",
        default="",
        metavar="PART,PART",
        callback=lambda _ctx, _param, text: tuple(part.strip() for part in text.split(",") if part.strip()),
        help="Folders by topic, date, hour (of the timestamp, UTC) or value.FIELD.",
    )
    return option(function)
