"""Compacted topics, with the log cleaner made to run within seconds."""

import time
from collections import Counter

from system_test.support.topics import LOG_APPEND_TIME, NewRecord, Record, create_topic, produce, read
from system_test.support.waiting import wait_until

ROLL_KEY = b"roll-the-segment"

_SEGMENT_MS = 100
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


def create_compacted_topic(
    bootstrap: str, topic: str, partitions: int = 1, *, timestamp_type: str = "CreateTime"
) -> None:
    """Create a topic that the log cleaner works on as soon as `compact_and_wait` asks for it."""
    create_topic(bootstrap, topic, partitions, {**_COMPACTED, "message.timestamp.type": timestamp_type})


def compact_and_wait(bootstrap: str, topic: str, partition: int = 0, seconds: float = 60) -> list[Record]:
    """Compact everything that the partition holds now and return the records that are left.

    The cleaner never touches the newest segment, so a record with key ROLL_KEY is appended (the last one returned)
    that opens a new one: its timestamp is a second above all others. Returns when no key before it stands twice.
    Fails with DeadlineExceededError when that takes longer than `seconds`.
    """
    present = read(bootstrap, topic, partition, committed=False)
    newest = max((record.timestamp for record in present), default=0)
    if any(record.timestamp_type == LOG_APPEND_TIME for record in present):
        wait_until(lambda: _now() > newest + 2 * _SEGMENT_MS, seconds, "the broker's clock to pass the segment's age")
    roll = NewRecord(b"", key=ROLL_KEY, partition=partition, timestamp=max(newest + 1000, _now()))
    (rolled_at,) = produce(bootstrap, topic, [roll])

    def compacted() -> list[Record] | None:
        left = read(bootstrap, topic, partition, committed=False)
        counts = Counter(record.key for record in left if record.offset < rolled_at)
        return None if any(count > 1 for count in counts.values()) else left

    return wait_until(compacted, seconds, f"the compaction of {topic}:{partition} up to offset {rolled_at}")


def _now() -> int:
    return int(time.time() * 1000)
