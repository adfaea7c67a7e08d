"""What becomes of each kind of failure, in each situation."""

from pathlib import Path

import pytest

from archiver import errors
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

AGAIN, CLAIM, READ, STOP = errors.Next.AGAIN, errors.Next.CLAIM, errors.Next.READ, errors.Next.STOP
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
        (errors.TopicGone, STOP, CLAIM, CLAIM, CLAIM),
        (errors.TopicChanged, STOP, READ, STOP, READ),
        (errors.Fenced, STOP, READ, STOP, READ),
        (errors.AssignmentLost, STOP, READ, STOP, READ),
        (errors.OwnedByAnother, STOP, STOP, STOP, STOP),
        (errors.Diverged, STOP, STOP, STOP, STOP),
        (errors.GapRefused, STOP, STOP, STOP, STOP),
        (errors.UnreadableRecord, STOP, STOP, STOP, STOP),
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
def test_what_is_next(
    kind: type[BlockgzError], opening: errors.Next, starting: errors.Next, bounded: errors.Next, serving: errors.Next
) -> None:
    error = kind("it failed")
    assert [errors.what_next(error, situation) for situation in errors.Situation] == [
        opening,
        starting,
        bounded,
        serving,
    ]


def test_an_object_that_is_missing_stops() -> None:
    assert errors.what_next(ObjectMissing("x"), errors.Situation.SERVING) is STOP


def test_only_what_a_service_tries_again_as_it_is_passes() -> None:
    error = AccessDenied("403")
    assert errors.passing(error) is error
    for failure in (SyncFailed("EIO"), errors.Diverged("another log")):
        with pytest.raises(type(failure)):
            errors.passing(failure)


class OfItsOwn(StoreUnavailable):
    """A kind that the table does not name."""


def test_a_kind_is_what_the_nearest_of_its_classes_is() -> None:
    assert errors.what_next(OfItsOwn("down"), errors.Situation.SERVING) is AGAIN
    assert (
        issubclass(BufferFull, BufferFailed) and errors.what_next(BufferFull("full"), errors.Situation.SERVING) is AGAIN
    )


def test_the_page_on_operations_has_this_table() -> None:
    section = OPERATIONS.read_text().partition("## What is retried")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ")[1:] for line in section.splitlines() if line.startswith("| ")]
    shown = (errors.Situation.STARTING, errors.Situation.BOUNDED, errors.Situation.SERVING)
    assert rows[1:-1] == [[moves.get(each, STOP) for each in shown] for moves in errors.TABLE.values()]
    assert rows[-1] == [STOP] * len(shown)
