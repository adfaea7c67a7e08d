"""What can go wrong while archiving, each with its exit code (the base and its tree: index_format.errors).

::

    UsageError            2   an option or a configuration that cannot be
    └── UnresolvedReference 2 a ${…} in the configuration that leads nowhere on this machine
    NotPermitted         12   credentials or permissions, of broker or store
    BrokerUnreachable     1   no broker answered within the deadline
    NoSuchTopic           2   a named topic that the cluster or the archive does not have
    NotInArchive          4   a named topic that the archive does not have
    NoArchiveThere       10   nothing at the address says that it is an archive
    StoreError            1   the store refuses or fails for good
    ├── StoreUnavailable  1   it may answer later; the request may or may not have been carried out
    │   └── StoreBusy     1   it answered that it is overloaded or fails at the moment
    ├── BufferFailed      1   the local buffer could not be written; the chunk is read from Kafka again
    └── StoreUnfit        1   it breaks a promise that commits rest on, such as conditional writes
    OwnedByAnother       11   another writer owns the partition
    ├── Fenced           11   another writer claimed it while this one worked
    ├── MemberRefused    11   the consumer group refuses this process, for its member id is another's
    └── AssignmentLost   11   the consumer group or the cluster took it away before a commit
    PartitionUnavailable  1   a partition that cannot be read right now
    Diverged              1   the log no longer agrees with the archive; nothing is written
    GapRefused            1   records were lost to retention and --on-gap is stop
    UnreadableRecord      1   a record that the client cannot hand over
    WorkerLost            1   a process of `--once --workers` that died before it could tell what it did
    ServiceUnreachable    1   no running archiver answers at an address
    ShuttingDown          -   raised inside work that a shutdown abandons; no program ends with it
"""

from index_format.errors import BlockgzError


class UsageError(BlockgzError):
    """An option or a configuration that cannot be."""

    exit_code = 2


class UnresolvedReference(UsageError):
    """A `${env:…}` or `${file:…}` in the configuration that leads nowhere on this machine."""


class NotPermitted(BlockgzError):
    """Credentials or permissions are missing or wrong."""

    exit_code = 12


class BrokerUnreachable(BlockgzError):
    """No broker answered within the deadline."""


class NoSuchTopic(BlockgzError):
    """A named topic that the cluster or the archive does not have."""

    exit_code = 2


class NotInArchive(BlockgzError):
    """A named topic that the archive does not have."""

    exit_code = 4


class NoArchiveThere(BlockgzError):
    """Nothing at the address says that it is an archive."""

    exit_code = 10


class StoreError(BlockgzError):
    """The store refuses or fails for good."""


class StoreUnavailable(StoreError):
    """The store may answer later; whether the request was carried out is unknown."""


class StoreBusy(StoreUnavailable):
    """The store answered, but with an error that passes."""


class BufferFailed(StoreError):
    """The local buffer could not be written or read back."""


class StoreUnfit(StoreError):
    """The store breaks a promise that commits rest on."""


class OwnedByAnother(BlockgzError):
    """Another writer owns the partition."""

    exit_code = 11


class Fenced(OwnedByAnother):
    """Another writer claimed the partition while this one worked."""


class MemberRefused(OwnedByAnother):
    """The consumer group refuses this process as long as another one has its static member id."""


class AssignmentLost(OwnedByAnother):
    """The partition is no longer this process's, or its topic was created anew, as a commit was due."""


class PartitionUnavailable(BlockgzError):
    """A partition that cannot be read right now: deleted, passed by retention, without a leader."""


class Diverged(BlockgzError):
    """The log no longer agrees with what was archived from it."""


class GapRefused(BlockgzError):
    """Records were lost to retention and the policy is to stop."""


class UnreadableRecord(BlockgzError):
    """A record that the client cannot hand over."""


class WorkerLost(BlockgzError):
    """A process of `--once --workers` that died before it could tell what it did."""

    def __init__(self, number: int, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"
        super().__init__(
            f"worker {number} {how} before it had drained its partitions",
            why="it ran out of memory, or somebody killed it" if exit_code == -9 else "its own messages stand above",
            remedy="run it again: what was committed stands, and it goes on from there",
        )


class ServiceUnreachable(BlockgzError):
    """No running archiver answers at an address."""


class ShuttingDown(BlockgzError):
    """Raised inside work that a shutdown abandons."""
