"""Blocking code as a process of the simulation, such as garbage collection: each request to the store is one step."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import greenlet

from archiver.commit import operations as op
from archiver.maintain import planned
from archiver.maintain.repair import chunk_indexes
from blockgz.errors import BlockgzError
from blockgz.store.writer import Body, Leftover, ListedObject, ObjectHead, StoredObject
from tests.support.memory_store import content_of
from tests.support.simulator import Delete, Run

THREADED = (planned, op, chunk_indexes)


@dataclass(frozen=True)
class ListPage:
    """Answer: the next `size` objects whose keys start so and lie behind `after`, in order; fewer are the last."""

    prefix: str
    after: str
    size: int


class SteppingStore:
    """See ToolStore: whoever asks it waits until the simulation answers."""

    url = "memory:"
    prefix = ""
    page = 8

    def get(self, key: str) -> StoredObject | None:
        return self._ask(op.Get(key))  # type: ignore[no-any-return]

    def head(self, key: str) -> ObjectHead | None:
        return self._ask(op.Head(key))  # type: ignore[no-any-return]

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        # It may arrive when the file is gone.
        return self._ask(op.PutIfAbsent(key, content_of(body), attempt))  # type: ignore[no-any-return]

    def compare_and_swap(self, key: str, body: bytes, expected: Any) -> Any:
        return self._ask(op.CompareAndSwap(key, body, expected))

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See Store: a page at a time, between which others write."""
        after, size = "", self.page
        while True:
            found: list[ListedObject] = self._ask(ListPage(prefix, after, size))
            yield from found
            if len(found) < size:
                return
            after, size = found[-1].key, size * 4

    def get_range(self, key: str, start: int, end: int) -> bytes:
        found = self.get(key)
        return b"" if found is None else found.body[start:end]

    def delete(self, key: str) -> None:
        self._ask(Delete(key))

    def clock(self) -> float:
        return self._ask(op.Now()) / 1000  # type: ignore[no-any-return]

    def restoring(self, key: str, sha256: str) -> str | None:
        """See ToolStore."""
        return None

    def leftovers(self) -> Iterator[Leftover]:
        yield from ()

    def _ask(self, request: Any) -> Any:
        parent = greenlet.getcurrent().parent
        assert parent is not None
        return parent.switch(request)


class OneAfterAnother:
    """As ThreadPoolExecutor; only one thing moves at a time."""

    def __init__(self, _workers: int = 1, **_: Any) -> None:
        pass

    def __enter__(self) -> "OneAfterAnother":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(work, *arguments)


def as_steps(work: Callable[[Any], Any]) -> Run:
    """The work as a protocol; it is given a store."""
    body = greenlet.greenlet(work)
    resume: Callable[[], Any] = lambda: body.switch(SteppingStore())  # noqa: E731
    try:
        while True:
            request = _without_threads(resume)
            if body.dead:
                return request
            try:
                answer = yield request
            except BlockgzError as error:
                resume = lambda error=error: body.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                resume = lambda answer=answer: body.switch(answer)  # type: ignore[misc]  # noqa: E731
    finally:
        if not body.dead:
            body.throw(greenlet.GreenletExit)


def _without_threads(resume: Callable[[], Any]) -> Any:
    before = planned.ThreadPoolExecutor
    for module in THREADED:
        module.ThreadPoolExecutor = OneAfterAnother  # type: ignore[attr-defined]
    try:
        return resume()
    finally:
        for module in THREADED:
            module.ThreadPoolExecutor = before  # type: ignore[attr-defined]
