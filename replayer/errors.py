"""What can go wrong while reading an archive, as types that carry their exit code (FORMAT.md's own errors aside).

The tree, below `index_format.errors.BlockgzError`::

    UsageError          2   an argument or option cannot be used (a ValueError)
    NotInArchive        4   the archive is there, the topic, partition or record is not (a LookupError)
    NoArchiveThere     10   nothing at that address is an archive (a LookupError)
    AccessDenied       12   credentials are missing, wrong or not enough (a PermissionError)
    StoreUnavailable    1   the store did not answer, or not usefully (a ConnectionError)
    ObjectMissing       3   an object is not there (a LookupError)
    ObjectTruncated     3   an object ends before the bytes that were asked for (a FormatError)
    ObjectChanged       3   an object is no longer the one that was planned for (a FormatError)
    BrokerUnreachable   1   no broker answered within the deadline (a ConnectionError)
    NoSuchTopic         2   a topic that the cluster does not have (a LookupError)
    ReplayRefused       2   the target would not keep the records as they are (a ValueError)
    RecordUnfit         1   a record that cannot be changed as was asked for (a ValueError)
    DeliveryFailed      1   the cluster did not take a record
    CommitLost          1   a transaction was rolled back, or nobody knows (a DeliveryFailed)
    JobTakenOver       11   another run of the same job writes now
    TopicUnreadable     1   the log cannot be read to the end that was asked for
"""

from index_format.errors import BlockgzError, FormatError


class UsageError(BlockgzError, ValueError):
    """An argument or option that cannot be used as given."""

    exit_code = 2


class NotInArchive(BlockgzError, LookupError):
    """The archive does not hold what was asked for; `why` tells which of the reasons it is."""

    exit_code = 4


class NoArchiveThere(BlockgzError, LookupError):
    """Nothing at the address is an archive."""

    exit_code = 10


class AccessDenied(BlockgzError, PermissionError):
    """The store or the cluster refuses: no credentials, wrong ones, or too few permissions."""

    exit_code = 12

    def __str__(self) -> str:
        return self.what


class StoreUnavailable(BlockgzError, ConnectionError):
    """The store could not be reached or keeps failing; worth a retry later."""

    exit_code = 1

    def __str__(self) -> str:
        return self.what


class ObjectMissing(BlockgzError, LookupError):
    """There is no object of that key."""

    exit_code = 3

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the object {key} is missing",
            why="the archive names it, or an archive would have it",
            remedy="run `replayer verify` to see what is lost",
        )
        self.key = key


class ObjectTruncated(FormatError):
    """An object ends before the bytes that its index promises."""

    def __init__(self, key: str, start: int, end: int) -> None:
        super().__init__(
            f"the object {key} is cut short",
            why=f"bytes {start} to {end} were asked for and it ends before",
            remedy="run `replayer verify` to see what is lost",
        )
        self.key = key


class ObjectChanged(FormatError):
    """An object was replaced while it was being read; objects of an archive never change."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the object {key} was replaced while it was being read",
            why="its ETag is another one now, and objects of an archive never change",
            remedy="run `replayer verify --deep`, and find out what wrote to it",
        )
        self.key = key


class BrokerUnreachable(BlockgzError, ConnectionError):
    """No broker answered within the deadline; worth a retry later."""

    exit_code = 1

    def __str__(self) -> str:
        return self.what


class NoSuchTopic(BlockgzError, LookupError):
    """A topic that the cluster does not have."""

    exit_code = 2


class ReplayRefused(BlockgzError, ValueError):
    """The target would not keep the records as they are; nothing was written."""

    exit_code = 2


class RecordUnfit(BlockgzError, ValueError):
    """A record that cannot be changed as was asked for; `partition` and `offset` are those of the archive."""

    exit_code = 1

    def __init__(self, partition: int, offset: int, why: str, remedy: str) -> None:
        super().__init__(f"the record at partition {partition}, offset {offset} cannot be sent", why=why, remedy=remedy)
        self.partition = partition
        self.offset = offset


class DeliveryFailed(BlockgzError):
    """The cluster did not take a record; `why` says what was written before."""

    exit_code = 1


class CommitLost(DeliveryFailed):
    """A transaction was rolled back, or its end is not known: the committed position tells; worth a retry."""


class JobTakenOver(BlockgzError):
    """Another run of the same job writes, or wrote since: this one must not."""

    exit_code = 11


class TopicUnreadable(BlockgzError):
    """The log cannot be read to the end that was asked for."""

    exit_code = 1
