"""Tables of consumer groups and ends: what goes into a topic's next one, when it is due, and its place."""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from blockgz.kafka.cluster_groups import GroupAnswer
from blockgz.store.writer import Store
from index_format.errors import FormatError
from index_format.groups import ConsumerGroups, GoneGroup, Group, LogEnds, decode, encode, slot_of
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder, dated_key, groups_home, parse_dated_key

LONGEST_MS = 3_600_000
"""A table is stored this often even if nothing moved: readers look for one near the time that they want."""
GONE_MS = 2 * 24 * LONGEST_MS
"""Tables list a group this long after it left: `gc` keeps one a day of old tables."""
DIGITS = (7, 9, 20)
"""Last digits of a slot that are left open in a listing: 3 hours, 12 days, everything."""

Locate = Callable[[str], tuple[str | None, TopicFolder]]
"""A topic's id and folder, as TopicDirectory gives them."""


@dataclass
class KnownTopic:
    """What the tables of a topic hold so far, and what its groups answered since."""

    topic_id: str | None
    home: str
    """The folder of its tables."""
    slot: int | None = None
    """Of the newest table that this process stored or found."""
    is_readable: bool = False
    """Whether the newest table's content is known; another process may have stored it meanwhile."""
    groups_slot: int | UnsetType = UNSET
    """Of the newest table with groups."""
    stored: Sequence[Group] | None = None
    """The groups in that table; None if it is unknown or there is none."""
    ends: LogEnds | UnsetType = UNSET
    """The ends in the newest table."""
    groups: dict[str, Group] = field(default_factory=dict)
    """The groups of the next table, by id."""
    gone: dict[str, int] = field(default_factory=dict)
    """Group id -> when it left, in ms."""
    doubted: set[str] = field(default_factory=set)
    """Groups whose last answer named no position in the topic, for the first time."""

    def hear(self, topic: str, answers: Mapping[str, GroupAnswer]) -> None:
        """Take the groups' answers; a group leaves at the second one in a row that names no position."""
        for group_id in self.groups.keys() | answers.keys():
            answer = answers.get(group_id)
            was_doubted = group_id in self.doubted
            self.doubted.discard(group_id)
            if answer is None:
                continue
            if topic in answer.positions:
                self.groups[group_id] = Group(group_id, answer.asked_at, answer.positions[topic])
                self.gone.pop(group_id, None)
            elif was_doubted:
                del self.groups[group_id]
                self.gone[group_id] = answer.asked_at
            elif group_id in self.groups:
                # A coordinator that has just started may answer without having read its offsets.
                self.doubted.add(group_id)

    def is_due(self, slot: int, interval_ms: int, ends_interval_ms: int | None, table: ConsumerGroups) -> bool:
        """Whether that table is to be stored at that slot."""
        if slot == self.slot or not (table.has_groups or table.ends):
            return False  # the next one has what moved since
        if self.slot is None or not self.is_readable or slot + interval_ms > self.slot + LONGEST_MS:
            return True
        if table.has_groups and (self.stored is None or _positions(self.stored) != _positions(table.groups)):
            return True
        if not table.ends or ends_interval_ms is None or slot < self.slot + ends_interval_ms:
            return False
        return not self.ends or self.ends.partitions != table.ends.partitions


class GroupTables:
    """The tables of an archive's topics; one call at a time."""

    def __init__(
        self, store: Store, archive: ArchiveInfo, interval_ms: int, ends_interval_ms: int | None, locate: Locate
    ) -> None:
        """`ends_interval_ms`: a table is stored this often if only ends moved; None: every LONGEST_MS."""
        self._store = store
        self._archive = archive
        self._interval_ms = interval_ms
        self._ends_interval_ms = ends_interval_ms
        self._locate = locate
        self._known: dict[str, KnownTopic] = {}

    def open(self, topic: str, told_id: str | None, now_ms: int, is_kept: Callable[[str], bool]) -> str | None:
        """Start from the topic's newest table, unless that was done, and return the id that tables have.

        `told_id` is the topic's id by now, if the cluster reports it: another one means another folder. Groups that
        are not kept are left out. Raises the errors of the store and of the cluster.
        """
        known = self._known.get(topic)
        if known is None or (told_id is not None and told_id != known.topic_id):
            topic_id, folder = self._locate(topic)
            known = KnownTopic(topic_id, groups_home(self._archive.layout, folder))
            with suppress(FormatError):  # a damaged table is not relied on
                self._load(known, now_ms, is_kept)
            self._known[topic] = known
        return known.topic_id

    def forget_others(self, topics: Collection[str]) -> None:
        """Other processes store the tables of all other topics by now."""
        self._known = {topic: known for topic, known in self._known.items() if topic in topics}

    def group_ids(self, topics: Collection[str]) -> set[str]:
        """Return the groups in the tables of these topics."""
        return {group_id for topic in topics for group_id in self._known[topic].groups}

    def hear(self, topics: Collection[str], answers: Mapping[str, GroupAnswer]) -> set[str]:
        """Take the answers of groups that were asked about these topics; return those to ask again."""
        for topic in topics:
            self._known[topic].hear(topic, answers)
        return {group_id for topic in topics for group_id in self._known[topic].doubted}

    def keep(self, topic: str, now_ms: int, ends: LogEnds | None, *, has_groups: bool) -> bool:
        """Store the topic's table as of now if it is due; return whether it was stored.

        `ends` of None are unknown. Without `has_groups` the groups were not asked for. Raises the errors of the store.
        """
        known = self._known[topic]
        gone = [GoneGroup(*each) for each in sorted(known.gone.items()) if each[1] > now_ms - GONE_MS]
        table = ConsumerGroups(
            archive_id=self._archive.archive_id,
            topic=topic,
            topic_id=known.topic_id,
            interval=self._interval_ms,
            groups=tuple(known.groups[group_id] for group_id in sorted(known.groups)) if has_groups else (),
            gone=tuple(gone) if gone and has_groups else UNSET,
            groups_asked=UNSET if has_groups else False,
            groups_slot=UNSET if has_groups else known.groups_slot,
            ends=ends or UNSET,
        )
        # The clock may have been set back since an earlier answer, or an earlier table.
        slot = max(slot_of(max(now_ms, table.asked_until or now_ms), self._interval_ms), known.slot or 0)
        if not known.is_due(slot, self._interval_ms, self._ends_interval_ms, table):
            return False
        is_ours = self._store.put_if_absent(dated_key(known.home, slot), encode(table), str(uuid.uuid4()))
        known.slot, known.is_readable = slot, is_ours
        if is_ours:
            known.ends = table.ends
            if has_groups:
                known.stored, known.groups_slot = table.groups, slot
        return is_ours

    def _load(self, known: KnownTopic, now_ms: int, is_kept: Callable[[str], bool]) -> None:
        """Read the newest table, and the newest one with groups if that is an older one."""
        slot = known.slot = self._newest(known.home, now_ms)
        while slot is not None:
            key = dated_key(known.home, slot)
            found = self._store.get(key)
            if found is None:
                return
            table = decode(found.body, key, slot)
            if slot == known.slot:
                known.is_readable, known.ends = True, table.ends
            if table.has_groups:
                known.groups_slot, known.stored = slot, table.groups
                known.groups = {group.group_id: group for group in table.groups if is_kept(group.group_id)}
                known.gone = {gone.group_id: gone.at for gone in table.gone or ()}
                return
            slot = None if table.groups_slot is UNSET else self._newest(known.home, table.groups_slot)

    def _newest(self, home: str, until: int) -> int | None:
        """Return the slot of the newest table up to a time, looked for near it first."""
        for digits in DIGITS:
            ends = (max(until - 10**digits // 3, 0), until)
            near = {dated_key(home, each).removesuffix(".json")[:-digits] for each in ends}
            slots = (parse_dated_key(home, listed.key) for prefix in near for listed in self._store.list(prefix))
            newest = max((slot for slot in slots if slot is not None and slot <= until), default=None)
            if newest is not None:
                return newest
        return None


def _positions(groups: Sequence[Group]) -> list[object]:
    """What counts as a move: a position or its metadata, not the time of an answer."""
    return [(group.group_id, group.positions) for group in groups]
