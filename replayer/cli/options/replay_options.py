"""The options of `replayer replay` as one value."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from index_format.keys import parse_topic_folder
from replayer.cli.options.damage import damage_option
from replayer.cli.options.options import with_options
from replayer.cli.options.selection_options import SelectionOptions, record_options
from replayer.cli.options.shape_options import ShapeOptions, shape_options
from replayer.cli.options.topic_argument import TopicArgument, parse_topic
from replayer.replay.pace import Pace, make_pace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ReplayOptions:
    """What is replayed, where to, and how."""

    topic: TopicArgument
    target: str
    selection: SelectionOptions
    on_damage: str
    into_source: bool
    shape: ShapeOptions
    transactional: bool
    resume: bool
    job: str | None
    job_file: Path | None
    pace: Pace
    dry_run: bool
    yes: bool


def replay_options(function: F) -> F:
    """Adds the argument and the options of the command itself; passes `options: ReplayOptions`."""
    local = [
        click.option(
            "--job-file",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Where the position is kept without --transactional, instead of $XDG_STATE_HOME/blockgz/jobs.",
        ),
        click.option(
            "--rate",
            metavar="N/s",
            help="At most so much a second: records, as 5000/s, or bytes of keys and values, as 20MB/s.",
        ),
        click.option(
            "--speed", metavar="Nx", help="Spaced as their timestamps are: 1x as then, 10x ten times as fast."
        ),
    ]
    return shared_replay_options(with_options(function, local))


def shared_replay_options(function: F) -> F:
    """The same without what only one process can keep to: a job's file and a pace."""

    @functools.wraps(function)
    def with_replay(
        *args: Any,
        topic: str,
        to_topic: str | None,
        selection: SelectionOptions,
        on_damage: str,
        shape: ShapeOptions,
        into_source: bool,
        transactional: bool,
        resume: bool,
        job: str | None,
        dry_run: bool,
        yes: bool,
        job_file: Path | None = None,
        rate: str | None = None,
        speed: str | None = None,
        **kwargs: Any,
    ) -> Any:
        wanted = parse_topic(topic)
        if shape.undo_retention and (dry_run or resume):
            raise click.UsageError("--undo-retention replays nothing: leave --resume and --dry-run out")
        if transactional and job_file is not None:
            raise click.UsageError("--transactional keeps the position in the cluster: leave --job-file out")
        options = ReplayOptions(
            wanted,
            target_name(to_topic, parse_topic_folder(wanted.topic).topic, shape),
            selection,
            on_damage,
            into_source,
            shape,
            transactional,
            resume,
            job,
            job_file,
            make_pace(rate, speed),
            dry_run,
            yes,
        )
        return function(*args, options=options, **kwargs)

    options = [
        click.argument("topic", metavar="TOPIC[:P[,P-P]]"),
        click.option(
            "--to-topic",
            metavar="TOPIC",
            help="Where the records go; {topic} in it is the archived topic's name. Transforms that route by the name "
            "alone can say it instead.",
        ),
        record_options,
        shape_options,
        damage_option,
        click.option("--into-source", is_flag=True, help="Allow --to-topic to be the archived topic itself."),
        click.option(
            "--transactional",
            is_flag=True,
            help="Exactly once: records and position in one transaction, over crashes and --resume too.",
        ),
        click.option("--resume", is_flag=True, help="Go on where the job stopped; begin it if it wrote nothing."),
        click.option(
            "--job",
            metavar="NAME",
            help="The job's name; without it one that archive, topic, target and selection give.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ]
    return cast(F, with_options(with_replay, options))


def target_name(to_topic: str | None, topic: str, shape: ShapeOptions) -> str:
    """The topic that records of `topic` go to; raises click.UsageError where nothing says it."""
    if to_topic is not None:
        return to_topic.replace("{topic}", topic)
    named = shape.chain.routed_name(topic) if shape.chain else None
    if named is None:
        raise click.UsageError("--to-topic says where the records go: it is missing")
    return named
