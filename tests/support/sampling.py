"""How much a quick run tries of what could go on for long.

`make unit` leaves out what is marked slow (`pytest.mark.slow`): whatever takes a quarter of a second of a processor, or
waits for seconds. `make units`, `make test` and continuous integration run that too, and leave out what is marked here.
"""

import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

LONG = os.environ.get("BLOCKGZ_LONG") == "1"
"""Whether this is the long run (`make long`): tests then do as much as they can in minutes."""

in_long_run = pytest.mark.skipif(not LONG, reason="not in each run: make long runs it")
"""Of a test, or of one case of it; others of its kind are in each run."""


def mostly_long(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """Values of one parameter, of which each run tries so many, the first ones, and the long run all."""
    return [case if place < quick else pytest.param(case, marks=in_long_run) for place, case in enumerate(cases)]


def some_of(cases: Sequence[float], share: int = 4) -> Sequence[float]:
    """One of `share` cases, from a place that chance chooses and that is printed; all of them in the long run.

    For crashes at every step and the like: where one step is at fault, the next runs find it, and the long run at once.
    """
    if LONG:
        return cases
    first = random.randrange(min(share, len(cases)))
    print(f"cases {first}, {first + share}, ... of {len(cases)}")
    return cases[first::share]


def seeded_random() -> random.Random:
    """Return random numbers of a new seed, which a test that fails shows."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)
