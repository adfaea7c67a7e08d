"""What the driver of `replayer verify --spark` costs: `python -m benchmarks.spark_driver [CHUNKS...]`; starts no Spark.

For each number of chunks in one partition: the seconds of planning, the tasks, and the bytes of the largest one.
"""

import asyncio
import pickle
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.synthetic import write_bare_chain
from blockgz.archive.archive import ArchivePlace
from blockgz.store.address import LocalAddress
from replayer.spark.verify import planned
from replayer.verify.chunk_checks import EVERY_CHUNK

COUNTS = (75_000, 150_000, 300_000)
TASK_BYTES = 128 * 1024 * 1024


def main(counts: tuple[int, ...]) -> None:
    for chunks in counts:
        with tempfile.TemporaryDirectory(prefix="blockgz-") as folder:
            write_bare_chain(Path(folder), chunks)
            place = ArchivePlace(LocalAddress(folder))
            for digests in (False, True):
                started = time.perf_counter()
                plan = asyncio.run(planned(place, [], EVERY_CHUNK, TASK_BYTES, digests=digests))
                largest = max(len(pickle.dumps(each)) for each in plan.slices)
                seconds = time.perf_counter() - started
                what = f"{len(plan.slices)} tasks of at most {largest:,} bytes{', with digests' if digests else ''}"
                print(f"{chunks:,} chunks: {seconds:.1f} s, {what}", flush=True)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or COUNTS)
