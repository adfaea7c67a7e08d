"""Which records are meant: positions, partitions and what a record must be like."""

import functools
import hashlib
import os
import time
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeAlias, cast

import click

from index_format.keys import parse_topic_folder
from replayer.cli.options.options import F, with_options
from replayer.cli.options.topic_argument import TopicArgument, with_partitions
from replayer.read import selection
from replayer.read.archive import Archive
from replayer.read.offset_file import MAX_FILE_BYTES, parse_offset_file
from replayer.read.positions import parse_position, parse_time
from replayer.read.record_filter import Condition, KeyIn, Pattern, RecordFilter, ValueMatches, header_condition
from replayer.read.selection import Positions, Selection

RangeOptions: TypeAlias = Positions
"""`--from --to --at`, parsed; `--at` has become the end."""


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
        click.option("--until", metavar="TIME", help="Only records whose own timestamp is before this."),
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="TEXT",
            help="Only records with this key; several: with one of them.",
        ),
        click.option("--null-key", is_flag=True, help="Only records without a key; beside --key, those as well."),
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
    option = click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
    return option(function)


async def select(archive: Archive, topic: TopicArgument, positions: RangeOptions) -> list[Selection]:
    """The offsets that are meant, in each partition as of one version of its marker."""
    return await selection.select(archive, topic.topic, topic.partitions, positions)
