"""What a verification of an archive is about: its identity, the partitions that are there, and those that are not."""

from collections.abc import Sequence
from typing import NamedTuple

from .archive import Archive
from .findings import Absent, ArchiveReport
from .identity import Identity, read_identity


class Survey(NamedTuple):
    """`report` has what is known before any partition is opened; `places` are topics and partitions in order."""

    identity: Identity
    places: Sequence[tuple[str, int]]
    report: ArchiveReport


async def survey(archive: Archive, wanted: Sequence[tuple[str, Sequence[int] | None]]) -> Survey:
    """Of the wanted topics and partitions, all partitions of a topic where none are named, everything if empty."""
    asked = wanted or [(topic, None) for topic in await archive.all_incarnations()]
    identity = await read_identity(archive, [topic for topic, _ in asked])
    report = ArchiveReport(damage=list(identity.damage))
    places = []
    for topic, partitions in asked:
        numbers = partitions or await archive.partitions(topic)
        places += [(topic, number) for number in numbers]
        if partitions is None:
            expected = range(identity.partitions.get(await archive.folder_of(topic), 0))
            report.absent += [Absent(topic, number) for number in expected if number not in numbers]
    return Survey(identity, places, report)
