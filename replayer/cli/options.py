"""Options that commands share: one name, one environment variable, one meaning everywhere.

Use as decorators above a click command; each hands over one value::

    @click.command("ls")
    @archive_options          # archive: ArchiveOptions
    @kafka_options            # kafka: KafkaOptions
    @json_option              # as_json: bool
    def command(archive: ArchiveOptions, kafka: KafkaOptions, as_json: bool) -> None: ...
"""

import asyncio
import functools
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from index_format.addresses import Address, parse_address
from index_format.ancestor.payloads import ANCESTORS_FORMAT, OLD_FORMATS, OldFormat
from index_format.blocks import DEFAULT_MAX_BLOCK_BYTES
from index_format.keys import parse_topic_folder

from ..ancestor import ancestor_finder
from ..archive import Archive, ArchivedPartition
from ..errors import UsageError
from ..positions import OffsetRange, Position, parse_position, parse_time, resolve_range
from ..selection import Selection
from ..stores.counting import CountingReader
from ..stores.opening import open_reader
from .program import debug

F = TypeVar("F", bound=Callable[..., Any])

MAX_PARTITIONS = 100_000
SHOWN_NOTES = 20


@dataclass(frozen=True)
class ArchiveOptions:
    """Where the archive is and what a reader accepts."""

    address: Address
    endpoint_url: str | None
    region: str | None
    max_block_bytes: int
    old_format: OldFormat = ANCESTORS_FORMAT


@dataclass(frozen=True)
class KafkaOptions:
    """How to reach a cluster: `properties` are librdkafka's, bootstrap.servers among them where it was given."""

    properties: dict[str, str]


@dataclass(frozen=True)
class RangeOptions:
    """`--from --to --at`, parsed; `--at` has become the end."""

    start: Position | None
    end: Position | None

    async def resolve(self, partition: ArchivedPartition) -> OffsetRange:
        """The offsets that are meant in one partition."""
        return await resolve_range(partition, self.start, self.end)


@dataclass(frozen=True)
class TopicArgument:
    """`orders`, `orders:3` or `orders:0,2-4`; partitions is None for all."""

    topic: str
    partitions: tuple[int, ...] | None


class Size(click.ParamType[int]):
    """Bytes: a number with B, kB, MB, KiB, MiB or GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click.ParamType."""
        try:
            return int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            self.fail(f"{value!r} is not a size; write 1048576, 64kB or 256MiB", param, ctx)


def archive_options(function: F) -> F:
    """Adds -a/--archive and what goes with it, and --debug; passes `archive: ArchiveOptions`."""

    @functools.wraps(function)
    def with_archive(
        *args: Any,
        archive: str,
        endpoint_url: str | None,
        region: str | None,
        max_block_bytes: int,
        old_format: str,
        key_delimiter: str,
        **kwargs: Any,
    ) -> Any:
        try:
            parsed = OldFormat.of_options(old_format, key_delimiter)
        except ValueError as error:
            raise UsageError(
                f"--key-delimiter {key_delimiter!r} cannot be used",
                why=str(error),
                remedy=r"write it as '\t' or '\x1f'",
            ) from error
        options = ArchiveOptions(parse_address(archive), endpoint_url, region, max_block_bytes, parsed)
        return function(*args, archive=options, **kwargs)

    options = [
        click.option(
            "-a",
            "--archive",
            required=True,
            envvar="BLOCKGZ_ARCHIVE",
            show_envvar=True,
            metavar="ADDRESS",
            help="The archive: s3://bucket/prefix, file:///dir or ./dir.",
        ),
        click.option(
            "--endpoint-url",
            envvar="BLOCKGZ_ENDPOINT_URL",
            show_envvar=True,
            metavar="URL",
            help="Where the S3 API is, if not at AWS.",
        ),
        click.option("--region", envvar="BLOCKGZ_REGION", show_envvar=True, help="The bucket's region."),
        click.option(
            "--max-block-bytes",
            type=Size(),
            default=DEFAULT_MAX_BLOCK_BYTES,
            show_default="256MiB",
            envvar="BLOCKGZ_MAX_BLOCK_BYTES",
            show_envvar=True,
            help="Refuse blocks that inflate to more.",
        ),
        click.option(
            "--old-format",
            type=click.Choice(OLD_FORMATS),
            default=OLD_FORMATS[0],
            show_default=True,
            envvar="BLOCKGZ_OLD_FORMAT",
            show_envvar=True,
            help="How records lie in an archive of kafka-connect-s3 or a fork.",
        ),
        click.option(
            "--key-delimiter",
            default=r"\t",
            show_default=True,
            envvar="BLOCKGZ_KEY_DELIMITER",
            show_envvar=True,
            help="Of --old-format delimited.",
        ),
        click.option(
            "--debug",
            is_flag=True,
            envvar="BLOCKGZ_DEBUG",
            show_envvar=True,
            expose_value=False,
            callback=lambda _ctx, _param, value: debug.set(value),
            help="Show tracebacks.",
        ),
    ]
    return cast(F, _with_options(with_archive, options))


def kafka_options(function: F) -> F:
    """Adds -b/--bootstrap-server -X; passes `kafka: KafkaOptions`."""

    @functools.wraps(function)
    def with_kafka(*args: Any, bootstrap_server: str | None, properties: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(_property(text) for text in properties)
        if bootstrap_server:
            settings["bootstrap.servers"] = bootstrap_server
        return function(*args, kafka=KafkaOptions(settings), **kwargs)

    options = [
        click.option(
            "-b",
            "--bootstrap-server",
            envvar="BLOCKGZ_BOOTSTRAP_SERVER",
            show_envvar=True,
            metavar="HOST:PORT",
            help="The Kafka cluster.",
        ),
        click.option(
            "-X",
            "properties",
            multiple=True,
            envvar="BLOCKGZ_KAFKA_PROPERTIES",
            show_envvar=True,
            metavar="NAME=VALUE",
            help="A property of librdkafka; may be repeated.",
        ),
    ]
    return cast(F, _with_options(with_kafka, options))


def range_options(function: F) -> F:
    """Adds --from --to --at; passes `selection: RangeOptions`."""

    @functools.wraps(function)
    def with_range(*args: Any, start: str | None, end: str | None, at: str | None, **kwargs: Any) -> Any:
        if end is not None and at is not None:
            raise click.UsageError("--to and --at both set the end: give one of them")
        now = time.time_ns() // 1_000_000
        last = parse_time(at, now) if at is not None else parse_position(end, now) if end is not None else None
        first = parse_position(start, now) if start is not None else None
        return function(*args, selection=RangeOptions(first, last), **kwargs)

    options = [
        click.option(
            "--from",
            "start",
            envvar="BLOCKGZ_FROM",
            show_envvar=True,
            metavar="POS",
            help="Begin here: an offset, earliest, latest, +N, -N, a time, @UNIXTIME or a duration before now (-1h).",
        ),
        click.option(
            "--to",
            "end",
            envvar="BLOCKGZ_TO",
            show_envvar=True,
            metavar="POS",
            help="End before; +N counts from --from.",
        ),
        click.option(
            "--at", envvar="BLOCKGZ_AT", show_envvar=True, metavar="TIME", help="Everything before that time."
        ),
    ]
    return cast(F, _with_options(with_range, options))


def json_option(function: F) -> F:
    """Adds --json; passes `as_json: bool`."""
    option = click.option(
        "--json", "as_json", is_flag=True, envvar="BLOCKGZ_JSON", show_envvar=True, help="Print JSON."
    )
    return option(function)


def parse_topic(text: str) -> TopicArgument:
    """The topic and partitions that `text` names; raises UsageError or BadName."""
    topic, separator, partitions = text.partition(":")
    parse_topic_folder(topic)
    return TopicArgument(topic, parse_partitions(partitions) if separator else None)


def parse_partitions(text: str) -> tuple[int, ...]:
    """The numbers that `0,2-4` means, rising; raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if first > last or last > MAX_PARTITIONS:
            raise UsageError(
                f"{text[:80]!r} names no partitions",
                why=f"{part[:40]!r} is no number or range",
                remedy="write 3 or 0,2-4",
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def with_partitions(topic: TopicArgument, partitions: str | None) -> TopicArgument:
    """The topic with what `--partitions` says; raises UsageError where the topic says it too."""
    if partitions is None:
        return topic
    if topic.partitions is not None:
        raise UsageError(
            "the partitions are given twice", why="in the topic and by --partitions", remedy="give them once"
        )
    return TopicArgument(topic.topic, parse_partitions(partitions))


async def select(archive: Archive, topic: TopicArgument, positions: RangeOptions) -> list[Selection]:
    """The offsets that are meant, in each partition as of one version of its marker."""
    opened = await archive.open_topic(topic.topic, topic.partitions)
    ranges: Sequence[OffsetRange] = await asyncio.gather(*(positions.resolve(partition) for partition in opened))
    return [Selection(partition, offsets) for partition, offsets in zip(opened, ranges, strict=True)]


@asynccontextmanager
async def open_archive(options: ArchiveOptions) -> AsyncIterator[Archive]:
    """The archive that the options name; its store is closed at the end."""
    async with open_counted_archive(options) as (archive, _):
        yield archive


@asynccontextmanager
async def open_counted_archive(options: ArchiveOptions) -> AsyncIterator[tuple[Archive, CountingReader]]:
    """The same, with what counts the requests."""
    async with open_reader(options.address, endpoint_url=options.endpoint_url, region=options.region) as reader:
        counting = CountingReader(reader)
        finder = ancestor_finder(options.old_format, options.max_block_bytes)
        archive = Archive(counting, options.max_block_bytes, finder)
        yield archive, counting
        for note in archive.other.notes[:SHOWN_NOTES] if archive.other else ():
            click.echo(f"note: {note}", err=True)


def _with_options(function: F, options: list[Callable[[Any], Any]]) -> F:
    decorated: Any = function
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(
            f"-X {text[:80]!r} is not a property",
            why="it has no '='",
            remedy="write -X NAME=VALUE with librdkafka's name",
        )
    return name, value
