"""Which fault comes when: a pure function of the seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """What happens; the value is what reports and schedules say."""

    KILL = "kill"
    TERM = "term"
    FREEZE = "freeze"
    HICCUP = "hiccup"
    TWIN = "twin"
    JOIN = "join"
    KILL_ALL = "kill-all"
    BROKER_KILL = "broker-kill"
    BROKER_FREEZE = "broker-freeze"
    STORE_KILL = "store-kill"
    RECREATE = "recreate"
    GROW = "grow"
    TRUNCATE = "truncate"
    RETENTION = "retention"
    COMPACT = "compact"
    LOSE = "lose"


_DEALT = {
    FaultKind.KILL: 9,
    FaultKind.TERM: 7,
    FaultKind.FREEZE: 6,
    FaultKind.HICCUP: 2,
    FaultKind.TWIN: 2,
    FaultKind.JOIN: 6,
    FaultKind.KILL_ALL: 1,
    FaultKind.BROKER_KILL: 1,
    FaultKind.BROKER_FREEZE: 1,
    FaultKind.STORE_KILL: 2,
    FaultKind.RECREATE: 1,
    FaultKind.GROW: 1,
    FaultKind.TRUNCATE: 1,
    FaultKind.RETENTION: 1,
    FaultKind.COMPACT: 1,
    FaultKind.LOSE: 2,
}
"""One deck: it is shuffled, dealt to its end, and shuffled again, so that a short run meets every kind too."""

_SECONDS = {
    FaultKind.KILL: (0.0, 3.0),
    FaultKind.TERM: (0.0, 3.0),
    FaultKind.FREEZE: (7.0, 10.0),
    FaultKind.HICCUP: (0.3, 4.0),
    FaultKind.TWIN: (7.0, 10.0),
    FaultKind.JOIN: (1.0, 7.0),
    FaultKind.KILL_ALL: (0.0, 8.0),
    FaultKind.BROKER_KILL: (0.0, 2.0),
    FaultKind.BROKER_FREEZE: (2.0, 9.0),
    FaultKind.STORE_KILL: (0.0, 4.0),
    FaultKind.RECREATE: (0.0, 4.0),
    FaultKind.GROW: (0.0, 0.0),
    FaultKind.TRUNCATE: (0.0, 3.0),
    FaultKind.RETENTION: (0.0, 3.0),
    FaultKind.COMPACT: (0.0, 2.0),
    FaultKind.LOSE: (0.0, 0.0),
}
"""Between which bounds the effect lasts: until the restart, until SIGCONT, until the guest leaves."""


@dataclass(frozen=True)
class Fault:
    """One fault: `at` and `seconds` in seconds, from the start of the round and for as long as it lasts."""

    number: int
    at: float
    kind: FaultKind
    seconds: float
    dice: float
    """In [0, 1): picks the process, topic or manner."""

    def __str__(self) -> str:
        return f"#{self.number} {self.at:.1f}s {self.kind.value} {self.seconds:.1f}s dice={self.dice:.3f}"


def schedule(seed: str, mean_gap: float) -> Iterator[Fault]:
    """The faults of a round without end; `mean_gap` seconds lie between two on average."""
    rng = random.Random(f"schedule:{seed}")
    at, number = 0.0, 0
    while True:
        deck = [kind for kind, count in _DEALT.items() for _ in range(count)]
        rng.shuffle(deck)
        for kind in deck:
            at += rng.uniform(0.3, 1.7) * mean_gap
            number += 1
            yield Fault(number, at, kind, rng.uniform(*_SECONDS[kind]), rng.random())
