"""Options that commands share: one name, one environment variable, one meaning everywhere.

Use as decorators above a click command; each hands over one value::

    @click.command("ls")
    @archive_options          # archive: ArchiveOptions
    @kafka_options            # kafka: KafkaOptions
    @json_option              # as_json: bool
    def command(archive: ArchiveOptions, kafka: KafkaOptions, as_json: bool) -> None: ...
"""

import functools
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar, cast

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from index_format.addresses import Address, parse_address
from index_format.ancestor.payloads import ANCESTORS_FORMAT, OLD_FORMATS, OldFormat
from index_format.blocks import DEFAULT_MAX_BLOCK_BYTES
from index_format.keys import parse_topic_folder

from .. import selection
from ..ancestor import ancestor_finder
from ..archive import Archive, ObjectCache
from ..errors import UsageError
from ..formatting import Printer, envelope_printer, json_printer, template_printer
from ..kafka_properties import property_table
from ..object_cache import DiskCache, default_folder
from ..offset_file import MAX_FILE_BYTES, parse_offset_file
from ..positions import parse_position, parse_time
from ..record_filter import Condition, KeyIn, Pattern, RecordFilter, ValueMatches, header_condition
from ..selection import Positions, Selection
from ..stores.counting import CountingReader
from ..stores.opening import open_reader

F = TypeVar("F", bound=Callable[..., Any])

MAX_PARTITIONS = 100_000
SHOWN_NOTES = 20
FORMS = ("table", "json", "jsonl", "csv")


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


RangeOptions: TypeAlias = Positions
"""`--from --to --at`, parsed; `--at` has become the end."""


class Printing(NamedTuple):
    """How records are printed: `printer` is None where nothing was asked for; `as_json` where it is --json's."""

    printer: Printer | None
    as_json: bool


@dataclass(frozen=True)
class TopicArgument:
    """`orders`, `orders:3` or `orders:0,2-4`; partitions is None for all."""

    topic: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True)
class SelectionOptions:
    """Which records are meant: positions, a file with some for single partitions, partitions, and a filter.

    `now` is what durations before now count from, ms since the epoch.
    """

    positions: Positions
    offset_file: bytes | None
    partitions: str | None
    filter: RecordFilter
    now: int

    async def select(self, archive: Archive, topic: TopicArgument) -> list[Selection]:
        """The offsets that are meant of a topic; raises UsageError, NotInArchive, or what opening raises."""
        wanted = with_partitions(topic, self.partitions)
        positions = self.positions
        if self.offset_file is not None:
            plain = parse_topic_folder(topic.topic).topic
            positions = replace(positions, of_partitions=parse_offset_file(self.offset_file, plain, self.now))
        return await selection.select(archive, wanted.topic, wanted.partitions, positions)

    @property
    def asked(self) -> tuple[str, ...]:
        """Everything that decides which offsets and records are meant, as it was written, partitions aside."""
        file = () if self.offset_file is None else (f"positions {hashlib.sha256(self.offset_file).hexdigest()}",)
        only = () if self.filter.passes_all else (f"records {self.filter}",)
        return (*self.positions.asked, *file, *only)

    @property
    def narrows(self) -> bool:
        """Whether anything but partitions is chosen."""
        return self.positions != Positions() or self.offset_file is not None or not self.filter.passes_all

    @property
    def ends(self) -> bool:
        """Whether the selection has an end before the archive's."""
        return self.positions.end is not None or self.filter.until is not None

    def narrowed(self, *conditions: Condition) -> "SelectionOptions":
        """The same with more conditions."""
        return replace(self, filter=replace(self.filter, conditions=(*self.filter.conditions, *conditions)))


class Size(click.ParamType[int]):
    """Bytes: a number with B, kB, MB, KiB, MiB or GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click.ParamType."""
        try:
            return int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            self.fail(f"{value!r} is not a size; write 1048576, 64kB or 256MiB", param, ctx)


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


def archive_options(function: F) -> F:
    """Adds -a/--archive and what goes with it; passes `archive: ArchiveOptions`."""

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
            metavar="ADDRESS",
            help="The archive: s3://bucket/prefix, file:///dir or ./dir.",
        ),
        click.option("--endpoint-url", metavar="URL", help="Where the S3 API is, if not at AWS."),
        click.option("--region", help="The bucket's region."),
        click.option(
            "--max-block-bytes",
            type=Size(),
            default=DEFAULT_MAX_BLOCK_BYTES,
            show_default="256MiB",
            help="Refuse blocks that inflate to more.",
        ),
        click.option(
            "--old-format",
            type=click.Choice(OLD_FORMATS),
            default=OLD_FORMATS[0],
            show_default=True,
            help="How records lie in an archive of kafka-connect-s3 or a fork.",
        ),
        click.option("--key-delimiter", default=r"\t", show_default=True, help="Of --old-format delimited."),
    ]
    return cast(F, with_options(with_archive, options))


def kafka_options(function: F) -> F:
    """Adds -b/--bootstrap-server -X; passes `kafka: KafkaOptions`."""

    @functools.wraps(function)
    def with_kafka(*args: Any, bootstrap_server: str | None, properties: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(_property(text) for text in properties)
        if bootstrap_server:
            settings["bootstrap.servers"] = bootstrap_server
        return function(*args, kafka=KafkaOptions(settings), **kwargs)

    options = [
        click.option("-b", "--bootstrap-server", metavar="HOST:PORT", help="The Kafka cluster."),
        click.option(
            "-X",
            "properties",
            multiple=True,
            envvar="BLOCKGZ_KAFKA_PROPERTIES",
            metavar="NAME=VALUE",
            callback=_list_on_request,
            is_eager=True,
            help="A property of librdkafka; may be repeated. -X list prints all.",
        ),
    ]
    return cast(F, with_options(with_kafka, options))


def _list_on_request(context: click.Context, _: click.Parameter, properties: tuple[str, ...]) -> tuple[str, ...]:
    """`-X list` prints librdkafka's properties, and does no more."""
    if "list" in properties and not context.resilient_parsing:
        click.echo(property_table(), nl=False)
        context.exit()
    return properties


def range_options(function: F) -> F:
    """Adds --from --to --at; passes `selection: RangeOptions`."""

    @functools.wraps(function)
    def with_range(*args: Any, start: str | None, end: str | None, at: str | None, **kwargs: Any) -> Any:
        if end is not None and at is not None:
            raise click.UsageError("--to and --at both set the end: give one of them")
        now = time.time_ns() // 1_000_000
        last = parse_time(at, now) if at is not None else parse_position(end, now) if end is not None else None
        first = parse_position(start, now) if start is not None else None
        asked = (start or "earliest", end or at or "latest")
        return function(*args, selection=RangeOptions(first, last, asked=asked), **kwargs)

    options = [
        click.option(
            "--from",
            "start",
            metavar="POS",
            help="Begin here: an offset, earliest, latest, +N, -N, a time, @UNIXTIME or a duration before now (-1h).",
        ),
        click.option("--to", "end", metavar="POS", help="End before; +N counts from --from."),
        click.option("--at", metavar="TIME", help="Everything before that time."),
    ]
    return cast(F, with_options(with_range, options))


def selection_options(function: F) -> F:
    """Adds what `record_options` does, and --partitions; passes `selection: SelectionOptions`."""

    @functools.wraps(function)
    def with_partitions(*args: Any, selection: SelectionOptions, partitions: str | None, **kwargs: Any) -> Any:
        return function(*args, selection=replace(selection, partitions=partitions), **kwargs)

    option = click.option("--partitions", metavar="P,P-P", help="Only these partitions.")
    return record_options(cast(F, option(with_partitions)))


def record_options(function: F) -> F:
    """Adds what `range_options` does, --positions --since --until --key --null-key --header --grep.

    Passes `selection: SelectionOptions`, of all partitions.
    """

    @functools.wraps(function)
    def with_selection(
        *args: Any,
        selection: RangeOptions,
        offset_file: BinaryIO | None,
        since: str | None,
        until: str | None,
        keys: tuple[str, ...],
        null_key: bool,
        headers: tuple[str, ...],
        grep: str | None,
        **kwargs: Any,
    ) -> Any:
        now = time.time_ns() // 1_000_000
        conditions: list[Condition] = [header_condition(header) for header in headers]
        if keys or null_key:
            conditions.append(KeyIn((*(os.fsencode(key) for key in keys), *([None] if null_key else []))))
        if grep is not None:
            conditions.append(ValueMatches(Pattern(grep)))
        options = SelectionOptions(
            selection,
            None if offset_file is None else offset_file.read(MAX_FILE_BYTES + 1),
            None,
            RecordFilter(
                None if since is None else parse_time(since, now).timestamp,
                None if until is None else parse_time(until, now).timestamp,
                tuple(conditions),
            ),
            now,
        )
        return function(*args, selection=options, **kwargs)

    options = [
        click.option(
            "--positions",
            "offset_file",
            type=click.File("rb"),
            metavar="FILE",
            help="Positions of single partitions: kafka-consumer-groups' CSV (topic,partition,offset), or JSON.",
        ),
        click.option("--since", metavar="TIME", help="Only records whose own timestamp is this or later."),
        click.option("--until", metavar="TIME", help="Only records from before."),
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="TEXT",
            help="Only records with this key; several: with one of them.",
        ),
        click.option("--null-key", is_flag=True, help="Only those without a key, or also those."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Only records with this header; several: with all of them.",
        ),
        click.option("--grep", metavar="REGEX", help="Only records in whose value this is found (RE2's syntax)."),
    ]
    return range_options(cast(F, with_options(with_selection, options)))


def limit_option(function: F) -> F:
    """Adds -n/--limit; passes `limit: int | None`."""
    option = click.option("-n", "--limit", type=click.IntRange(min=0), help="Stop after N records.")
    return option(function)


def printing_options(function: F) -> F:
    """Adds -f -J --json; passes `printing: Printing`."""

    @functools.wraps(function)
    def with_printing(*args: Any, template: str | None, as_envelope: bool, as_json: bool, **kwargs: Any) -> Any:
        if (template is not None) + as_envelope + as_json > 1:
            raise click.UsageError("-f, -J and --json exclude each other")
        printer = json_printer() if as_json else envelope_printer() if as_envelope else None
        if template is not None:
            printer = template_printer(template)
        return function(*args, printing=Printing(printer, as_json), **kwargs)

    options = [
        click.option(
            "-f", "template", envvar="BLOCKGZ_TEMPLATE", metavar="FORMAT", help="Print in kcat's format tokens."
        ),
        click.option("-J", "as_envelope", is_flag=True, envvar="BLOCKGZ_ENVELOPE", help="Print kcat's JSON."),
    ]
    return json_option(cast(F, with_options(with_printing, options)))


def cache_option(function: F) -> F:
    """Adds --no-cache; passes `cache: DiskCache | None`."""

    @functools.wraps(function)
    def with_cache(*args: Any, no_cache: bool, **kwargs: Any) -> Any:
        folder = None if no_cache else default_folder()
        return function(*args, cache=None if folder is None else DiskCache(folder), **kwargs)

    option = click.option("--no-cache", is_flag=True, help="Fetch indexes anew rather than from this machine's cache.")
    return cast(F, option(with_cache))


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


def json_option(function: F) -> F:
    """Adds --json; passes `as_json: bool`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    return await selection.select(archive, topic.topic, topic.partitions, positions)


@asynccontextmanager
async def open_archive(options: ArchiveOptions, cache: ObjectCache | None = None) -> AsyncIterator[Archive]:
    """The archive that the options name; its store is closed at the end."""
    async with open_counted_archive(options, cache) as (archive, _):
        yield archive


@asynccontextmanager
async def open_counted_archive(
    options: ArchiveOptions, cache: ObjectCache | None = None
) -> AsyncIterator[tuple[Archive, CountingReader]]:
    """The same, with what counts the requests."""
    async with open_reader(options.address, endpoint_url=options.endpoint_url, region=options.region) as reader:
        counting = CountingReader(reader)
        finder = ancestor_finder(options.old_format, options.max_block_bytes)
        archive = Archive(counting, options.max_block_bytes, finder, cache)
        yield archive, counting
        for note in archive.other.notes[:SHOWN_NOTES] if archive.other else ():
            click.echo(f"note: {note}", err=True)


def with_options(function: F, options: Sequence[Callable[[Any], Any]]) -> F:
    """The function with all of these decorators, the first one outermost."""
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
