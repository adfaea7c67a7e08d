"""Tables of consumer groups: what goes into a topic's next one, when it is due, and its place in the archive."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from blockgz_runtime.kafka.cluster_groups import GroupAnswer
from blockgz_runtime.store.writer import Store
from index_format.errors import FormatError
from index_format.groups import ConsumerGroups, Group, decode, encode, slot_of
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder, dated_key, groups_home, parse_dated_key

DIGITS_OF_HOURS = 7
"""So many last digits of a time in ms count somewhat less than three hours."""
LONGEST_MS = 3_600_000
"""A table is stored so often even where nothing moved: readers look for one near the time that they want."""

Locate = Callable[[str], tuple[str | None, TopicFolder]]
"""A topic's id and folder, as TopicDirectory gives them."""


class Stored(NamedTuple):
    """The newest table of a topic that this process stored or found."""

    slot: int
    groups: Sequence[Group] | None
    """None: another process's, whatever it holds."""

    def is_due(self, slot: int, interval_ms: int, groups: Sequence[Group]) -> bool:
        """Whether a table with these groups is to be stored at that slot."""
        if slot == self.slot:
            return False  # the next one has what moved since
        is_old = slot + interval_ms > self.slot + LONGEST_MS
        return is_old or self.groups is None or _moved(self.groups, groups)


class GroupTables:
    """The tables of an archive's topics; one call at a time."""

    def __init__(self, store: Store, archive: ArchiveInfo, interval_ms: int, locate: Locate) -> None:
        self._store = store
        self._archive = archive
        self._interval_ms = interval_ms
        self._locate = locate
        self._newest: dict[str, Stored] = {}

    def keep(self, topic: str, answers: Mapping[str, GroupAnswer], asked_at: int) -> bool:
        """Store the topic's table where it is due; `asked_at` is when the last group answered, in ms.

        False where nothing was stored. Raises the errors of the store and of the cluster, which is asked for the
        topic's id.
        """
        groups = groups_of(topic, answers)
        # The clock may have been set back since an earlier answer, or an earlier table.
        slot = slot_of(max([asked_at, *(group.asked_at for group in groups)]), self._interval_ms)
        place, newest = None, self._newest.get(topic)
        if newest is None:
            place = self._locate(topic)
            newest = self._earlier(groups_home(self._archive.layout, place[1]), slot)
        if newest is not None:
            self._newest[topic] = newest
            slot = max(slot, newest.slot)
            if not newest.is_due(slot, self._interval_ms, groups):
                return False
        topic_id, folder = place or self._locate(topic)
        table = ConsumerGroups(
            archive_id=self._archive.archive_id,
            topic=topic,
            topic_id=topic_id,
            interval=self._interval_ms,
            groups=groups,
        )
        key = dated_key(groups_home(self._archive.layout, folder), slot)
        is_ours = self._store.put_if_absent(key, encode(table), str(uuid.uuid4()))
        self._newest[topic] = Stored(slot, groups if is_ours else None)
        return is_ours

    def _earlier(self, home: str, slot: int) -> Stored | None:
        """The newest table of an earlier process, if it is of the last hours; None for one that cannot be read."""
        ends = (max(slot - LONGEST_MS, 0), slot)
        near = {dated_key(home, each).removesuffix(".json")[:-DIGITS_OF_HOURS] for each in ends}
        slots = (parse_dated_key(home, found.key) for prefix in near for found in self._store.list(prefix))
        newest = max((each for each in slots if each is not None and each <= slot), default=None)
        found = self._store.get(dated_key(home, newest)) if newest is not None else None
        if newest is None or found is None:
            return None
        with suppress(FormatError):
            return Stored(newest, decode(found.body, dated_key(home, newest), newest).groups)
        return None


def groups_of(topic: str, answers: Mapping[str, GroupAnswer]) -> tuple[Group, ...]:
    """The groups that have a position in the topic, by id."""
    return tuple(
        Group(group_id, answer.asked_at, answer.positions[topic])
        for group_id, answer in sorted(answers.items())
        if topic in answer.positions
    )


def _moved(before: Iterable[Group], after: Iterable[Group]) -> bool:
    """Whether a position or its metadata is another one; when the groups were asked does not count."""
    return [(each.group_id, each.positions) for each in before] != [(each.group_id, each.positions) for each in after]
