"""Protocols that are simpler than the real one and wrong: the six that a model of the commit protocol ruled out."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

from archiver.commit import operations as op
from blockgz.store.writer import StoredObject
from index_format.errors import BlockgzError
from tests.support import scenarios
from tests.support.memory_store import content_of
from tests.support.simulator import Overwrite, Run

Handler = Callable[[Any], Generator[Any, Any, Any]]


def intercepted(protocol: Run, handle: Handler) -> Run:
    """The protocol with each of its operations replaced by what `handle` does for it."""
    try:
        operation = next(protocol)
        while True:
            try:
                answer = yield from handle(operation)
            except BlockgzError as error:
                operation = protocol.throw(error)
            else:
                operation = protocol.send(answer)
    except StopIteration as stop:
        return stop.value


def untouched(operation: Any) -> Generator[Any, Any, Any]:
    """Not broken: the protocol as it is, through the same machinery."""
    return (yield operation)


def plain_data_and_plain_marker(operation: Any) -> Generator[Any, Any, Any]:
    """A: everything by a plain PUT."""
    if isinstance(operation, op.CompareAndSwap):
        return (yield from _plain_swap(operation))
    return (yield from _plain_data(operation))


def plain_data(operation: Any) -> Generator[Any, Any, Any]:
    """B: data, index and catalogs by a plain PUT, the marker by compare-and-swap."""
    return (yield from _plain_data(operation))


def what_exists_is_done_and_plain_marker(operation: Any) -> Generator[Any, Any, Any]:
    """C: an object that stands there already is taken for one's own; the marker by a plain PUT."""
    if isinstance(operation, op.CompareAndSwap):
        return (yield from _plain_swap(operation))
    return (yield from what_exists_is_done(operation))


def what_exists_is_done(operation: Any) -> Generator[Any, Any, Any]:
    """D: an object that stands there already is taken for one's own; the marker by compare-and-swap."""
    if isinstance(operation, op.Head):
        return None
    answer = yield operation
    return True if isinstance(operation, op.PutIfAbsent) else answer


def swap_with_a_fresh_etag(operation: Any) -> Generator[Any, Any, Any]:
    """E: a refused swap is tried again with the etag that stands there now."""
    answer = yield operation
    while isinstance(operation, op.CompareAndSwap) and answer is None:
        found: StoredObject | None = yield op.Get(operation.key)
        answer = yield op.CompareAndSwap(operation.key, operation.body, found.etag if found else None)
    return answer


def orphans_are_overwritten(operation: Any) -> Generator[Any, Any, Any]:
    """F: data of an orphan is replaced by If-Match; equal records give equal bytes and equal etags."""
    is_data = isinstance(operation, op.Head | op.PutIfAbsent) and operation.key.endswith(".gz")
    if is_data and isinstance(operation, op.Head):
        return None
    if not is_data:
        return (yield operation)
    stored: bool = yield operation
    while not stored:
        found: StoredObject | None = yield op.Get(operation.key)
        etag: str | None = yield op.CompareAndSwap(
            operation.key, content_of(operation.body), found.etag if found else None
        )
        stored = etag is not None
    return True


def _plain_swap(operation: op.CompareAndSwap) -> Generator[Any, Any, Any]:
    return (yield Overwrite(operation.key, operation.body))


def _plain_data(operation: Any) -> Generator[Any, Any, Any]:
    if isinstance(operation, op.Head):
        return None
    if isinstance(operation, op.PutIfAbsent):
        yield Overwrite(operation.key, operation.body)
        return True
    return (yield operation)


HANDLERS: dict[str, Handler] = {
    "A": plain_data_and_plain_marker,
    "B": plain_data,
    "C": what_exists_is_done_and_plain_marker,
    "D": what_exists_is_done,
    "E": swap_with_a_fresh_etag,
    "F": orphans_are_overwritten,
}


def breaking(handler: Handler) -> AbstractContextManager[Any]:
    """Have writers of the simulator go on by a broken protocol."""
    real = scenarios.archive_all
    return patch.object(scenarios, "archive_all", lambda *given, **named: intercepted(real(*given, **named), handler))


BROKEN = {name: partial(breaking, handler) for name, handler in HANDLERS.items()}
