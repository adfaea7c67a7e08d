"""Timestamp 0: the one that librdkafka cannot send."""

import numpy as np
import pyarrow as pa

from index_format.records import SCHEMA

SEND_INSTEAD_OF_ZERO = 1
"""librdkafka takes timestamp 0 for "now", so such a record gets the next millisecond."""


def sendable(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The batch without timestamps of 0, and how many there were."""
    timestamps = batch.column("timestamp").to_numpy()
    zeros = int(np.count_nonzero(timestamps == 0))
    if not zeros:
        return batch, 0
    columns = {name: batch.column(name) for name in SCHEMA.names}
    columns["timestamp"] = pa.array(np.where(timestamps == 0, SEND_INSTEAD_OF_ZERO, timestamps))
    return pa.record_batch(list(columns.values()), schema=SCHEMA), zeros
