"""The options of `replayer replay`."""

from pathlib import Path
from typing import Any, NamedTuple

import click

from blockgz_runtime.program.options import DURATION, Argument, Option, OptionSet, choice_option
from replayer.cli.options.options import jobs_option
from replayer.cli.options.selection_options import damage_option, record_options
from replayer.read.topics import TopicPartitions, parse_topic
from replayer.replay.pace import make_pace
from replayer.replay.request import ReplayRequest, Shape, named_target
from replayer.replay.routing import parse_routing
from replayer.replay.sinks.compression import parse_compression
from replayer.replay.stages import parse_header, parse_timestamps
from replayer.replay.target_topic import parse_topic_config
from replayer.transforms.chain import build_chain
from replayer.transforms.documents import read_transforms


class ReplayOptions(NamedTuple):
    """What is asked for, and whether it is done without a question, or not at all."""

    request: ReplayRequest
    dry_run: bool
    yes: bool


def _shape(**fields: Any) -> Shape:
    if fields["topic_config"] and not fields["create_topic"]:
        raise click.UsageError("--topic-config goes with --create-topic: topics that exist are not changed")
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
        help="Where records go: partition n to n; by key, as Java's producer has them (by-key:N asks for N "
        "partitions); n to n modulo N; or a map such as 0:2,1-3:0.",
    ),
    Option(
        "--timestamps",
        parse=parse_timestamps,
        default="keep",
        metavar="keep|now|shift=±TIME",
        help="Their own, the time of sending, or moved, as shift=+30d or shift=-90m.",
    ),
    Option(
        "--strip-header",
        "strip_headers",
        multiple=True,
        metavar="NAME",
        help="Leave headers of that name out; may be repeated.",
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
        help="Add a header that tells where a record comes from: blockgz-source: topic/partition/offset.",
    ),
    choice_option("--tombstones", choices=["keep", "drop"], help="What to do with records whose value is null."),
    Option(
        "--transforms",
        "chain",
        parse=lambda path: build_chain(read_transforms(path)),
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Kafka Connect's transforms and predicates, from a .properties, .yaml or .json file.",
    ),
    choice_option(
        "--on-transform-error",
        choices=["fail", "skip"],
        help="End at a record that a transform cannot handle, or leave it out and count it.",
    ),
    Option(
        "--create-topic",
        is_flag=True,
        help="Make the topic if it is not there, like the archived one: its partitions and its configuration.",
    ),
    Option(
        "--topic-config",
        parse=lambda texts: dict(map(parse_topic_config, texts)),
        multiple=True,
        metavar="NAME=VALUE",
        help="With --create-topic: a setting of the new topic; may be repeated.",
    ),
    Option("--append", is_flag=True, help="Allow a topic that holds records already."),
    choice_option(
        "--retention",
        choices=["refuse", "hold"],
        help="Refuse a topic that would delete the records, or set its retention to unlimited until the replay is "
        "complete.",
    ),
    Option(
        "--undo-retention",
        is_flag=True,
        help="Replay nothing: set back what --retention hold of a broken-off replay left behind.",
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
    **fields: Any,
) -> ReplayOptions:
    shape: Shape = fields["shape"]
    if shape.undo_retention and (dry_run or fields["resume"]):
        raise click.UsageError("--undo-retention replays nothing: leave --resume and --dry-run out")
    target = named_target(to_topic, topic, shape.chain)
    if target is None:
        raise click.UsageError("--to-topic says where the records go: it is missing")
    return ReplayOptions(ReplayRequest(topic, target, pace=make_pace(rate, speed), **fields), dry_run, yes)


_SHARED = (
    Argument("topic", metavar="TOPIC[:P[,P-P]]", parse=parse_topic),
    Option(
        "--to-topic",
        metavar="TOPIC",
        help="Where the records go; {topic} in it is the archived topic's name. Transforms that route by the name "
        "alone can say it instead.",
    ),
    record_options,
    shape_options,
    damage_option,
    Option("--into-source", is_flag=True, help="Allow --to-topic to be the archived topic itself."),
    Option(
        "--transactional",
        is_flag=True,
        help="Exactly once: records and position in one transaction, over crashes and --resume too.",
    ),
    Option(
        "--partial",
        is_flag=True,
        help="Replay what is there if the archive lacks partitions; the exit code is 3 then.",
    ),
    Option("--resume", is_flag=True, help="Resume where the job stopped; begin it if it wrote nothing."),
    Option(
        "--job", metavar="NAME", help="The job's name; without it one that archive, topic, target and selection give."
    ),
    Option(
        "--compression",
        parse=parse_compression,
        metavar="CODEC[:LEVEL]",
        help="How batches are compressed: lz4 (default), zstd, snappy, gzip or none; with a level as zstd:3.",
    ),
    Option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    Option("--yes", is_flag=True, help="Do not ask."),
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
        help="How long brokers may stand still before the replay gives up.",
    ),
    Option(
        "--rate",
        metavar="N/s",
        help="At most so much a second: records, as 5000/s, or bytes of keys and values, as 20MB/s.",
    ),
    Option("--speed", metavar="Nx", help="Spaced as their timestamps are: 1x as then, 10x ten times as fast."),
)
"""Passes `options: ReplayOptions`."""
