"""What a round asks for and what befalls it: a function of the round's seed."""

import random
from dataclasses import dataclass
from enum import Enum

SOURCES = 4
SHORT_SECONDS = (0.5, 4.0)
LONG_SECONDS = (4.0, 15.0)
MOST_DISRUPTIONS = 4
START_SECONDS = 2.5


class Mode(Enum):
    """How the replay writes."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"


class Routing(Enum):
    """Where records go: the option, and how many partitions the target has."""

    KEEP = ("keep", SOURCES)
    FOLD = ("2", 2)
    BY_KEY = ("by-key", 3)

    @property
    def option(self) -> str:
        return self.value[0]

    @property
    def lanes(self) -> int:
        return self.value[1]


class Kind(Enum):
    """What befalls a replay, its broker, its target or its source."""

    KILL = "kill"
    TERM = "term"
    FREEZE = "broker-freeze"
    BROKER_KILL = "broker-kill"
    FROZEN_KILL = "frozen-kill"
    FROZEN_TERM = "frozen-term"
    SECOND_RUN = "second-run"
    SECOND_HERE = "second-here"
    ZOMBIE = "zombie"
    SOURCE_AGAIN = "source-again"
    TARGET_AGAIN = "target-again"
    TARGET_GONE = "target-gone"
    TARGET_AGAIN_AT_REST = "target-again-at-rest"
    TARGET_GONE_AT_REST = "target-gone-at-rest"

    @property
    def ends_the_job(self) -> bool:
        """Whether no run can complete the job afterwards."""
        return self.value.startswith("target-")

    @property
    def may_repeat(self) -> bool:
        """Whether records may stand in the target twice afterwards, without transactions."""
        return self in REPEATING


REPEATING = {Kind.KILL, Kind.BROKER_KILL, Kind.FROZEN_KILL, Kind.FROZEN_TERM, Kind.SECOND_RUN, Kind.SOURCE_AGAIN}
IN_ONE_MODE = {Kind.ZOMBIE: Mode.TRANSACTIONAL, Kind.SECOND_HERE: Mode.IDEMPOTENT}
WEIGHTS = {Kind.KILL: 6, Kind.TERM: 4, Kind.FREEZE: 4, Kind.BROKER_KILL: 4}
NOT_AT_THE_START = {Kind.SOURCE_AGAIN, Kind.SECOND_RUN, Kind.SECOND_HERE, Kind.ZOMBIE}
"""Before the first record the job may not have begun, and its name is still free."""


@dataclass(frozen=True)
class Disruption:
    """One disruption: `share` of all records after the run's start, or with None `delay` seconds after it."""

    kind: Kind
    share: float | None
    delay: float
    seconds: float
    """How long something stands still or is away."""

    def __str__(self) -> str:
        when = f"{self.delay:.1f} s after the start" if self.share is None else f"after {self.share:.0%}"
        return f"{self.kind.value} ({when}, {self.seconds:.1f} s)"


@dataclass(frozen=True)
class Plan:
    """A round."""

    seed: str
    mode: Mode
    routing: Routing
    rate: int
    disruptions: tuple[Disruption, ...]

    def __str__(self) -> str:
        told = ", ".join(map(str, self.disruptions))
        return f"seed {self.seed}: {self.mode.value}, --partitions {self.routing.option}, {self.rate}/s: {told}"


def planned(seed: str) -> Plan:
    """The round of a seed."""
    randomly = random.Random(seed)
    mode = randomly.choices(list(Mode), (2, 1))[0]
    count = randomly.randint(1, MOST_DISRUPTIONS)
    disruptions: list[Disruption] = []
    while len(disruptions) < count and not (disruptions and disruptions[-1].kind.ends_the_job):
        disruptions.append(_disruption(randomly, mode, count))
    routing, rate = randomly.choice(list(Routing)), randomly.choice((700, 1000, 2000))
    return Plan(seed, mode, routing, rate, tuple(disruptions))


def _disruption(randomly: random.Random, mode: Mode, count: int) -> Disruption:
    kinds = [kind for kind in Kind if IN_ONE_MODE.get(kind, mode) is mode]
    kind = randomly.choices(kinds, [WEIGHTS.get(each, 1) for each in kinds])[0]
    early = randomly.random() < 0.25 and not kind.ends_the_job and kind not in NOT_AT_THE_START
    share = None if early else randomly.uniform(0.01, 0.9) / (count + 1)
    delay = randomly.uniform(0, START_SECONDS if early else 0.5)
    return Disruption(kind, share, delay, randomly.uniform(*randomly.choices((SHORT_SECONDS, LONG_SECONDS), (3, 1))[0]))
