"""The options of `replayer replay`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import click

from blockgz.archive.archive import TopicPartitions, parse_topic
from blockgz.archive.positions import Rule
from blockgz.program.options import DURATION, Argument, Option, OptionSet, choice_option, dry_run_option, yes_option
from replayer.cli.options.options import jobs_option
from replayer.cli.options.selection_options import damage_option, record_options
from replayer.replay.pace import make_pace
from replayer.replay.request import CommandOption, ReplayRequest, named_target


class ReplayOptions(NamedTuple):
    """The options of a replay.

    `rate` is that of the request's pace, as it was given; with `control` the job's folder steers the replay.
    """

    request: ReplayRequest
    dry_run: bool
    yes: bool
    rate: str | None = None
    control: bool = False

    def ruled(self, rule: Rule | None) -> "ReplayOptions":
        """Return the same options with a rule for `--at`."""
        return self._replace(request=replace(self.request, selection=self.request.selection.ruled(rule)))


def _option(name: str, given: CommandOption, default: object) -> Option:
    if default is False:
        return Option(given.name, name, is_flag=True, help=given.help)
    if given.choices:
        return choice_option(given.name, name, choices=given.choices, help=given.help)
    types = {
        "text": None,
        "file": click.Path(exists=True, dir_okay=False, path_type=Path),
        "duration": DURATION,
    }
    return Option(
        given.name,
        name,
        parse=given.parse,
        type=types[given.kind],
        default=given.default,
        multiple=given.multiple,
        envvar=given.envvar,
        metavar=given.metavar,
        help=given.help,
    )


def _options() -> dict[str, Option]:
    """Map each field of a request that a command sets to its option, in the order of the help."""
    hints = get_type_hints(ReplayRequest, include_extras=True)
    found = {}
    for each in fields(ReplayRequest):
        for given in getattr(hints[each.name], "__metadata__", ()):
            found[each.name] = _option(each.name, given, each.default)
    return found


def _replay(
    topic: TopicPartitions,
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    rate: str | None,
    speed: str | None,
    control: bool,
    **given: Any,
) -> ReplayOptions:
    if given["topic_config"] and not given["create_topic"]:
        raise click.UsageError("--topic-config requires --create-topic: existing topics are not changed")
    if given["undo_retention"] and (dry_run or given["resume"]):
        raise click.UsageError("--undo-retention replays nothing: remove --resume and --dry-run")
    if control and (dry_run or given["undo_retention"]):
        raise click.UsageError("--control steers a running replay: remove --dry-run and --undo-retention")
    if control and given["job"] is None:
        raise click.UsageError("--control requires --job NAME: the name says which folder to look at")
    target = named_target(to_topic, topic, given["chain"])
    if target is None:
        raise click.UsageError("--to-topic, which says where the records go, is missing")
    request = ReplayRequest(topic, target, pace=make_pace(rate, speed), **given)
    return ReplayOptions(request, dry_run, yes, rate, control)


_BY_FIELD = _options()
TARGET_FIELDS = tuple(_BY_FIELD)[: tuple(_BY_FIELD).index("undo_retention") + 1]
"""Fields about changes to records, and about the target topic."""

replay_options = OptionSet(
    "options",
    _replay,
    Argument("topic", metavar="TOPIC[:P[,P-P]]", parse=parse_topic),
    Option(
        "--to-topic",
        metavar="TOPIC",
        help="Target topic; {topic} stands for the archived topic's name. Transforms that route by name "
        "alone can replace it.",
    ),
    record_options,
    *(option for name, option in _BY_FIELD.items() if name in TARGET_FIELDS),
    damage_option,
    *(option for name, option in _BY_FIELD.items() if name not in TARGET_FIELDS),
    dry_run_option,
    yes_option,
    jobs_option,
    Option(
        "--rate",
        metavar="N/s",
        help="Maximum rate: records (5000/s), or bytes of keys and values (20MB/s).",
    ),
    Option("--speed", metavar="Nx", help="Follow the timestamps: 1x in real time, 10x ten times as fast."),
    Option(
        "--control",
        is_flag=True,
        help="Report progress to the job's folder, and take commands from it: see replayer jobs.",
    ),
)
"""Passes `options: ReplayOptions`."""
