"""What each step of the prototype costs alone: the least of many rounds over answers that lie in memory."""

import time
from collections.abc import Callable, Iterator

from benchmarks.prototype.cutting import Answer, arrow_batch
from benchmarks.prototype.fetcher import MOST_BYTES, PARTITION_BYTES
from benchmarks.prototype.native import Native
from benchmarks.prototype.wire import FETCH, Connection, bounds, fetch_request, fetched, leaders

ROUNDS = 30
ANSWERS = 8


def steps(native: Native, bootstrap: str, topic: str) -> dict[str, float]:
    """Seconds of the clock a record by step."""
    contents = list(_contents(native, bootstrap, topic))
    answers = [Answer(native, content, 0) for content in contents]
    raws = [answer.raws() for answer in answers]
    records = sum(raw.batch.records for pieces in raws for raw in pieces)
    costs: dict[str, Callable[[], object]] = {
        "find batches, CRC-32C": lambda: [Answer(native, content, 0) for content in contents],
        "inflate": lambda: [answer.raws() for answer in answers],
        "records to columns": lambda: [arrow_batch(native, pieces) for pieces in raws],
        "walk the lengths in Python, for comparison": lambda: [
            walked(raw.buffer.to_pybytes(), raw.batch.records) for pieces in raws for raw in pieces
        ],
    }
    return {name: least(step) / records for name, step in costs.items()}


def walked(data: bytes, records: int) -> list[int]:
    """Where each record starts, by Python alone: what a version without C could not do without."""
    starts = []
    at = 0
    for _ in range(records):
        starts.append(at)
        byte = data[at]
        length, shift = byte & 0x7F, 7
        at += 1
        while byte & 0x80:
            byte = data[at]
            length |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        at += length >> 1
    return starts


def least(step: Callable[[], object]) -> float:
    """Seconds of the quickest round."""
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        step()
        found.append(time.perf_counter() - started)
    return min(found)


def _contents(native: Native, bootstrap: str, topic: str) -> Iterator[memoryview]:
    """The first answers for partition 0, as a broker sent them."""
    connection = Connection(*leaders(bootstrap, topic)[0])
    position, end = bounds(connection, topic, 0)
    for _ in range(ANSWERS):
        if position >= end:
            break
        connection.send(FETCH, fetch_request(topic, {0: position}, MOST_BYTES, PARTITION_BYTES))
        (found,) = fetched(connection.answer())
        content = memoryview(bytes(found.content))
        position = Answer(native, content, position).next_position
        yield content
    connection.close()
