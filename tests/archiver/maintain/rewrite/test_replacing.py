"""Replacing the chunks of a run, however long it takes."""

from collections.abc import Iterator, Sequence

import pytest

from archiver.commit.operations import Protocol
from archiver.maintain.prune import prune
from archiver.maintain.rewrite.chunks import ErasedRun, Item, NewChunk, OldChunk
from archiver.maintain.rewrite.intent import LEASE_MS, RewriteOutcome
from archiver.maintain.rewrite.replace import Rewrite, rewrite
from archiver.maintain.rewrite.tree import CatalogRun, find_run
from index_format.marker import Marker
from tests.archiver.maintain.rewrite.test_pruning import KEYS, run, store_of_chunks


def test_the_intent_is_kept_while_chunks_are_made_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    store, others = store_of_chunks(monkeypatch), list[RewriteOutcome]()

    def work() -> None:
        store.now += LEASE_MS / 1000 / 2
        others.append(run(store, prune(KEYS, 6)))

    def contents(old: Sequence[OldChunk]) -> Iterator[Item]:
        for chunk in old:
            work()
            yield ErasedRun(chunk.entry.start_offset, chunk.entry.next_offset)

    def check(old: Sequence[OldChunk], new: NewChunk | ErasedRun) -> None:
        assert [(each.entry.start_offset, each.entry.next_offset) for each in old] == [new]
        work()

    def choose(marker: Marker) -> Protocol[CatalogRun | None]:
        return find_run(KEYS, marker, 8, 12)

    assert run(store, rewrite(KEYS, choose, Rewrite("erase", contents, check))) is RewriteOutcome.COMMITTED
    assert others == [RewriteOutcome.BUSY] * 8
