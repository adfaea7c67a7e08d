"""A chain as a stage of a replay."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import RecordUnfit
from replayer.replay.pipeline import ScannedBatch
from replayer.transforms.chain import Chain
from replayer.transforms.record import CannotTransform, ConnectRecord, RecordPart

NO_TIMESTAMP = -1


@dataclass
class Tally:
    """What the stage left out, as far as this run has read."""

    dropped: int = 0
    """By Filter."""
    routed_elsewhere: int = 0
    """Because a router sends them to another topic than the replay's."""
    unfit: int = 0
    """Because a transform could not handle them."""


@dataclass(frozen=True)
class TransformStage:
    """Applies a chain to records of `topic`; where the chain routes, only records that end in `target` go on."""

    chain: Chain
    topic: str
    target: str
    on_error: Literal["fail", "skip"] = "fail"
    tally: Tally = field(default_factory=Tally, compare=False)

    @property
    def fingerprint(self) -> str:
        """See Stage."""
        return f"{self.chain.fingerprint} from {self.topic} to {self.target}, on error {self.on_error}"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        """See Stage; raises RecordUnfit."""
        return batch._replace(records=batch_from_records(list(self._transformed(batch))))

    def _transformed(self, batch: ScannedBatch) -> Iterator[Record]:
        for record in iter_records(batch.records):
            try:
                made = self._made(batch.partition, record)
            except CannotTransform as error:
                if self.on_error == "fail":
                    raise _unfit(batch.partition, record.offset, error) from error
                self.tally.unfit += 1
                continue
            if made is not None:
                yield made

    def _made(self, partition: int, record: Record) -> Record | None:
        result = self.chain(self._given(partition, record))
        if result is None:
            self.tally.dropped += 1
            return None
        if self.chain.routes and result.topic != self.target:
            self.tally.routed_elsewhere += 1
            return None
        return record._replace(key=result.key.encoded(), value=result.value.encoded(), headers=result.headers)

    def _given(self, partition: int, record: Record) -> ConnectRecord:
        chain = self.chain
        return ConnectRecord(
            self.topic,
            partition,
            record.offset,
            None if record.timestamp == NO_TIMESTAMP else record.timestamp,
            RecordPart(record.key, chain.key_converter),
            RecordPart(record.value, chain.value_converter),
            record.headers,
        )


def _unfit(partition: int, offset: int, error: CannotTransform) -> RecordUnfit:
    return RecordUnfit(
        partition,
        offset,
        str(error),
        "give the transform a predicate, or leave such records out with --on-transform-error skip",
    )
