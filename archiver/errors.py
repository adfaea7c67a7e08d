"""Errors of the archiver alone, and what it does about a failure: try again, take the partition over again, or stop.

All who meet an error call `what_next`: the driver of the protocols, the owner of the partitions, the service before it
has claimed anything, and while it polls. docs/troubleshooting.md shows the table.

Errors of both programs are in blockgz.errors.
"""

from collections.abc import Mapping
from enum import StrEnum

from blockgz import errors


class OwnedByAnother(errors.BlockgzError):
    """Another writer owns the partition."""

    exit_code = 11


class Fenced(OwnedByAnother):
    """Another writer claimed the partition while this one worked."""


class MemberRefused(OwnedByAnother):
    """The consumer group refuses this process as long as another one has its static member id."""


class GroupOfAnother(OwnedByAnother):
    """Another archive commits offsets of the consumer group, so that the two would share the partitions."""


class AssignmentLost(OwnedByAnother):
    """The partition is no longer this process's, as it was to be claimed or a commit failed."""


class TopicChanged(OwnedByAnother):
    """The topic was created again since the partition was claimed, or its records look as if it was."""


class TopicGone(errors.NoSuchTopic):
    """The topic was deleted while it was archived."""

    exit_code = errors.PARTLY_FAILED

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} is gone",
            why="the cluster has no topic with that name; what was fetched of it is archived",
            remedy="nothing to do if it was deleted on purpose; once it is back, it is archived again",
        )


class FolderClosed(AssignmentLost):
    """The marker names a successor: the partition continues in another folder of the archive."""


class Diverged(errors.BlockgzError):
    """The log no longer agrees with what was archived from it."""


class GapRefused(errors.BlockgzError):
    """Records were lost to retention and the policy is to stop."""


class SalvageRefused(errors.BlockgzError):
    """The chunks of a dead writer cannot fill a gap."""


class DropRefused(errors.BlockgzError):
    """A topic is not dropped: something writes to it, or the cluster still has it."""


class RewriteOvertaken(errors.BlockgzError):
    """Another maintainer or folder took over while this one rewrote a partition; nothing of this rewrite counts."""

    exit_code = 11


class RefetchRefused(errors.BlockgzError):
    """Lost records cannot be read from this cluster."""


class RewriteRefused(errors.BlockgzError):
    """A partition that cannot be rewritten, or not as it was planned."""


class ContentsDiffer(errors.BlockgzError):
    """A rewritten chunk does not hold what it is to replace."""


class UnreadableRecord(errors.BlockgzError):
    """A record that the client cannot hand over."""


class UnencodableRecord(errors.BlockgzError):
    """A record that the chosen record format cannot hold without loss."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(
            f"record at offset {offset} cannot be archived",
            why=why,
            remedy="use --record-format json, which holds every record, or --on-bad-record skip to record a gap",
        )
        self.offset = offset


class DeadLetterRefused(errors.BlockgzError):
    """A record that cannot be archived, and that the topic for such records cannot hold either."""


class WorkerLost(errors.BlockgzError):
    """A process of `--once --workers` that died before it reported."""

    def __init__(self, number: int, exit_code: int) -> None:
        why, advice = "see its own messages above", ""
        if exit_code == -9:
            why = "it ran out of memory, or somebody killed it"
        elif exit_code < 0:
            why, advice = "a fault in a library; one in a thread of librdkafka prints nothing", f"; {errors.CORE_DUMP}"
        remedy = "run it again: committed records are safe, and the next run continues from there"
        super().__init__(
            f"worker {number} {errors.end_text(exit_code)} before it had drained its partitions",
            why=why,
            remedy=remedy + advice,
        )


class ServiceUnreachable(errors.BlockgzError):
    """No running archiver answers at an address."""


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
    """An answer to a failure."""

    AGAIN = "again"
    """The request is repeated after a pause."""
    CLAIM = "claim"
    """The partition is taken over again; pending records are committed first, or offered again by the new claim."""
    READ = "read"
    """The partition is taken over again, and pending records are dropped: they are read from Kafka again."""
    STOP = "stop"
    """Another try cannot help: the partition stops, a command ends."""


# Stop, if a person is there to read an error.
_ATTENDED = dict.fromkeys((Situation.OPENING, Situation.STARTING, Situation.BOUNDED), Next.STOP)
_ONCE_OPEN = (Situation.STARTING, Situation.BOUNDED, Situation.SERVING)
_BY_GROUP = (Situation.STARTING, Situation.SERVING)

# The answers by error class; the nearest base class counts. Others stop: diverged, damaged, misconfigured.
TABLE: Mapping[type[errors.BlockgzError], Mapping[Situation, Next]] = {
    errors.StoreBusy: dict.fromkeys(Situation, Next.AGAIN),
    errors.StoreUnavailable: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    errors.BrokerUnreachable: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    errors.AccessDenied: _ATTENDED | {Situation.SERVING: Next.AGAIN},
    errors.StoreFull: _ATTENDED | {Situation.SERVING: Next.AGAIN},
    errors.SyncFailed: _ATTENDED | {Situation.SERVING: Next.CLAIM},
    errors.BufferFull: dict.fromkeys(_ONCE_OPEN, Next.AGAIN),
    errors.BufferFailed: dict.fromkeys(_ONCE_OPEN, Next.READ),
    errors.PartitionUnavailable: dict.fromkeys(_ONCE_OPEN, Next.CLAIM),
    TopicGone: dict.fromkeys(_ONCE_OPEN, Next.CLAIM),
    TopicChanged: dict.fromkeys(_BY_GROUP, Next.READ),
    Fenced: dict.fromkeys(_BY_GROUP, Next.READ),
    AssignmentLost: dict.fromkeys(_BY_GROUP, Next.READ),
}


def what_next(error: errors.BlockgzError, situation: Situation) -> Next:
    """Return what to do about an error."""
    kind = next((kind for kind in type(error).__mro__ if kind in TABLE), None)
    return Next.STOP if kind is None else TABLE[kind].get(situation, Next.STOP)


def may_be_fixed(error: errors.BlockgzError) -> bool:
    """Return whether somebody may fix what stopped a partition: an object, a bucket or a disk."""
    # A partition that diverged, or that another group archives, needs a decision, and is not tried again by itself.
    if isinstance(error, errors.UnsupportedVersion | errors.StoreUnfit):
        return False
    return isinstance(error, errors.FormatError | errors.ObjectMissing | errors.StoreError)


def passing(error: errors.BlockgzError) -> errors.BlockgzError:
    """Return the error if a service may try the same again; raise it otherwise."""
    if what_next(error, Situation.SERVING) is not Next.AGAIN:
        raise error
    return error
