"""Executors that tests drive by hand."""

from concurrent.futures import Executor, Future
from typing import Any

from index_format.errors import BlockgzError


class Later(Executor):
    """Carries out what was submitted when it is told to."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Future[Any], Any]] = []

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted.append((future, lambda: function(*arguments, **named)))
        return future

    def carry_out(self) -> None:
        while self.submitted:
            future, function = self.submitted.pop()
            try:
                future.set_result(function())
            except BlockgzError as error:
                future.set_exception(error)
