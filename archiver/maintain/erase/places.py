"""Which partitions of an archive an erase is about, and which offsets."""

from collections.abc import Sequence

from archiver.commit.archive import layout_of
from archiver.commit.lost_markers import claimed_partitions
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.partitions import partitions_of
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.writer import ToolStore
from index_format.keys import (
    PartitionKeys,
    TopicFolder,
    parse_topic_folder,
    topic_folders,
)

LARGEST_OFFSET = 2**63 - 1


def places_of(store: ToolStore, text: str, *, by_offset: bool = False) -> list[PartitionKeys]:
    """The partitions that `orders`, `orders:1,3-5` or `orders~2:0` means, in every incarnation unless one is named.

    `by_offset`: offsets are those of one incarnation, so that one has to be named where there are several. Raises
    UsageError or NotInArchive.
    """
    layout = layout_of(store)
    if layout == "seed":
        raise UsageError(
            "records of an archive in layout seed cannot be erased",
            why="tools that read this layout know neither rewritten chunks nor erased records",
            remedy="archive the topic again in layout topic",
        )
    name, separator, numbers = text.partition(":")
    wanted = _numbers(text, numbers) if separator else None
    folder = parse_topic_folder(name)
    folders = [folder] if "~" in name else _incarnations(store, folder.topic)
    if by_offset and len(folders) > 1:
        raise UsageError(
            f"topic {name} has several incarnations in the archive",
            why="each has offsets of its own",
            remedy=f"name one: {', '.join(f'{each.topic}~{each.incarnation}' for each in folders)}",
        )
    claimed = claimed_partitions(store, layout)
    here = [
        keys
        for each in folders
        for keys in partitions_of(store, layout, each, claimed.get(each, ()))
        if wanted is None or keys.partition in wanted
    ]
    missing = sorted((wanted or set()) - {keys.partition for keys in here})
    if not here or missing:
        raise NotInArchive(
            f"{name}:{missing[0]} is not in the archive" if missing else f"{name} is not in the archive",
            why=f"{store.url} has no folder of it",
            remedy="replayer ls shows what is archived",
        )
    return here


def _incarnations(store: ToolStore, topic: str) -> list[TopicFolder]:
    return [folder for folder in topic_folders(store.folders("")) if folder.topic == topic]


def _numbers(place: str, text: str) -> set[int]:
    numbers = set[int]()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = (first, last) if dash else (first, first)
        are_numbers = all(each.isascii() and each.isdigit() and len(each) < 10 for each in bounds)
        if not are_numbers or int(bounds[0]) > int(bounds[1]):
            raise UsageError(f"{place[:120]!r} names no partitions", remedy="write TOPIC, TOPIC:3 or TOPIC:0,2-4")
        numbers |= set(range(int(bounds[0]), min(int(bounds[1]), int(bounds[0]) + 1_000_000) + 1))
    return numbers


def parse_offsets(texts: Sequence[str]) -> OffsetRanges:
    """The offsets of `17`, `17..30` or several of these with commas between; the end of a range is not in it.

    Raises ValueError.
    """
    ranges = list[range]()
    for part in (part.strip() for text in texts for part in text.split(",")):
        first, dots, end = part.partition("..")
        numbers = [first, end] if dots else [first]
        if not all(
            each.isascii() and each.isdigit() and len(each) < 20 and int(each) <= LARGEST_OFFSET for each in numbers
        ):
            raise ValueError(f"{part[:60]!r} is no offset and no range of offsets: write 17 or 17..30")
        start, stop = int(first), int(end) if dots else int(first) + 1
        if start >= stop:
            raise ValueError(f"{part[:60]!r} is empty: the end of a range is not in it")
        ranges.append(range(start, stop))
    return OffsetRanges(ranges)
