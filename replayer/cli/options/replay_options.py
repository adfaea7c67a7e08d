"""The options of `replayer replay`."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from blockgz.archive.archive import TopicPartitions, parse_topic
from blockgz.archive.positions import Rule
from blockgz.program.options import DURATION, Argument, Option, OptionSet, choice_option, dry_run_option, yes_option
from replayer.cli.options.options import jobs_option
from replayer.cli.options.selection_options import damage_option, record_options
from replayer.replay.pace import make_pace
from replayer.replay.pipeline import parse_routing
from replayer.replay.request import ReplayRequest, Shape, named_target, parse_compression
from replayer.replay.stages import parse_header, parse_timestamps
from replayer.replay.target_topic import parse_topic_config
from replayer.transforms.chain import build_chain
from replayer.transforms.settings import read_transforms


class ReplayOptions(NamedTuple):
    """What is asked for, and whether it is done without a question, or not at all.

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


def _shape(**fields: Any) -> Shape:
    if fields["topic_config"] and not fields["create_topic"]:
        raise click.UsageError("--topic-config requires --create-topic: existing topics are not changed")
    return Shape(**fields)


shape_options = OptionSet(
    "shape",
    _shape,
    Option(
        "--partitions",
        "routing",
        parse=parse_routing,
        default="keep",
        envvar="BLOCKGZ_TARGET_PARTITIONS",
        metavar="keep|by-key|N|MAP",
        help="Target partition: keep it; by key, as Java's producer does (by-key:N requires N "
        "partitions); n modulo N; or a map such as 0:2,1-3:0.",
    ),
    Option(
        "--timestamps",
        parse=parse_timestamps,
        default="keep",
        metavar="keep|now|shift=±TIME",
        help="Keep timestamps, use the time of sending, or shift them: shift=+30d, shift=-90m.",
    ),
    Option(
        "--strip-header",
        "strip_headers",
        multiple=True,
        metavar="NAME",
        help="Remove all headers with this name; may be repeated.",
    ),
    Option(
        "--add-header",
        "add_headers",
        parse=lambda texts: tuple(map(parse_header, texts)),
        multiple=True,
        metavar="NAME=VALUE",
        help="Add a header to every record; may be repeated.",
    ),
    Option(
        "--provenance",
        is_flag=True,
        help="Add a header with the record's origin, blockgz-source: topic/partition/offset.",
    ),
    choice_option("--tombstones", choices=["keep", "drop"], help="What to do with records whose value is null."),
    Option(
        "--transforms",
        "chain",
        parse=lambda path: build_chain(read_transforms(path)),
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Apply Kafka Connect's transforms and predicates from a .properties, .yaml or .json file.",
    ),
    choice_option(
        "--on-transform-error",
        choices=["fail", "skip"],
        help="When a transform cannot handle a record: stop, or skip and count it.",
    ),
    Option(
        "--allow-unchanged",
        is_flag=True,
        help="Allow transforms that do nothing to the first 1,000 records: a field that none of them has, say.",
    ),
    Option(
        "--create-topic",
        is_flag=True,
        help="Create the topic if it is missing, with the archived topic's partitions and configuration.",
    ),
    Option(
        "--topic-config",
        parse=lambda texts: dict(map(parse_topic_config, texts)),
        multiple=True,
        metavar="NAME=VALUE",
        help="With --create-topic: a setting of the new topic; may be repeated.",
    ),
    Option("--append", is_flag=True, help="Allow a topic that already holds records."),
    choice_option(
        "--retention",
        choices=["refuse", "hold"],
        help="If the topic's retention would delete the records: refuse, or lift it until the replay is complete.",
    ),
    Option(
        "--undo-retention",
        is_flag=True,
        help="Replay nothing; restore the retention that an interrupted replay with --retention hold left lifted.",
    ),
)
"""Passes `shape: Shape`: what becomes of records on their way, and what the target is like."""


def _replay(
    topic: TopicPartitions,
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    rate: str | None = None,
    speed: str | None = None,
    control: bool = False,
    **fields: Any,
) -> ReplayOptions:
    shape: Shape = fields["shape"]
    if shape.undo_retention and (dry_run or fields["resume"]):
        raise click.UsageError("--undo-retention replays nothing: remove --resume and --dry-run")
    if control and (dry_run or shape.undo_retention):
        raise click.UsageError("--control steers a running replay: remove --dry-run and --undo-retention")
    if control and fields["job"] is None:
        raise click.UsageError("--control requires --job NAME: the name says which folder to look at")
    target = named_target(to_topic, topic, shape.chain)
    if target is None:
        raise click.UsageError("--to-topic, which says where the records go, is missing")
    request = ReplayRequest(topic, target, pace=make_pace(rate, speed), **fields)
    return ReplayOptions(request, dry_run, yes, rate, control)


_SHARED = (
    Argument("topic", metavar="TOPIC[:P[,P-P]]", parse=parse_topic),
    Option(
        "--to-topic",
        metavar="TOPIC",
        help="Target topic; {topic} stands for the archived topic's name. Transforms that route by name "
        "alone can replace it.",
    ),
    record_options,
    shape_options,
    damage_option,
    Option("--into-source", is_flag=True, help="Allow --to-topic to be the archived topic itself."),
    Option(
        "--transactional",
        is_flag=True,
        help="Exactly once, even across crashes and --resume: commit records and position in one transaction.",
    ),
    Option(
        "--partial",
        is_flag=True,
        help="If the archive lacks partitions, replay the others and exit with 3.",
    ),
    Option("--resume", is_flag=True, help="Resume where the job stopped; start it if it has written nothing."),
    Option(
        "--job",
        metavar="NAME",
        help="Name of the job. The default is derived from archive, topic, target and selection.",
    ),
    Option(
        "--compression",
        parse=parse_compression,
        metavar="CODEC[:LEVEL]",
        help="Compression of batches: lz4 (default), zstd, snappy, gzip or none; optionally a level: zstd:3.",
    ),
    dry_run_option,
    yes_option,
)

shared_replay_options = OptionSet("options", _replay, *_SHARED)
"""As `replay_options`, without what only one process can keep to: a job's folder, patience and a pace."""

replay_options = OptionSet(
    "options",
    _replay,
    *_SHARED,
    jobs_option,
    Option(
        "--patience",
        type=DURATION,
        default="5m",
        metavar="TIME",
        help="How long to wait for brokers that do not respond.",
    ),
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
