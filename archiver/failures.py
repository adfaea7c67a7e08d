"""What the archiver does about a failure: try the same again, take the partition over again, or stop.

Everything that meets an error asks `what_next`: the driver of the protocols, the owner of the partitions, the service
before it has claimed anything, and while it polls. docs/operations.md shows the table.
"""

from collections.abc import Mapping
from enum import StrEnum

from archiver.errors import AssignmentLost, Fenced, TopicChanged, TopicGone
from blockgz.errors import (
    AccessDenied,
    BrokerUnreachable,
    BufferFailed,
    BufferFull,
    PartitionUnavailable,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    SyncFailed,
)
from index_format.errors import BlockgzError


class Situation(StrEnum):
    """When something fails."""

    OPENING = "opening"
    """Nothing is known of store and cluster yet."""
    STARTING = "starting"
    """A service that has claimed no partition yet."""
    BOUNDED = "bounded"
    """A run of `--once`, or a command: somebody waits for its end."""
    SERVING = "serving"
    """A service that has claimed a partition before."""


class Next(StrEnum):
    """What to do about a failure."""

    AGAIN = "again"
    """The same request, after a pause."""
    CLAIM = "claim"
    """The partition is taken over again; what is in hand is committed first, or offered again by the new claim."""
    READ = "read"
    """The partition is taken over again, and what is in hand is dropped: it is read from Kafka again."""
    STOP = "stop"
    """Another try cannot help: the partition stops, a command ends."""


_ATTENDED = dict.fromkeys((Situation.OPENING, Situation.STARTING, Situation.BOUNDED), Next.STOP)
"""Where a person is there to read an error."""
_ONCE_OPEN = (Situation.STARTING, Situation.BOUNDED, Situation.SERVING)
_BY_GROUP = (Situation.STARTING, Situation.SERVING)

TABLE: Mapping[type[BlockgzError], Mapping[Situation, Next]] = {
    StoreBusy: dict.fromkeys(Situation, Next.AGAIN),
    StoreUnavailable: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    BrokerUnreachable: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    AccessDenied: _ATTENDED | {Situation.SERVING: Next.AGAIN},
    StoreFull: _ATTENDED | {Situation.SERVING: Next.AGAIN},
    SyncFailed: _ATTENDED | {Situation.SERVING: Next.CLAIM},
    BufferFull: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    BufferFailed: dict.fromkeys(_ONCE_OPEN, Next.READ),
    PartitionUnavailable: dict.fromkeys(_ONCE_OPEN, Next.CLAIM),
    TopicGone: dict.fromkeys(_ONCE_OPEN, Next.CLAIM),
    TopicChanged: dict.fromkeys(_BY_GROUP, Next.READ),
    Fenced: dict.fromkeys(_BY_GROUP, Next.READ),
    AssignmentLost: dict.fromkeys(_BY_GROUP, Next.READ),
}
"""By the nearest class of an error; what does not stand here stops: diverged, damaged, misconfigured."""


def what_next(error: BlockgzError, situation: Situation) -> Next:
    """What to do about an error."""
    kind = next((kind for kind in type(error).__mro__ if kind in TABLE), None)
    return Next.STOP if kind is None else TABLE[kind].get(situation, Next.STOP)


def passing(error: BlockgzError) -> BlockgzError:
    """The error, where a service may try the same again; raises it where nobody does."""
    if what_next(error, Situation.SERVING) is not Next.AGAIN:
        raise error
    return error
