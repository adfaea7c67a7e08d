"""Waiting on a condition with a deadline: the only way in which the system tests wait."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


class DeadlineExceededError(AssertionError):
    """The awaited condition did not come true in time; the message says what was awaited."""


def wait_until(
    predicate: Callable[[], T | None], seconds: float, what: str, *, longest_pause: float | None = None
) -> T:
    """Ask until the answer is truthy and return it.

    The predicate is asked at least once, and again after pauses that grow up to `longest_pause` seconds. Without that,
    pauses are also as long as its last answer took: one that starts a program is not to keep a core busy. Raises
    DeadlineExceededError, which names `what`, when `seconds` have passed; what the predicate raises goes through.
    """
    deadline = time.monotonic() + seconds
    longest = _LONGEST_PAUSE if longest_pause is None else longest_pause
    pause = min(_FIRST_PAUSE, longest)
    while True:
        asked = time.monotonic()
        answer = predicate()
        if answer:
            return answer
        answered = time.monotonic()
        left = deadline - answered
        if left <= 0:
            raise DeadlineExceededError(f"waited {seconds:g} s in vain for {what}")
        if longest_pause is None:
            pause = max(pause, answered - asked)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)
