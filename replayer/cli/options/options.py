"""Options that commands share: one name, one environment variable, one meaning everywhere.

Here stand those that need nothing else; `archive_options` and `selection_options` are modules of their own, and Kafka's
are in `blockgz_runtime.program.kafka_options`. Use as decorators above a click command; each hands over one value::

    @click.command("ls")
    @archive_options          # archive: ArchiveOptions
    @kafka_options()          # kafka: KafkaOptions
    @json_option              # as_json: bool
    def command(archive: ArchiveOptions, kafka: KafkaOptions, as_json: bool) -> None: ...
"""

import re
from typing import Any

import click

from blockgz_runtime.program.options import Option, OptionSet

FORMS = ("table", "json", "jsonl", "csv")


class Duration(click.ParamType[float]):
    """Seconds: a number with ms, s, m or h, at least `min_ms`."""

    name = "duration"

    def __init__(self, min_ms: int) -> None:
        self._min_ms = min_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", str(value), re.ASCII)
        milliseconds = int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[match[2]] if match else 0
        if milliseconds < self._min_ms:
            self.fail(f"{value!r} is not a duration of at least {self._min_ms} ms; write 500ms, 2s or 1m", param, ctx)
        return milliseconds / 1000


json_option = Option("--json", "as_json", is_flag=True, help="Print JSON.")
"""Passes `as_json: bool`."""

limit_option = Option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
"""`limit: int | None`."""

interval_option = Option(
    "--interval",
    type=Duration(min_ms=100),
    default="1s",
    show_default=True,
    help="How often to ask for what is new.",
)
"""Passes `interval: float` in seconds."""


def format_option(*more: str) -> OptionSet:
    """Adds --format table|json|jsonl|csv, and `more` of them, and --json as its short form; passes `form: str`."""
    return OptionSet(
        "form",
        _form,
        json_option,
        Option("--format", "form", type=click.Choice([*FORMS, *more]), help="How to print; a table by default."),
    )


def _form(form: str | None, as_json: bool) -> str:
    if as_json and form not in (None, "json"):
        raise click.UsageError("--json is --format json: give one of them")
    return "json" if as_json else form or "table"
