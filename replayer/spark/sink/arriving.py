"""What Spark hands to a task, waited for no longer than a transaction may stay open."""

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Arriving(Generic[T]):
    """Takes items one ahead, in a thread that does not keep the process from ending."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._waiting: queue.Queue[T | _End] = queue.Queue(1)
        threading.Thread(target=self._take, name="blockgz-arriving", daemon=True).start()

    def next(self, seconds: float | None) -> T | None:
        """The next item, None after the last; raises TimeoutError after so long, or what the iterator raised."""
        try:
            item = self._waiting.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if not isinstance(item, _End):
            return item
        if item.error is not None:
            raise item.error
        return None

    def _take(self) -> None:
        try:
            for item in self._items:
                self._waiting.put(item)
        except BaseException as error:  # raised where the items are consumed
            self._waiting.put(_End(error))
        else:
            self._waiting.put(_End(None))


class _End:
    """Nothing follows; the error that ended it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
