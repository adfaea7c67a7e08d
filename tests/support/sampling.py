"""How much of a long enumeration a quick run tries."""

import os
import random
from collections.abc import Sequence


def some_of(cases: Sequence[float], share: int = 4) -> Sequence[float]:
    """One of `share` cases, from a place that chance chooses and that is printed; all of them with BLOCKGZ_LONG=1.

    For crashes at every step and the like: where one step is at fault, the next runs find it, and the long run at once.
    """
    if os.environ.get("BLOCKGZ_LONG") == "1":
        return cases
    first = random.randrange(min(share, len(cases)))
    print(f"cases {first}, {first + share}, ... of {len(cases)}")
    return cases[first::share]
