"""Which chunks a verification reads: all, those with records since a time, a random share of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from index_format.marker import ChunkEntry


@dataclass(frozen=True)
class ChunkChoice:
    """`since` is in ms since the epoch; `share` lies in (0, 1]."""

    since: int | None = None
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a share lies above 0 and is at most 1, not {self.share}")

    @property
    def takes_all(self) -> bool:
        """Whether no chunk is left out."""
        return self.since is None and self.share == 1

    def of(self, entries: Sequence[ChunkEntry]) -> list[ChunkEntry]:
        """The chosen chunks in order: at least one where there is one to choose from."""
        inside = [entry for entry in entries if self.since is None or entry.max_timestamp >= self.since]
        count = min(len(inside), max(1, round(self.share * len(inside))))
        rng = random.Random(f"{self.seed}:{inside[0].name}" if inside else self.seed)
        return [inside[number] for number in sorted(rng.sample(range(len(inside)), count))]


EVERY_CHUNK = ChunkChoice()
