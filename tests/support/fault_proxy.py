"""A proxy that does to each request what a function of the test says.

    with FaultProxy(upstream, lambda request: Fault.RESET_AFTER if request.method == "PUT" else Fault.NONE) as proxy:
        ...  # clients use proxy.endpoint_url

`seeded` makes decisions at random.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType

from tests.support.http_proxy import SECONDS, Answer, HttpProxy, Request, error_answer


class Fault(Enum):
    """What a request meets."""

    NONE = "none"
    RESET_BEFORE = "reset before"
    """The connection is reset, the server hears nothing."""
    RESET_AFTER = "reset after"
    """The server carries the request out, its answer is lost."""
    ERROR_BEFORE = "500 before"
    ERROR_AFTER = "500 after"
    THROTTLE = "503"
    DENIED = "403"
    EXPIRED = "400 ExpiredToken"
    LATE = "late"
    """Answered with 503, and carried out when `deliver_late` is called."""
    TWICE = "twice"
    """Carried out twice in a row; the client gets the second answer."""
    TWICE_LATE = "twice, late"
    """Carried out at once, and again when `deliver_late` is called."""
    CUT = "cut"
    """The answer breaks off in the middle of its body."""
    HELD = "held"
    """The answer is held back until `release` is called, or the proxy ends."""


_INTERNAL_ERROR = error_answer(500, "InternalError")
_SLOW_DOWN = error_answer(503, "SlowDown")
_UNHEARD: dict[Fault, Answer | None] = {
    Fault.RESET_BEFORE: None,
    Fault.ERROR_BEFORE: _INTERNAL_ERROR,
    Fault.THROTTLE: _SLOW_DOWN,
    Fault.DENIED: error_answer(403, "AccessDenied"),
    Fault.EXPIRED: error_answer(400, "ExpiredToken"),
    Fault.LATE: _SLOW_DOWN,
}
"""The answers to requests that the server does not hear, or not yet."""

Decide = Callable[[Request], Fault]


def seeded(seed: object, weights: Mapping[Fault, float]) -> Decide:
    """Faults at random: what a request meets is a function of the seed and its number."""

    def decide(request: Request) -> Fault:
        rng = random.Random(f"{seed}:{request.number}")
        return rng.choices(list(weights), list(weights.values()))[0]

    return decide


def once(operation: str, fault: Fault) -> Decide:
    """That fault for the first such request, none for all others."""
    waiting = [fault]

    def decide(request: Request) -> Fault:
        return waiting.pop() if waiting and request.operation == operation else Fault.NONE

    return decide


def no_fault(_: Request) -> Fault:
    return Fault.NONE


class FaultProxy(HttpProxy):
    """`decide` may be exchanged at any time."""

    def __init__(self, upstream: str, decide: Decide = no_fault) -> None:
        super().__init__(upstream)
        self.decide = decide
        self.counts: Counter[Fault] = Counter()
        """Requests by what they met."""
        self.operations: Counter[str] = Counter()
        """Requests that came in, by S3's names."""
        self._late: list[Request] = []
        self._released = threading.Event()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        super().__exit__(kind, error, trace)

    def release(self) -> None:
        """Send what is held back."""
        self._released.set()

    def deliver_late(self) -> int:
        """Carry out what was held back, in the order it came; how many requests that were."""
        with self._guard:
            late, self._late = self._late, []
        for request in late:
            self.forward(request)
        return len(late)

    def answer(self, request: Request) -> Answer | None:
        with self._guard:
            self.operations[request.operation] += 1
            fault = self.decide(request)
            self.counts[fault] += 1
            if fault in (Fault.LATE, Fault.TWICE_LATE):
                self._late.append(request)
        if fault in _UNHEARD:
            return _UNHEARD[fault]
        answer = self.forward(request)
        if fault is Fault.TWICE:
            return self.forward(request)
        if fault is Fault.CUT:
            return _cut(answer)
        if fault is Fault.HELD:
            self._released.wait(SECONDS)
        return {Fault.RESET_AFTER: None, Fault.ERROR_AFTER: _INTERNAL_ERROR}.get(fault, answer)


def _cut(answer: Answer) -> Answer:
    """A body that breaks off: its length is told, half of it follows."""
    headers = [(name, value) for name, value in answer.headers if name.lower() != "content-length"]
    length = ("Content-Length", str(len(answer.body)))
    return Answer(answer.status, [*headers, length], answer.body[: len(answer.body) // 2])
