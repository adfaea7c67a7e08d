"""Options that commands share: one name, one environment variable, one meaning everywhere.

Here stand those that need nothing else; `archive_options`, `cluster_options`, `selection_options` and
`printing_options` are modules of their own. Use as decorators above a click command; each hands over one value::

    @click.command("ls")
    @archive_options          # archive: ArchiveOptions
    @kafka_options            # kafka: KafkaOptions
    @json_option              # as_json: bool
    def command(archive: ArchiveOptions, kafka: KafkaOptions, as_json: bool) -> None: ...
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("table", "json", "jsonl", "csv")


class Duration(click.ParamType[float]):
    """Seconds: a number with ms, s, m or h, at least `min_ms`."""

    name = "duration"

    def __init__(self, min_ms: int) -> None:
        self._min_ms = min_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click.ParamType."""
        match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", str(value), re.ASCII)
        milliseconds = int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[match[2]] if match else 0
        if milliseconds < self._min_ms:
            self.fail(f"{value!r} is not a duration of at least {self._min_ms} ms; write 500ms, 2s or 1m", param, ctx)
        return milliseconds / 1000


def with_options(function: F, options: Sequence[Callable[[Any], Any]]) -> F:
    """The function with all of these decorators, the first one outermost."""
    decorated: Any = function
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)


def json_option(function: F) -> F:
    """Adds --json; passes `as_json: bool`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return option(function)


def format_option(*more: str) -> Callable[[F], F]:
    """Adds --format table|json|jsonl|csv, and `more` of them, and --json as its short form; passes `form: str`."""

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def with_format(*args: Any, form: str | None, as_json: bool, **kwargs: Any) -> Any:
            if as_json and form not in (None, "json"):
                raise click.UsageError("--json is --format json: give one of them")
            return function(*args, form="json" if as_json else form or "table", **kwargs)

        option = click.option(
            "--format", "form", type=click.Choice([*FORMS, *more]), help="How to print; a table unless told otherwise."
        )
        return json_option(cast(F, option(with_format)))

    return decorated


def interval_option(function: F) -> F:
    """Adds --interval; passes `interval: float` in seconds."""
    option = click.option(
        "--interval",
        type=Duration(min_ms=100),
        default="1s",
        show_default=True,
        help="How often to ask for what is new.",
    )
    return option(function)
