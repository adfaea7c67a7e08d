"""Which chunks are checked: --since and --sample."""

import functools
import random
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from replayer.read.positions import parse_time
from replayer.verify.chunk_checks import ChunkChoice

F = TypeVar("F", bound=Callable[..., Any])


class Share(click.ParamType[float]):
    """A percentage above 0 and at most 100, as a share of 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click.ParamType."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%", str(value), re.ASCII)
        share = float(match[1]) / 100 if match else 0.0
        if not 0 < share <= 1:
            self.fail(f"{value!r} is no share; write 5% or 0.5%", param, ctx)
        return share


def choice_options(function: F) -> F:
    """Adds --since --sample; passes `choice: ChunkChoice`."""

    @functools.wraps(function)
    def with_choice(*args: Any, since: str | None, sample: float, **kwargs: Any) -> Any:
        now = time.time_ns() // 1_000_000
        oldest = None if since is None else parse_time(since, now).timestamp
        return function(*args, choice=ChunkChoice(oldest, sample, random.randrange(2**32)), **kwargs)

    decorated: Any = with_choice
    for option in (
        click.option(
            "--sample",
            type=Share(),
            default="100%",
            show_default=True,
            metavar="PERCENT",
            help="Check only a random share of the chunks of each partition, at least one, such as 5%.",
        ),
        click.option(
            "--since",
            envvar="BLOCKGZ_VERIFY_SINCE",
            metavar="TIME",
            help="Check only chunks with a record at or after: a time, or a duration before now (-1d).",
        ),
    ):
        decorated = option(decorated)
    return cast(F, decorated)
