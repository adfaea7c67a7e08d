"""What becomes of each kind of failure, in each situation."""

from pathlib import Path

import pytest

from archiver.errors import (
    TABLE,
    AssignmentLost,
    Diverged,
    Fenced,
    GapRefused,
    Next,
    OwnedByAnother,
    Situation,
    TopicChanged,
    TopicGone,
    UnreadableRecord,
    passing,
    what_next,
)
from blockgz.errors import (
    AccessDenied,
    BlockgzError,
    BrokerUnreachable,
    BufferFailed,
    BufferFull,
    CorruptBlock,
    MalformedObject,
    NoSuchTopic,
    ObjectMissing,
    PartitionUnavailable,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnfit,
    SyncFailed,
    UnsupportedVersion,
    UsageError,
)

AGAIN, CLAIM, READ, STOP = Next.AGAIN, Next.CLAIM, Next.READ, Next.STOP
OPERATIONS = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


@pytest.mark.parametrize(
    ("kind", "opening", "starting", "bounded", "serving"),
    [
        (StoreBusy, AGAIN, AGAIN, AGAIN, AGAIN),
        (StoreUnavailable, STOP, AGAIN, AGAIN, AGAIN),
        (BrokerUnreachable, STOP, AGAIN, AGAIN, AGAIN),
        (AccessDenied, STOP, STOP, STOP, AGAIN),
        (StoreFull, STOP, STOP, STOP, AGAIN),
        (SyncFailed, STOP, STOP, STOP, CLAIM),
        (BufferFull, STOP, AGAIN, AGAIN, AGAIN),
        (BufferFailed, STOP, READ, READ, READ),
        (PartitionUnavailable, STOP, CLAIM, CLAIM, CLAIM),
        (TopicGone, STOP, CLAIM, CLAIM, CLAIM),
        (TopicChanged, STOP, READ, STOP, READ),
        (Fenced, STOP, READ, STOP, READ),
        (AssignmentLost, STOP, READ, STOP, READ),
        (OwnedByAnother, STOP, STOP, STOP, STOP),
        (Diverged, STOP, STOP, STOP, STOP),
        (GapRefused, STOP, STOP, STOP, STOP),
        (UnreadableRecord, STOP, STOP, STOP, STOP),
        (StoreError, STOP, STOP, STOP, STOP),
        (StoreUnfit, STOP, STOP, STOP, STOP),
        (UsageError, STOP, STOP, STOP, STOP),
        (NoSuchTopic, STOP, STOP, STOP, STOP),
        (MalformedObject, STOP, STOP, STOP, STOP),
        (UnsupportedVersion, STOP, STOP, STOP, STOP),
        (CorruptBlock, STOP, STOP, STOP, STOP),
        (BlockgzError, STOP, STOP, STOP, STOP),
    ],
)
def test_what_is_next(kind: type[BlockgzError], opening: Next, starting: Next, bounded: Next, serving: Next) -> None:
    error = kind("it failed")
    assert [what_next(error, situation) for situation in Situation] == [opening, starting, bounded, serving]


def test_an_object_that_is_missing_stops() -> None:
    assert what_next(ObjectMissing("x"), Situation.SERVING) is STOP


def test_only_what_a_service_tries_again_as_it_is_passes() -> None:
    error = AccessDenied("403")
    assert passing(error) is error
    for failure in (SyncFailed("EIO"), Diverged("another log")):
        with pytest.raises(type(failure)):
            passing(failure)


class OfItsOwn(StoreUnavailable):
    """A kind that the table does not name."""


def test_a_kind_is_what_the_nearest_of_its_classes_is() -> None:
    assert what_next(OfItsOwn("down"), Situation.SERVING) is AGAIN
    assert issubclass(BufferFull, BufferFailed) and what_next(BufferFull("full"), Situation.SERVING) is AGAIN


def test_the_page_on_operations_has_this_table() -> None:
    section = OPERATIONS.read_text().partition("## What is retried")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ")[1:] for line in section.splitlines() if line.startswith("| ")]
    shown = (Situation.STARTING, Situation.BOUNDED, Situation.SERVING)
    assert rows[1:-1] == [[moves.get(each, STOP) for each in shown] for moves in TABLE.values()]
    assert rows[-1] == [STOP] * len(shown)
