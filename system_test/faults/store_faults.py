"""A proxy before an S3 server that breaks requests at random.

What a request meets is a function of the seed and the request's number. The journal gets a line of JSON for each fault.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from types import TracebackType

from tests.support.http_proxy import Answer, HttpProxy, Request, error_answer

_PROBE_SHARE = 0.25
"""Every start asks some forty requests whether the store is fit; they are to meet fewer faults than real work."""
_LATE_AT_ONCE = 64
_LONG_SECONDS = 65.0
"""Longer than the archiver's client waits for an answer."""

Inflict = Callable[[Request, random.Random], Answer | None]


class StoreFaultProxy(HttpProxy):
    """Of the requests a share of `rate` meets a fault."""

    def __init__(self, upstream: str, seed: str, rate: float, journal: Path) -> None:
        super().__init__(upstream)
        self._seed = seed
        self._rate = rate
        self._journal = journal.open("a")
        self.hits = 0
        """Faults that met real work; the journal has those of probes too."""
        self._quiet = threading.Event()
        self._burst_until = 0.0
        self._late: list[Future[None]] = []
        self._deliverers = ThreadPoolExecutor(_LATE_AT_ONCE, thread_name_prefix="late")
        self._faults: list[tuple[float, str, Inflict]] = [
            (10, "reset-before", self._reset_before),
            (14, "reset-after", self._reset_after),
            (8, "error-before", self._error_before),
            (10, "error-after", self._error_after),
            (6, "throttled", self._throttled),
            (3, "burst", self._burst),
            (10, "slow", self._slow),
            (10, "late", self._deliver_late),
            (10, "double", self._double),
            (8, "double-late", self._double_late),
            (6, "cut", self._cut),
            (6, "conflict", self._conflict),
            (4, "refused", self._refused),
            (4, "timed-out", self._timed_out),
            (2, "stall", self._stall),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.quiet()
        super().__exit__(kind, error, trace)
        self._deliverers.shutdown()
        self._journal.close()

    def quiet(self) -> None:
        """No more faults; returns when the late deliveries are out."""
        self._quiet.set()
        wait(self._late)

    def answer(self, request: Request) -> Answer | None:
        rng = random.Random(f"{self._seed}:{request.number}")
        if self._quiet.is_set():
            return self.forward(request)
        if time.monotonic() < self._burst_until:
            self._note("burst", request)
            return error_answer(503, "SlowDown")
        if rng.random() >= (self._rate * _PROBE_SHARE if _is_probe(request) else self._rate):
            return self.forward(request)
        weights = [weight for weight, _, _ in self._faults]
        ((_, name, inflict),) = rng.choices(self._faults, weights)
        if name in ("late", "double", "double-late", "error-after") and request.method not in ("PUT", "POST", "DELETE"):
            name, inflict = "reset-after", self._reset_after
        if name == "cut" and request.method != "GET":
            name, inflict = "reset-before", self._reset_before
        if name in ("conflict", "refused") and (not _is_conditional(request) or _is_probe(request)):
            name, inflict = "error-before", self._error_before
        self._note(name, request)
        return inflict(request, rng)

    def _note(self, name: str, request: Request) -> None:
        entry = {"at": round(time.time(), 3), "n": request.number, "fault": name, "request": request.method}
        line = json.dumps(entry | {"path": request.path, "probe": _is_probe(request)}) + "\n"
        with self._guard:
            self.hits += not _is_probe(request)
            self._journal.write(line)
            self._journal.flush()

    def _reset_before(self, request: Request, rng: random.Random) -> None:
        return None

    def _reset_after(self, request: Request, rng: random.Random) -> None:
        self.forward(request)

    def _error_before(self, request: Request, rng: random.Random) -> Answer:
        return rng.choice([error_answer(500, "InternalError"), error_answer(503, "ServiceUnavailable")])

    def _error_after(self, request: Request, rng: random.Random) -> Answer:
        self.forward(request)
        return error_answer(500, "InternalError")

    def _throttled(self, request: Request, rng: random.Random) -> Answer:
        return rng.choice([error_answer(503, "SlowDown"), error_answer(429, "TooManyRequests")])

    def _burst(self, request: Request, rng: random.Random) -> Answer:
        self._burst_until = time.monotonic() + rng.uniform(0.3, 2.0)
        return error_answer(503, "SlowDown")

    def _slow(self, request: Request, rng: random.Random) -> Answer:
        self._quiet.wait(rng.uniform(0.1, 3.0))
        return self.forward(request)

    def _deliver_late(self, request: Request, rng: random.Random) -> Answer | None:
        self._forward_later(request, rng.uniform(0.2, 9.0))
        return None if rng.random() < 0.5 else error_answer(503, "ServiceUnavailable")

    def _double(self, request: Request, rng: random.Random) -> Answer:
        if rng.random() < 0.5:
            other = self._deliverers.submit(self.forward, request)
            answers = [self.forward(request), other.result()]
        else:
            answers = [self.forward(request), self.forward(request)]
        return rng.choice(answers)

    def _double_late(self, request: Request, rng: random.Random) -> Answer:
        self._forward_later(request, rng.uniform(0.2, 9.0))
        return self.forward(request)

    def _cut(self, request: Request, rng: random.Random) -> Answer | None:
        answer = self.forward(request)
        return answer._replace(body=answer.body[: int(len(answer.body) * rng.random())]) if answer.body else None

    def _conflict(self, request: Request, rng: random.Random) -> Answer:
        return error_answer(409, "ConditionalRequestConflict")

    def _refused(self, request: Request, rng: random.Random) -> Answer:
        return error_answer(412, "PreconditionFailed")

    def _timed_out(self, request: Request, rng: random.Random) -> Answer:
        if rng.random() < 0.5:
            self.forward(request)
        return rng.choice([error_answer(400, "RequestTimeout"), error_answer(504, "GatewayTimeout")])

    def _stall(self, request: Request, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self.forward(request)
        self._quiet.wait(_LONG_SECONDS if rng.random() < 0.3 else rng.uniform(3.0, 8.0))

    def _forward_later(self, request: Request, seconds: float) -> None:
        def later() -> None:
            time.sleep(seconds)
            with suppress(OSError, HTTPException):
                self.forward(request)

        self._late.append(self._deliverers.submit(later))


def _is_probe(request: Request) -> bool:
    """Whether it is part of the question whether the store is fit, rather than of archiving."""
    return "/.probe-" in request.path


def _is_conditional(request: Request) -> bool:
    return "if-match" in request.headers or "if-none-match" in request.headers
