"""`python -m benchmarks.prototype.parts PART …`: what one way to read a topic costs, start-up and loading apart."""

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import pyarrow as pa

from archiver.config.model import RunConfig
from archiver.ingest.backpressure import MemoryPlan
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import EndReached, Fetched, KafkaSource
from benchmarks.bare import consume
from benchmarks.prototype.fetcher import drained
from benchmarks.prototype.native import Native
from blockgz_runtime.process import pandas_refused, share_heaps


@dataclass(frozen=True)
class PartCost:
    """Seconds on the clock and of processor, those of the calling thread among them; peak resident bytes."""

    seconds: float
    cpu_seconds: float
    caller_seconds: float
    peak_bytes: int
    records: int | None
    """None where nobody counted."""


def archiver_columns(bootstrap: str, topic: str, partitions: int) -> int:
    """The archiver's consumer with its own settings: Arrow batches, looked at by nobody; gives their records."""
    config = RunConfig(topics=[topic], bootstrap_servers=bootstrap, archive="./unused", once=True)
    memory = MemoryPlan(config.memory)
    settings = consumer_settings(config, queue_bytes=memory.queue_bytes)
    source = KafkaSource(settings, memory.batching_bytes)
    source.consume({(topic, number): 0 for number in range(partitions)})
    records, ended = 0, set()
    while len(ended) < partitions:
        for event in source.poll():
            if isinstance(event, Fetched):
                records += event.batch.num_rows
            elif isinstance(event, EndReached):
                ended.add(event.partition)
            else:
                raise SystemExit(str(event.error))
    source.close()
    return records


def prototype_columns(native: Native, bootstrap: str, topic: str) -> int:
    """The same Arrow batches by the prototype."""
    return sum(cut.batch.num_rows for _, cut in drained(native, bootstrap, topic))


def measured(read: Callable[[], int | None]) -> PartCost:
    """Run it as the archiver would: with its allocators and its thresholds of the collector."""
    share_heaps()
    with pandas_refused():
        pa.array([])
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    process, thread = _processor(resource.RUSAGE_SELF), _processor(resource.RUSAGE_THREAD)
    started = time.perf_counter()
    records = read()
    return PartCost(
        seconds=time.perf_counter() - started,
        cpu_seconds=_processor(resource.RUSAGE_SELF) - process,
        caller_seconds=_processor(resource.RUSAGE_THREAD) - thread,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        records=records,
    )


def _processor(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    """Load what the part needs, then measure it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prototype.parts")
    parser.add_argument("part", choices=["bare", "archiver", "prototype"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--library", type=Path, required=True)
    given = parser.parse_args(argv)
    where = (given.bootstrap, given.topic)
    native = Native(given.library)
    reads: dict[str, Callable[[], int | None]] = {
        "bare": lambda: consume(*where, given.partitions),
        "archiver": lambda: archiver_columns(*where, given.partitions),
        "prototype": lambda: prototype_columns(native, *where),
    }
    cost = measured(reads[given.part])
    sys.stdout.buffer.write(orjson.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
