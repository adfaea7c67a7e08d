"""How the budget of --memory is shared out: pure arithmetic.

The shares, a good third of it together, count what is held at rest. A record that is being worked on stands several
times over: as librdkafka's message, as Arrow, as text, encoded and compressed; fetches are added whole; and allocators
keep some of what was given back. The rest of the budget is for that.
"""

from dataclasses import dataclass

QUEUED_RECORD_FOOTPRINT = 320
"""Bytes that librdkafka takes for a queued record beside key and value, which alone it counts; measured with 2.16."""
BATCH_FOOTPRINT = 8192
"""Bytes that an Arrow batch takes beside its content, as measured: buffers are rounded up, objects stand around."""
LEAST_FETCH_BYTES = 1024**2


@dataclass(frozen=True)
class MemoryPlan:
    """The shares of a budget of `budget_bytes`."""

    budget_bytes: int

    @property
    def queue_bytes(self) -> int:
        """For records that librdkafka fetched ahead."""
        return self.budget_bytes // 8

    @property
    def gathering_bytes(self) -> int:
        """For messages that are gathered into batches."""
        return self.budget_bytes // 24

    @property
    def waiting_bytes(self) -> int:
        """For batches that wait to be encoded."""
        return self.budget_bytes // 12

    @property
    def open_block_bytes(self) -> int:
        """For encoded records of blocks that are not full yet."""
        return self.budget_bytes // 12

    @property
    def index_bytes(self) -> int:
        """For what open chunks note of their finished blocks."""
        return self.budget_bytes // 24


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of librdkafka's queue for a share of `share_bytes`; it stops to fetch at either of the first two.

    A fetch that began below them is added whole and inflated, one for each broker. So that bound is small.
    """

    share_bytes: int

    @property
    def content_bytes(self) -> int:
        """Keys and values in the queue: half the share, the other half being for what is around them."""
        return max(LEAST_FETCH_BYTES, self.share_bytes // 2)

    @property
    def records(self) -> int:
        """Records in the queue, however small."""
        return max(1000, self.share_bytes // 2 // QUEUED_RECORD_FOOTPRINT)

    @property
    def fetch_bytes(self) -> int:
        """One answer of a broker, compressed as it is in the log."""
        return max(LEAST_FETCH_BYTES, self.share_bytes // 32)
