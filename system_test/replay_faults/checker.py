"""Judges a copy: its records, read by a client that shares no code with the replayer, against those that were made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from kafka.partitioner.default import murmur2

from system_test.replay_faults.schedule import Routing


class Found(Protocol):
    """A record, wherever it comes from."""

    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


Belongs = Callable[[int, Found, int], bool]
"""Whether a record of a source partition may stand in a lane."""


@dataclass(frozen=True)
class Verdict:
    """Records: `made` in the source, never found, found again, first found out of order, in a wrong lane, foreign."""

    made: int
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    misplaced: int = 0
    foreign: int = 0

    def violations(self, *, may_repeat: bool) -> list[str]:
        wrong = {name: getattr(self, name) for name in ("lost", "out_of_order", "misplaced", "foreign")}
        if not may_repeat:
            wrong["repeated"] = self.repeated
        return [f"{count} records {name.replace('_', ' ')}" for name, count in wrong.items() if count]


def judged(source: Mapping[int, Sequence[Found]], lanes: Mapping[int, Sequence[Found]], belongs: Belongs) -> Verdict:
    """`lanes` are the target's partitions; records of one source partition keep their order within a lane.

    A record is told from the others by all that it is, so those of the source are to differ.
    """
    places = {_content(record): (number, row) for number, rows in source.items() for row, record in enumerate(rows)}
    made = sum(map(len, source.values()))
    if len(places) != made:
        raise ValueError("the source has records that are alike")
    seen: set[tuple[int, int]] = set()
    total = misplaced = foreign = out_of_order = 0
    for lane, records in lanes.items():
        firsts: dict[int, list[int]] = {}
        for record in records:
            place = places.get(_content(record))
            if place is None:
                foreign += 1
                continue
            total += 1
            misplaced += not belongs(place[0], record, lane)
            if place not in seen:
                seen.add(place)
                firsts.setdefault(place[0], []).append(place[1])
        out_of_order += sum(later < earlier for rows in firsts.values() for earlier, later in pairwise(rows))
    return Verdict(made, made - len(seen), total - len(seen), out_of_order, misplaced, foreign)


def rule(routing: Routing) -> Belongs:
    """What the documentation says of --partitions."""
    return {Routing.KEEP: _kept, Routing.FOLD: _folded, Routing.BY_KEY: _by_key}[routing]


def _kept(source: int, _: Found, lane: int) -> bool:
    return lane == source


def _folded(source: int, _: Found, lane: int) -> bool:
    return lane == source % Routing.FOLD.lanes


def _by_key(_: int, record: Found, lane: int) -> bool:
    return record.key is None or lane == (murmur2(record.key) & 0x7FFFFFFF) % Routing.BY_KEY.lanes


def _content(record: Found) -> tuple[object, ...]:
    return (record.timestamp, record.key, record.value, tuple(record.headers))
