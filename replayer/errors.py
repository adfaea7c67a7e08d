"""Errors of the replayer alone (those of both programs: blockgz.errors)."""

from blockgz.errors import BlockgzError


class ReplayRefused(BlockgzError, ValueError):
    """The target would not keep the records as they are; nothing was written."""

    exit_code = 2


class RecordUnfit(BlockgzError, ValueError):
    """A record that cannot be changed as requested; `partition` and `offset` are those of the archive."""

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


class ProducerFenced(CommitLost):
    """The cluster lets this run's producer write no more: another run began, or a late request of its own counted."""


class TargetChanged(BlockgzError):
    """The target topic is gone, was created again, or lacks records that were written to it."""

    exit_code = 1


class TargetInUse(BlockgzError):
    """Another job writes to the same topic now."""

    exit_code = 11


class JobTakenOver(BlockgzError):
    """Another run of the same job writes, or wrote since: this one must not."""

    exit_code = 11


class ExportFailed(BlockgzError):
    """A file could not be written, or a record does not fit the requested format; no partial file was left."""

    exit_code = 1
