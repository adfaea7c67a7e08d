"""Whether a restored cluster is right, by what producers and consumers noted. It knows no code of the project.

    python -m system_test.restore_story.judge TIME_MS OLDEST_MS FILE...

prints figures and every fault as a JSON object. Right is, for each partition, each committed record before the first
one of TIME_MS or later, and before the end of what was archived: once, in order, and no other. And for each group, in
each partition where it had a position then: those of them at or after that position. Then is when the archiver asked
it last before TIME_MS, or up to a second earlier; the position must be one that it still had in the OLDEST_MS before
TIME_MS.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from system_test.restore_story.notes import Asked, Found, Kept, Moved, Note, Stamped, Written, noted

ANSWER_MS = 1000
"""So long before its answer came the cluster may have looked, on a machine that is busy."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Numbered(NamedTuple):
    """A record that has to be there, and its offset in the lost cluster."""

    offset: int
    record: Stamped


@dataclass
class Restorable:
    """What has to be in a partition, in order, and what may be there: the answer to its producer never came."""

    cut: int
    """The offset before which everything is restored."""
    records: list[Numbered] = field(default_factory=list)
    perhaps: set[str] = field(default_factory=set)
    lost: int = 0
    """Records before the time that were not archived."""


@dataclass
class Verdict:
    """What is wrong, and what was looked at."""

    faults: list[str] = field(default_factory=list)
    partitions: int = 0
    records: int = 0
    lost: int = 0
    """Acknowledged before the time, and not archived when the cluster was lost."""
    groups: set[str] = field(default_factory=set)
    positions: int = 0
    above: int = 0
    """Positions above what is restored."""
    read_on: int = 0
    """Records that groups read."""


def judged(notes: Iterable[Note], at_ms: int, oldest_ms: int) -> Verdict:
    """Holds what was found against what was noted before."""
    written = defaultdict[Place, list[Written]](list)
    moved = defaultdict[tuple[str, Place], dict[int, Moved]](dict)
    asked, kept = dict[tuple[str, str], int](), dict[Place, int]()
    found = defaultdict[tuple[str | None, Place], list[Found]](list)
    for note in notes:
        match note:
            case Written(topic, partition):
                written[Place(topic, partition)].append(note)
            case Moved(group, topic, partition, began=began):
                moved[group, Place(topic, partition)][began] = note  # the second one has the answer
            case Asked(group, topic, at):
                asked[group, topic] = at
            case Kept(topic, partition, end):
                kept[Place(topic, partition)] = end
            case Found(whose, topic, partition):
                found[whose, Place(topic, partition)].append(note)
    verdict = Verdict()
    if not kept:
        verdict.faults.append("nothing was to be restored")
    restorable = {place: _restorable(written[place], end, at_ms) for place, end in kept.items()}
    for place, wanted in sorted(restorable.items()):
        verdict.partitions += 1
        verdict.records += len(wanted.records)
        verdict.lost += wanted.lost
        verdict.faults += _whole(place, found.pop((None, place), []), wanted)
    for (group, place), commits in sorted(moved.items()):
        if place in kept:
            when = asked.get((group, place.topic))
            possible = {None} if when is None else _positions(commits.values(), when - ANSWER_MS, when)
            possible &= _positions(commits.values(), at_ms - oldest_ms, at_ms)
            there = found.pop((group, place), [])
            verdict.faults += _of_group(group, place, there, restorable[place], possible, verdict)
    verdict.faults += [f"{place} was read by {group or 'all'}, and is not known" for group, place in found]
    return verdict


def _restorable(written: Sequence[Written], end: int, at_ms: int) -> Restorable:
    committed = sorted(
        Numbered(each.offset, Stamped(each.mark, each.timestamp))
        for each in written
        if each.offset is not None and each.fate == "committed"
    )
    cut = next((each.offset for each in committed if each.record.timestamp >= at_ms and each.offset < end), end)
    known = {each.mark for each in written if each.fate != "unknown"}
    perhaps = {each.mark for each in written if each.mark not in known and each.timestamp < at_ms}
    lost = sum(each.record.timestamp < at_ms and each.offset >= end for each in committed)
    return Restorable(cut, [each for each in committed if each.offset < cut], perhaps, lost)


def _positions(commits: Iterable[Moved], start_ms: int, end_ms: int) -> set[int | None]:
    """Where the group may have stood at any moment of these; None is nowhere.

    A commit may have been made at any moment between question and answer, or never without an answer.
    """
    in_order = sorted(commits, key=lambda each: each.began)
    possible = {None} if in_order[0].done is None or in_order[0].done >= start_ms else set[int | None]()
    for commit, following in zip(in_order, [*in_order[1:], None], strict=True):
        is_replaced = following is not None and following.done is not None and following.done < start_ms
        if commit.began <= end_ms and not is_replaced:
            possible.add(commit.offset)
    return possible


def _whole(place: Place, found: Sequence[Found], wanted: Restorable) -> Iterator[str]:
    if len(found) != 1:
        yield f"{place} was read {len(found)} times"
    for each in found:
        yield from (f"{place}: {fault}" for fault in _differences(each.records, wanted, 0))


def _of_group(
    group: str, place: Place, found: Sequence[Found], wanted: Restorable, possible: set[int | None], verdict: Verdict
) -> Iterator[str]:
    """The faults of what a group read on in a partition, by the possible position that explains it best."""
    if not possible:
        yield f"{group} was asked too long ago where it stands in {place}"
    if not found:
        if None not in possible:
            yield f"{group} did not read on in {place}"
        return
    positions = [each for each in possible if each is not None]
    if not positions or len(found) > 1:
        yield f"{group} read on {len(found)} times in {place}, with {len(positions)} possible positions"
        return
    faults, position = min((list(_differences(found[0].records, wanted, each)), each) for each in positions)
    yield from (f"{group} in {place}, from {position}: {fault}" for fault in faults)
    verdict.groups.add(group)
    verdict.positions += 1
    verdict.above += position > wanted.cut
    verdict.read_on += len(found[0].records)


def _differences(found: Sequence[Stamped], wanted: Restorable, position: int) -> Iterator[str]:
    """What differs from the records at or after a position; later ones than those may be of unknown fate."""
    offsets = {each.record: each.offset for each in wanted.records}
    counts = Counter(found)
    missing = [each for each in wanted.records if each.offset >= position and each.record not in counts]
    if missing:
        yield f"{len(missing)} records are missing, the first is {missing[0]}"
    doubled = [each for each, count in counts.items() if count > 1]
    if doubled:
        yield f"{len(doubled)} records came more than once, such as {doubled[0]}"
    before = [each for each in counts if each in offsets and offsets[each] < position]
    if before:
        yield f"{len(before)} records lie before the position, such as {before[0]} at {offsets[before[0]]}"
    known = [offsets[each] for each in found if each in offsets]
    if known != sorted(known):
        yield "records are not in order"
    foreign = [each for each in found[: len(known)] if each not in offsets]
    foreign += [each for each in found[len(known) :] if each not in offsets and each.mark not in wanted.perhaps]
    if foreign:
        yield f"{len(foreign)} records should not be there, such as {foreign[0]}"


def main(at_ms: str, oldest_ms: str, *files: str) -> int:
    """Prints the verdict; 1 where anything is wrong."""
    verdict = judged(noted(map(Path, files)), int(at_ms), int(oldest_ms))
    print(json.dumps({**vars(verdict), "groups": sorted(verdict.groups)}))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
