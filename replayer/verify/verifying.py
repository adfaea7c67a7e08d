"""Verifying an archive, or some of its topics and partitions, one after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from blockgz.archive.archive import Archive
from blockgz.archive.topics import TopicPartitions
from replayer.verify.above_marker import list_above
from replayer.verify.chunk_checks import EVERY_CHUNK, ChunkChoice, Depth
from replayer.verify.earlier import EarlierReport, compare_with
from replayer.verify.findings import ArchiveReport
from replayer.verify.partition import verify_partition
from replayer.verify.survey import survey


@dataclass
class VerifyWork:
    """What is to be verified: partitions by their names, and `left` bytes of data. `report` grows on the way."""

    names: Sequence[str]
    left: int
    report: ArchiveReport
    share: float = 1.0
    """The share of the chunks that is chosen."""
    done: int = 0
    """Bytes that were checked."""

    @property
    def bytes(self) -> int:
        """Bytes to check in all: an estimate until every chunk was chosen or passed over."""
        return self.done + round(self.share * max(self.left, 0))


Watched = Callable[[VerifyWork], AbstractContextManager[Callable[[], None]]]
"""Gets the work before it begins; what that gives is called after each chunk."""


def _unwatched(_: VerifyWork) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


async def verify_archive(
    archive: Archive,
    wanted: Sequence[TopicPartitions],
    depth: Depth,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    earlier: EarlierReport | None = None,
    expected: Sequence[str] = (),
    watched: Watched = _unwatched,
) -> ArchiveReport:
    """What was found of the wanted topics, all of them if none is named; compared with an `earlier` report if any.

    Of each of the `expected` topics, something has to be there. The work is done within `watched`.
    """
    identity, places, report = await survey(archive, [(each.topic, each.partitions) for each in wanted], expected)
    listing = await list_above(archive, places, chunks=not choice.takes_all)
    names = [f"{topic}:{number}" for topic, number in places]
    work = VerifyWork(names, listing.bytes, report, choice.share)
    with watched(work) as advanced:

        def on_progress(checked: int, passed: int) -> None:
            work.done += checked
            work.left -= checked + passed
            advanced()

        for topic, number in places:
            checked = verify_partition(
                archive, topic, number, depth, on_progress, choice=choice, identity=identity, listing=listing
            )
            report.partitions.append(await checked)
    if earlier is not None:
        report.since_report = await compare_with(archive, identity.archive_id, earlier, wanted)
    return report
