"""The options of `replayer replay` as one value."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from .options import RangeOptions, TopicArgument, parse_topic, range_options, with_options, with_partitions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ReplayOptions:
    """What is replayed, and where to."""

    topic: TopicArgument
    target: str
    positions: RangeOptions
    into_source: bool
    dry_run: bool
    yes: bool


def replay_options(function: F) -> F:
    """Adds the argument and the options of the command itself; passes `options: ReplayOptions`."""

    @functools.wraps(function)
    def with_replay(
        *args: Any,
        topic: str,
        to_topic: str,
        selection: RangeOptions,
        partitions: str | None,
        into_source: bool,
        dry_run: bool,
        yes: bool,
        **kwargs: Any,
    ) -> Any:
        wanted = with_partitions(parse_topic(topic), partitions)
        options = ReplayOptions(wanted, to_topic, selection, into_source, dry_run, yes)
        return function(*args, options=options, **kwargs)

    options = [
        click.argument("topic", metavar="TOPIC[:P[,P-P]]"),
        click.option(
            "--to-topic",
            required=True,
            envvar="BLOCKGZ_TO_TOPIC",
            show_envvar=True,
            metavar="TOPIC",
            help="Where the records go; it must exist, with at least as many partitions.",
        ),
        range_options,
        click.option(
            "--partitions",
            envvar="BLOCKGZ_PARTITIONS",
            show_envvar=True,
            metavar="P,P-P",
            help="Only these partitions.",
        ),
        click.option(
            "--into-source",
            is_flag=True,
            envvar="BLOCKGZ_INTO_SOURCE",
            show_envvar=True,
            help="Allow --to-topic to be the archived topic itself.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            envvar="BLOCKGZ_DRY_RUN",
            show_envvar=True,
            help="Print the plan and write nothing.",
        ),
        click.option("--yes", is_flag=True, envvar="BLOCKGZ_YES", show_envvar=True, help="Do not ask."),
    ]
    return cast(F, with_options(with_replay, options))
