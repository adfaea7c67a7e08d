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

from archiver.allocators import share_heaps
from archiver.config import RunConfig
from archiver.kafka_settings import consumer_settings
from archiver.kafka_source import EndReached, Fetched, KafkaSource
from archiver.memory_plan import MemoryPlan
from index_format.no_pandas import pandas_refused

from ..bare import consume
from ..data import TopicShape
from .fetcher import drained
from .native import Native


@dataclass(frozen=True)
class PartCost:
    """Seconds on the clock and of processor, those of the calling thread among them; peak resident bytes."""

    seconds: float
    cpu_seconds: float
    caller_seconds: float
    peak_bytes: int
    records: int


def bare_messages(bootstrap: str, shape: TopicShape) -> int:
    """Message objects of librdkafka, looked at by nobody."""
    consume(bootstrap, shape.name, shape.partitions)
    return shape.records


def archiver_columns(bootstrap: str, shape: TopicShape) -> int:
    """The archiver's consumer with its own settings: Arrow batches, looked at by nobody."""
    config = RunConfig(topics=[shape.name], bootstrap_servers=bootstrap, archive="unused", once=True)
    memory = MemoryPlan(config.memory)
    settings = consumer_settings(config, queue_bytes=memory.queue_bytes)
    source = KafkaSource(settings, memory.gathering_bytes)
    source.consume({(shape.name, number): 0 for number in range(shape.partitions)})
    records, ended = 0, set()
    while len(ended) < shape.partitions:
        for event in source.poll():
            if isinstance(event, Fetched):
                records += event.batch.num_rows
            elif isinstance(event, EndReached):
                ended.add(event.partition)
            else:
                raise SystemExit(str(event.error))
    source.close()
    return records


def prototype_columns(native: Native, bootstrap: str, shape: TopicShape) -> int:
    """The same Arrow batches by the prototype."""
    return sum(cut.batch.num_rows for _, cut in drained(native, bootstrap, shape.name))


def measured(read: Callable[[], int]) -> PartCost:
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
    parser.add_argument("--shape", type=lambda body: TopicShape(**orjson.loads(body)), required=True)
    parser.add_argument("--library", type=Path, required=True)
    given = parser.parse_args(argv)
    native = Native(given.library)
    reads: dict[str, Callable[[], int]] = {
        "bare": lambda: bare_messages(given.bootstrap, given.shape),
        "archiver": lambda: archiver_columns(given.bootstrap, given.shape),
        "prototype": lambda: prototype_columns(native, given.bootstrap, given.shape),
    }
    cost = measured(reads[given.part])
    if cost.records != given.shape.records:
        raise SystemExit(f"{cost.records} of {given.shape.records} records came")
    sys.stdout.buffer.write(orjson.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
