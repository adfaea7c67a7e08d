"""Verifying an archive, or some of its topics and partitions, one after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from replayer.read.archive import Archive
from replayer.read.topics import TopicPartitions
from replayer.verify.above_marker import list_above
from replayer.verify.chunk_checks import EVERY_CHUNK, ChunkChoice, Depth, Progress
from replayer.verify.earlier import EarlierReport, compare_with
from replayer.verify.findings import ArchiveReport
from replayer.verify.partition import verify_partition
from replayer.verify.survey import survey


class VerifyWork(NamedTuple):
    """What is to be verified: partitions by their names, and the bytes of their data. `report` grows on the way."""

    names: Sequence[str]
    bytes: int
    report: ArchiveReport


def _unwatched(_: VerifyWork) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _: None)


async def verify_archive(
    archive: Archive,
    wanted: Sequence[TopicPartitions],
    depth: Depth,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    earlier: EarlierReport | None = None,
    expected: Sequence[str] = (),
    watched: Callable[[VerifyWork], AbstractContextManager[Progress]] = _unwatched,
) -> ArchiveReport:
    """What was found of the wanted topics, all of them if none is named; compared with an `earlier` report if any.

    Of each of the `expected` topics, something has to be there. The work is done within `watched`.
    """
    identity, places, report = await survey(archive, [(each.topic, each.partitions) for each in wanted], expected)
    listing = await list_above(archive, places)
    names = [f"{topic}:{number}" for topic, number in places]
    with watched(VerifyWork(names, listing.bytes, report)) as on_progress:
        for topic, number in places:
            checked = verify_partition(
                archive, topic, number, depth, on_progress, choice=choice, identity=identity, listing=listing
            )
            report.partitions.append(await checked)
    if earlier is not None:
        report.since_report = await compare_with(archive, identity.archive_id, earlier, wanted)
    return report
