"""Sets the positions of consumer groups in a copy, keeps what was there, and sets that back.

What was there is kept in the job's folder before anything changes: `{job}/groups/{n}.json`, see docs/jobs.md.
"""

from collections.abc import Iterable, Mapping
from uuid import uuid4

import msgspec

from blockgz.errors import BlockgzError, FormatError, UsageError
from blockgz.kafka.groups import GroupMembers, GroupOffset, KafkaGroups
from blockgz.store.writer import Store
from index_format.objects import Offset, Sealed, decode, encode, stored
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.groups.planning import GroupPlan
from replayer.replay.jobs.folder import unreadable

Positions = dict[int, GroupOffset]


class NotReadBack(BlockgzError):
    """A group is not at the offset that was set."""

    exit_code = 1


# A partition, and a group's positions in it before and after a change; None if there was none.
_Kept = tuple[Offset, GroupOffset | None, GroupOffset]


@stored
class _Change(Sealed, frozen=True, kw_only=True):
    """One change of positions; with `rollback`, those before it are set back."""

    format: str = "blockgz-group-positions"
    version: int = 1
    topic: str
    topic_id: str | None
    at: int
    rollback: bool = False
    groups: dict[str, tuple[_Kept, ...]]


class Rollback(msgspec.Struct, frozen=True):
    """A plan to set positions back: the earlier positions by group, and `deleted` groups, which did not exist."""

    topic: str
    restored: dict[str, Positions]
    deleted: tuple[str, ...]
    left: dict[str, tuple[int, ...]]
    """Partitions without an earlier position, by group: Kafka cannot remove a single position."""


class GroupChanges:
    """The changes that are kept of one job; calls block."""

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job

    def apply(self, plan: GroupPlan, groups: KafkaGroups, now_ms: int) -> None:
        """Set every position of the plan and read it back.

        Raises ReplayRefused, before anything changes, where consumers are running in a group; NotReadBack.
        """
        wanted = {group.name: group.positions for group in plan.groups}
        refuse_active(groups.members(list(wanted)))
        kept = {}
        for name, positions in wanted.items():
            before = groups.positions(name, plan.topic, positions)
            kept[name] = tuple((number, before.get(number), position) for number, position in sorted(positions.items()))
        self._add(_Change(topic=plan.topic, topic_id=plan.topic_id, at=now_ms, groups=kept))
        for name, positions in wanted.items():
            groups.set_positions(name, plan.topic, positions)
            _read_back(groups, name, plan.topic, positions)

    def rollback(self, groups: KafkaGroups, *, topic_id: str | None) -> Rollback:
        """Return what `roll_back` would do. Raises UsageError if nothing can be set back, or ReplayRefused."""
        changes = self._since_rollback()
        if not changes:
            raise UsageError(
                f"job {self._job} has no group positions to set back",
                why="none were applied, or they are set back already",
                remedy="see replayer groups show",
            )
        topic = changes[0].topic
        if changes[-1].topic_id != topic_id:
            raise ReplayRefused(
                f"topic {topic} is not the one whose groups were set",
                why="it was deleted and created again",
                remedy="set the positions by hand: the offsets mean other records now",
            )
        names = sorted({name for change in changes for name in change.groups})
        refuse_active(groups.members(names))
        restored: dict[str, Positions] = {}
        deleted, left = [], {}
        for name in names:
            first, seen = _history(name, changes)
            now = groups.positions(name, topic, first)
            for number, offsets in seen.items():
                offset = now[number].offset if number in now else None
                if offset not in offsets:
                    raise ReplayRefused(
                        f"group {name} has moved in {topic}:{number} since its position was set",
                        why=f"it stands at {offset} now",
                        remedy="set its positions by hand with kafka-consumer-groups, or leave it",
                    )
            new = sorted(number for number, before in first.items() if before is None)
            if new and not groups.has_others(name, topic, new):
                deleted.append(name)
                continue
            restored[name] = {number: before for number, before in first.items() if before is not None}
            if new:
                left[name] = tuple(new)
        return Rollback(topic, restored, tuple(deleted), left)

    def roll_back(self, rollback: Rollback, groups: KafkaGroups, *, topic_id: str | None, now_ms: int) -> None:
        """Set the positions back and read them back. Raises NotReadBack."""
        for name in rollback.deleted:
            groups.delete(name)
        for name, positions in rollback.restored.items():
            if positions:
                groups.set_positions(name, rollback.topic, positions)
                _read_back(groups, name, rollback.topic, positions)
        self._add(_Change(topic=rollback.topic, topic_id=topic_id, at=now_ms, rollback=True, groups={}))

    def _add(self, change: _Change) -> None:
        number = len(self._changes()) + 1
        key = f"{self._job}/groups/{number:06d}.json"
        if not self._store.put_if_absent(key, encode(change), uuid4().hex):
            raise JobTakenOver(
                f"somebody else sets groups of job {self._job}",
                why=f"{key} already exists",
                remedy="let them finish, then look at replayer groups plan",
            )

    def _changes(self) -> list[_Change]:
        keys = sorted(found.key for found in self._store.list(f"{self._job}/groups/"))
        return [self._read(key) for key in keys]

    def _read(self, key: str) -> _Change:
        found = self._store.get(key)
        if found is None:
            raise unreadable(self._job, f"{key} is missing")
        try:
            return decode(found.body, _Change, key)
        except FormatError as error:
            raise unreadable(self._job, f"{error.what}: {error.why}") from error

    def _since_rollback(self) -> list[_Change]:
        changes = self._changes()
        last = max((number for number, change in enumerate(changes, 1) if change.rollback), default=0)
        return changes[last:]


def refuse_active(members: Mapping[str, GroupMembers]) -> None:
    """Raise ReplayRefused if consumers are running in a group."""
    active = [(name, found) for name, found in members.items() if found.active]
    if active:
        name, found = active[0]
        clients = f", with {', '.join(found.clients[:3])}" if found.clients else ""
        more = f" and {len(active) - 1} other groups" if len(active) > 1 else ""
        raise ReplayRefused(
            f"consumers are at work in group {name}{more}",
            why=f"it is {found.state}{clients}: they would overwrite its positions",
            remedy="stop them, wait until the group is empty, and run this again",
        )


def _history(name: str, changes: Iterable[_Change]) -> tuple[dict[int, GroupOffset | None], dict[int, set[int | None]]]:
    """Return by partition the position before the first change, and every offset that may be there now."""
    first: dict[int, GroupOffset | None] = {}
    seen: dict[int, set[int | None]] = {}
    for change in changes:
        for number, before, after in change.groups.get(name, ()):
            first.setdefault(number, before)
            seen.setdefault(number, set()).update((before and before.offset, after.offset))
    return first, seen


def _read_back(groups: KafkaGroups, name: str, topic: str, wanted: Mapping[int, GroupOffset]) -> None:
    found = groups.positions(name, topic, wanted)
    wrong = [number for number, position in wanted.items() if number not in found or found[number] != position]
    if wrong:
        number = wrong[0]
        raise NotReadBack(
            f"group {name} does not stand where it was set in {topic}:{number}",
            why=f"it stands at {found.get(number)}, not at {wanted[number]}",
            remedy="look who else sets it, then run this again",
        )
