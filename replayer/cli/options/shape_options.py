"""The options of `replayer replay` that say what becomes of records on their way, and what the target is like."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click

from blockgz_runtime.errors import UsageError
from replayer.cli.options.options import with_options
from replayer.replay.record_edits import AddHeader, TimestampPolicy, parse_header, parse_timestamps
from replayer.replay.routing import RoutingRequest, parse_routing
from replayer.replay.target_topic import parse_topic_config
from replayer.transforms.chain import Chain, build_chain
from replayer.transforms.documents import parse_document

F = TypeVar("F", bound=Callable[..., Any])

MAX_TRANSFORMS_BYTES = 1024**2


@dataclass(frozen=True)
class ShapeOptions:
    """How records are spread and changed, and what is done to the target topic."""

    routing: RoutingRequest
    timestamps: TimestampPolicy
    strip_headers: tuple[str, ...]
    add_headers: tuple[AddHeader, ...]
    provenance: bool
    tombstones: Literal["keep", "drop"]
    chain: Chain | None
    on_transform_error: Literal["fail", "skip"]
    create_topic: bool
    topic_config: dict[str, str]
    append: bool
    retention: Literal["refuse", "hold"]
    undo_retention: bool


def shape_options(function: F) -> F:
    """Adds the options; passes `shape: ShapeOptions`."""

    @functools.wraps(function)
    def with_shape(
        *args: Any,
        partitions: str,
        timestamps: str,
        strip_header: tuple[str, ...],
        add_header: tuple[str, ...],
        provenance: bool,
        tombstones: Literal["keep", "drop"],
        transforms: Path | None,
        on_transform_error: Literal["fail", "skip"],
        create_topic: bool,
        topic_config: tuple[str, ...],
        append: bool,
        retention: Literal["refuse", "hold"],
        undo_retention: bool,
        **kwargs: Any,
    ) -> Any:
        if topic_config and not create_topic:
            raise click.UsageError("--topic-config goes with --create-topic: topics that exist are not changed")
        shape = ShapeOptions(
            parse_routing(partitions),
            parse_timestamps(timestamps),
            strip_header,
            tuple(parse_header(text) for text in add_header),
            provenance,
            tombstones,
            read_chain(transforms) if transforms else None,
            on_transform_error,
            create_topic,
            dict(parse_topic_config(text) for text in topic_config),
            append,
            retention,
            undo_retention,
        )
        return function(*args, shape=shape, **kwargs)

    options = [
        click.option(
            "--partitions",
            default="keep",
            show_default=True,
            envvar="BLOCKGZ_TARGET_PARTITIONS",
            metavar="keep|by-key|N|MAP",
            help="Where records go: partition n to n; by key, as Java's producer has them (by-key:N asks for N "
            "partitions); n to n modulo N; or a map such as 0:2,1-3:0.",
        ),
        click.option(
            "--timestamps",
            default="keep",
            show_default=True,
            metavar="keep|now|shift=±TIME",
            help="Their own, the time of sending, or moved, as shift=+30d or shift=-90m.",
        ),
        click.option(
            "--strip-header", multiple=True, metavar="NAME", help="Leave headers of that name out; may be repeated."
        ),
        click.option(
            "--add-header", multiple=True, metavar="NAME=VALUE", help="Add a header to every record; may be repeated."
        ),
        click.option(
            "--provenance",
            is_flag=True,
            help="Add a header that tells where a record comes from: blockgz-source: topic/partition/offset.",
        ),
        click.option(
            "--tombstones",
            type=click.Choice(["keep", "drop"]),
            default="keep",
            show_default=True,
            help="What to do with records whose value is null.",
        ),
        click.option(
            "--transforms",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Kafka Connect's transforms and predicates, from a .properties, .yaml or .json file.",
        ),
        click.option(
            "--on-transform-error",
            type=click.Choice(["fail", "skip"]),
            default="fail",
            show_default=True,
            help="End at a record that a transform cannot handle, or leave it out and count it.",
        ),
        click.option(
            "--create-topic",
            is_flag=True,
            help="Make the topic if it is not there, like the archived one: its partitions and its configuration.",
        ),
        click.option(
            "--topic-config",
            multiple=True,
            metavar="NAME=VALUE",
            help="With --create-topic: a setting of the new topic; may be repeated.",
        ),
        click.option("--append", is_flag=True, help="Allow a topic that holds records already."),
        click.option(
            "--retention",
            type=click.Choice(["refuse", "hold"]),
            default="refuse",
            show_default=True,
            help="Refuse a topic that would delete the records, or set its retention to unlimited until the replay is "
            "complete.",
        ),
        click.option(
            "--undo-retention",
            is_flag=True,
            help="Replay nothing: set back what --retention hold of a broken-off replay left behind.",
        ),
    ]
    return cast(F, with_options(with_shape, options))


def read_chain(path: Path) -> Chain:
    """The transforms of a file; raises UsageError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TRANSFORMS_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", why=str(error), remedy="check --transforms") from error
    if len(content) > MAX_TRANSFORMS_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB", why="no transforms are", remedy="check --transforms")
    return build_chain(parse_document(str(path), text))
