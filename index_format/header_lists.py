"""Headers as other libraries hold them in Arrow, Spark for one: lists and structs that may be null."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_format.records import HEADER_TYPE, SCHEMA


def header_column_of_lists(lists: pa.ListArray) -> pa.ListArray:
    """The column `headers` of lists of structs with `key` and `value` that may be null, as other libraries have them.

    A null list stands for no headers. Raises ValueError where a header or its key is null.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = lists.flatten()
    keys, values = flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())
    if flat.null_count or keys.null_count:
        raise ValueError("a header without a key")
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(ends, structs, type=SCHEMA.field("headers").type)
