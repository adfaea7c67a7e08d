"""Rules of the product that are broken on purpose, one at a time, to see that sequences notice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as with_changes
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from archiver.maintain import erase
from archiver.maintain.rewrite import contents
from archiver.maintain.rewrite import tree as commits
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.archive import lookup
from blockgz.archive.partition import ArchivedPartition
from tests.support.lifecycle.broken import retired_not_spared


@contextmanager
def prune_keeps_the_floor() -> Iterator[None]:
    """A prune takes catalogs out of the tree and does not say so."""
    real = commits.changed

    def changed(attempt: Any, marker: Any, catalogs: Any, **_: Any) -> Any:
        return real(attempt, marker, catalogs, floor=None)

    with patch.object(commits, "changed", changed):
        yield


@contextmanager
def erase_keeps_a_record() -> Iterator[None]:
    """An erase leaves the first such record of each chunk where it is, and nobody checks."""
    real = erase.without

    def without(chunk: Any, drop: OffsetRanges, *rest: Any) -> Any:
        outside = drop - OffsetRanges([range(chunk.entry.start_offset, chunk.entry.next_offset)])
        first = next(iter(drop - outside)).start
        return real(chunk, drop - OffsetRanges([range(first, first + 1)]), *rest)

    with patch.object(erase, "without", without), patch.object(contents, "check_contents", lambda *_: None):
        yield


@contextmanager
def reader_ignores_erased_ranges() -> Iterator[None]:
    """A look-up does not see what the index of a chunk calls erased."""
    real = lookup._block

    async def block(partition: Any, chunk: Any, offset: int) -> Any:
        return await real(partition, with_changes(chunk, index=replace(chunk.index, erased=())), offset)

    with patch.object(lookup, "_block", block):
        yield


@contextmanager
def reader_trusts_its_old_marker() -> Iterator[None]:
    """Nobody reads the marker again when an object is gone."""

    async def newer(partition: ArchivedPartition, offset: int | None = None) -> None:
        return None

    with patch.object(ArchivedPartition, "newer", newer):
        yield


BROKEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gc_ignores_retired": retired_not_spared,
    "prune_keeps_the_floor": prune_keeps_the_floor,
    "erase_keeps_a_record": erase_keeps_a_record,
    "reader_ignores_erased_ranges": reader_ignores_erased_ranges,
    "reader_trusts_its_old_marker": reader_trusts_its_old_marker,
}
