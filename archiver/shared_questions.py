"""Threads that ask the same at once share an answer, which is never older than their question."""

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

A = TypeVar("A")


class SharedQuestions(Generic[A]):
    """One question about a thing at a time; who asks while it is on its way waits for the next one, with all others."""

    def __init__(self, ask: Callable[[str], A]) -> None:
        self._ask = ask
        self._guard = threading.Lock()
        self._next: dict[str, Future[A]] = {}
        self._on_its_way: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def answer(self, about: str) -> A:
        """What `ask` answers to a question that begins after this call; raises what it raises."""
        with self._guard:
            shared = self._next.get(about)
            if shared is None:
                mine = self._next[about] = Future()
                on_its_way = self._on_its_way[about]
        if shared is not None:
            return shared.result()
        with on_its_way:
            with self._guard:
                del self._next[about]
            try:
                mine.set_result(self._ask(about))
            except BaseException as error:
                mine.set_exception(error)
        return mine.result()
