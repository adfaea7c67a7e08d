"""A part of one partition, pinned to one version of its marker."""

from typing import NamedTuple

from .archive import ArchivedPartition
from .positions import OffsetRange


class Selection(NamedTuple):
    """Offsets of one partition; what is committed later is not in it."""

    partition: ArchivedPartition
    offsets: OffsetRange
