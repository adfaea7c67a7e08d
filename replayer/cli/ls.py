"""`replayer ls` and `replayer describe`."""

from collections.abc import Sequence
from typing import Any

import click

from blockgz.archive import inventory
from blockgz.archive.archive import ArchivePlace, SurveyedTopic, TopicPartitions, parse_topic
from blockgz.archive.partition import Damaged
from blockgz.errors import PARTLY_FAILED, BlockgzError, exit_code
from blockgz.process import run_async
from blockgz.program.main import closing, print_failure
from blockgz.program.terminal import print_rows, print_table, range_text
from blockgz.units import bytes_text, time_text
from replayer.cli.options.options import archive_options, format_option, open_archive, time_printer, times_option

FIGURES = ("RECORDS", "CHUNKS", "SIZE", "OFFSETS", "FROM", "TO")


@click.command("ls", epilog=closing("replayer ls -a ./archive", "replayer ls --json -a s3://bucket/prefix"))
@format_option()
@times_option
@archive_options
def ls(form: str, as_times: str, archive: ArchivePlace) -> int:
    """List the topics of the archive and what is archived of each.

    If a partition's marker is damaged or missing, it is named on stderr and left out of the sums, and the exit code is
    3. The same goes for a partition that is in the archive's inventory but not in the archive.
    """
    found, compared = run_async(_surveys(archive))
    listing, missing = [inventory.topic_document(name, survey) for name, survey in found], compared.missing
    whole = {"archive": str(archive.address), "topics": listing, "missing": [each._asdict() for each in missing]}
    print_rows(form, whole, listing)
    if form == "table":
        droppable = ("OFFSETS", "CHUNKS", "PARTITIONS", "FROM", "TO", "SIZE")
        print_table(
            ("TOPIC", "PARTITIONS", *FIGURES), [_topic_row(each, as_times) for each in listing], droppable=droppable
        )
    code = print_damaged([error for _, survey in found for error in survey.damaged.values()], others=True)
    code = print_missing([each for each in missing if each not in compared.undone]) or code
    if compared.undone:
        click.echo(inventory.undone_text(len(compared.undone)), err=True)
    return PARTLY_FAILED if missing else code


async def _surveys(options: ArchivePlace) -> tuple[list[tuple[str, SurveyedTopic]], inventory.Compared]:
    async with open_archive(options) as archive:
        pinned = await archive.pin()
        found = [(name, await pinned.survey_topic(name)) for name in await pinned.topics()]
        return found, await inventory.compare(pinned)


def _topic_row(topic: dict[str, Any], as_times: str) -> tuple[str | int, ...]:
    partitions = topic["partitions"]
    offsets = {
        "start_offset": inventory.known(min, [each["start_offset"] for each in partitions]),
        "next_offset": inventory.known(max, [each["next_offset"] for each in partitions]),
    }
    return (topic["topic"], len(partitions) + len(topic["damaged"]), *_figures(topic | offsets, as_times))


def _figures(counted: dict[str, Any], as_times: str) -> tuple[str | int, ...]:
    return (
        counted["records"],
        counted["chunks"],
        bytes_text(counted["bytes"]),
        range_text(counted["start_offset"], counted["next_offset"]),
        time_text(counted["min_timestamp_ms"], time_printer(as_times)),
        time_text(counted["max_timestamp_ms"], time_printer(as_times)),
    )


def print_damaged(errors: Sequence[BlockgzError], *, others: bool) -> int:
    """Print on stderr what cannot be read; return the exit code, which differs if there are `others`."""
    for error in errors:
        print_failure(error)
    return 0 if not errors else PARTLY_FAILED if others else exit_code(errors[0])


def print_missing(missing: Sequence[inventory.MissingPartition]) -> int:
    """Print on stderr what the archive held once and lacks; return the exit code."""
    for each in missing:
        print_failure(each.error)
    return PARTLY_FAILED if missing else 0


@click.command(
    "describe",
    epilog=closing("replayer describe orders -a ./archive", "replayer describe orders:3 --json -a ./archive"),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@format_option()
@times_option
@archive_options
def describe(topic: str, form: str, as_times: str, archive: ArchivePlace) -> int:
    """Show each partition of a topic: offsets, chunks, gaps and owner.

    If a partition's marker or catalogs are damaged or missing, it is named on stderr, and the exit code is 3. The same
    goes for a partition that is in the archive's inventory but not in the archive.
    """
    wanted = parse_topic(topic)
    partitions, damaged, missing = run_async(_describe(archive, wanted))
    if partitions or not damaged:
        whole = {"archive": str(archive.address), "topic": wanted.topic, "partitions": partitions}
        lost = {"damaged": inventory.damaged_document(damaged), "missing": [each._asdict() for each in missing]}
        print_rows(form, whole | lost, partitions)
        if form == "table":
            _print_partitions(partitions, as_times)
    code = print_damaged(list(damaged.values()), others=bool(partitions))
    return print_missing(missing) or code


def _print_partitions(partitions: Sequence[dict[str, Any]], as_times: str) -> None:
    rows = [
        (
            each["partition"],
            *_figures(each, as_times),
            len(each["gaps"]),
            each["epoch"],
            each["group_id"],
            each["writer"],
        )
        for each in partitions
    ]
    droppable = ("WRITER", "GROUP", "EPOCH", "FROM", "CHUNKS", "GAPS", "SIZE", "TO")
    print_table(("PARTITION", *FIGURES, "GAPS", "EPOCH", "GROUP", "WRITER"), rows, droppable=droppable)
    for partition in partitions:
        if partition["pruned_before"] is not None:
            floor = partition["pruned_before"]
            click.echo(f"partition {partition['partition']}: pruned, nothing below offset {floor} is kept")
        for gap in partition["gaps"]:
            click.echo(f"partition {partition['partition']}: gap [{gap['from']}..{gap['to']}) ({gap['reason']})")


async def _describe(
    options: ArchivePlace, topic: TopicPartitions
) -> tuple[list[dict[str, Any]], dict[int, BlockgzError], Sequence[inventory.MissingPartition]]:
    descriptions: list[dict[str, Any]] = []
    async with open_archive(options) as archive:
        missing = (await inventory.compare(archive, [(topic.topic, topic.partitions)])).missing
        there = topic.partitions and set(topic.partitions) - {each.partition for each in missing}
        partitions, found = await archive.survey_topic(topic.topic, None if there is None else sorted(there))
        damaged = dict(found)
        for partition in partitions:
            try:
                descriptions.append(await inventory.partition_document(partition))
            except Damaged as error:
                damaged[partition.partition] = error
    return descriptions, damaged, missing
