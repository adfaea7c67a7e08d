"""Keep tables of consumer groups and of the ends of logs, in a thread of its own that never delays archiving."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from archiver.commit.recovery import wall_ms
from archiver.logs import LogEvent, log
from blockgz.errors import BlockgzError, BrokerUnreachable, FormatError
from blockgz.kafka.groups import GroupAnswer, GroupAnswers, KafkaGroups
from blockgz.store.writer import Store
from index_format.groups import ConsumerGroups, GoneGroup, Group, LogEnd, LogEnds, decode, encode, slot_of
from index_format.keys import TopicFolder, dated_key, groups_home, parse_dated_key
from index_format.objects import ArchiveInfo

# A table is stored this often even if nothing moved: readers look for one near the time that they want.
LONGEST_MS = 3_600_000
# Tables list a group this long after it left: `gc` keeps one a day of old tables.
GONE_MS = 2 * 24 * LONGEST_MS
# Last digits of a slot that are left open in a listing: 3 hours, 12 days, everything.
DIGITS = (7, 9, 20)

# A topic's id and folder, as TopicDirectory gives them.
Locate = Callable[[str], tuple[str | None, TopicFolder]]


@dataclass
class TopicTables:
    """The tables of a topic so far, and the answers of its groups since."""

    topic_id: str | None
    home: str
    """The folder of its tables."""
    partitions: int = 0
    """How many the cluster has reported at most: a broker that has just started may know fewer."""
    slot: int | None = None
    """The slot of the newest table that this process stored or found."""
    is_readable: bool = False
    """True if the newest table was read or written here; another process may have stored it in the meantime."""
    groups_slot: int | UnsetType = UNSET
    """The slot of the newest table with groups."""
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
        """Return whether to store that table at that slot."""
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
        self._known: dict[str, TopicTables] = {}

    def open(self, topic: str, told_id: str | None, now_ms: int, is_kept: Callable[[str], bool]) -> TopicTables:
        """Start from the topic's newest table, unless that was done, and return what its tables hold.

        `told_id` is the topic's id by now, if the cluster reports it: another one means another folder. Groups that
        are not kept are left out. Raises the errors of the store and of the cluster.
        """
        known = self._known.get(topic)
        if known is None or (told_id is not None and told_id != known.topic_id):
            topic_id, folder = self._locate(topic)
            known = TopicTables(topic_id, groups_home(self._archive.layout, folder))
            with suppress(FormatError):  # a damaged table is not relied on
                self._load(known, now_ms, is_kept)
            self._known[topic] = known
        return known

    def forget_others(self, topics: Collection[str]) -> None:
        """Forget the other topics, whose tables other processes store by now."""
        self._known = {topic: known for topic, known in self._known.items() if topic in topics}

    def group_ids(self, topics: Collection[str]) -> set[str]:
        return {group_id for topic in topics for group_id in self._known[topic].groups}

    def hear(self, topics: Collection[str], answers: Mapping[str, GroupAnswer]) -> set[str]:
        """Take the answers of groups about these topics; return the groups whose answer is doubtful."""
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
        slot = max(slot_of(max(now_ms, table.last_answer or now_ms), self._interval_ms), known.slot or 0)
        if not known.is_due(slot, self._interval_ms, self._ends_interval_ms, table):
            return False
        is_ours = self._store.put_if_absent(dated_key(known.home, slot), encode(table), str(uuid.uuid4()))
        known.slot, known.is_readable = slot, is_ours
        if is_ours:
            known.ends = table.ends
            if has_groups:
                known.stored, known.groups_slot = table.groups, slot
        return is_ours

    def _load(self, known: TopicTables, now_ms: int, is_kept: Callable[[str], bool]) -> None:
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
    """Return what counts as a move of groups: positions and their metadata, not the time of an answer."""
    return [(group.group_id, group.positions) for group in groups]


# Seconds that a round asks groups, at least, before it leaves the rest to the next round.
ROUND_SECONDS = 60.0
ONCE_SECONDS = 75.0
LOOK_SECONDS = 0.05
# How long a single round waits before it asks groups again that seem to be gone.
AGAIN_SECONDS = 1.0
# Times of files may be this much older than the clock.
COARSE_MS = 20
# The prefix of the ids of our own groups, of archives and of replays.
LEFT_OUT = "blockgz-"


@dataclass(frozen=True)
class KeepingContext:
    cluster: KafkaGroups
    tables: GroupTables
    own_group: str
    is_selected: Callable[[str], bool] | None
    """True for groups to keep; None: only the ends of logs are kept."""
    topics: Callable[[], Collection[str]]
    """Return the topics whose tables this process keeps: it owns their first partition."""
    partitions: Callable[[], Mapping[str, int]]
    """The cluster's topics, with their numbers of partitions."""
    topic_ids: Callable[[Collection[str]], Mapping[str, str]]
    """The ids of topics, asked for after the call; topics without an answer are left out."""
    high_watermarks: Callable[[Collection[tuple[str, int]]], Mapping[tuple[str, int], int]]
    """Return the ends of partitions, without those that nobody answers for."""
    store_clock: Callable[[], float]
    """The store's time, in seconds since 1970."""
    interval_seconds: float


class GroupKeeper:
    """A thread that asks and stores, round by round; the next round retries failures, which are logged once."""

    def __init__(
        self, context: KeepingContext, clock: Callable[[], float] = time.monotonic, wall_ms: Callable[[], int] = wall_ms
    ) -> None:
        self._context = context
        self._clock = clock
        self._wall_ms = wall_ms
        # How far the store's clock is ahead of this machine's.
        self._ahead_ms = 0
        self._rounds = 0
        # The last round of each group, by id.
        self._asked_in: dict[str, int] = {}
        self._is_single = False
        self._is_failing = False
        self._kept_at = clock()
        self._ending = threading.Event()
        # Not at the points of the grid, where a moment more or less would make it another slot.
        self._phase = random.uniform(0.25, 0.75)
        # Tables that were stored so far.
        self.stored = 0
        # Rounds that failed, or of which a part failed, so far.
        self.failures = 0

    @property
    def age_seconds(self) -> float:
        """Return the seconds since the tables were up to date, or since the start."""
        return self._clock() - self._kept_at

    def start(self) -> None:
        """Keep tables until `close`."""
        threading.Thread(target=self._run, name="groups", daemon=True).start()

    def keep_once(self, is_ending: Callable[[], bool]) -> None:
        """Keep a table of each topic as of now; returns early where `is_ending`, and late if nobody answers."""
        self._is_single = True
        round_ = threading.Thread(target=self.keep, name="groups", daemon=True)
        round_.start()
        deadline = self._clock() + ONCE_SECONDS
        while round_.is_alive() and not is_ending() and self._clock() < deadline:
            round_.join(LOOK_SECONDS)
        self.close()

    def close(self) -> None:
        """End without waiting for a round in progress."""
        self._ending.set()

    def keep(self) -> None:
        """Do one round: ask for all groups and ends, then store what is due."""
        topics = sorted(self._context.topics())
        if not topics:
            self._kept_at = self._clock()
            return
        try:
            failed = self._keep(topics)
        except BlockgzError as error:
            failed = error
        except Exception as error:  # archiving continues after any failure here
            failed = BrokerUnreachable("the consumer groups cannot be kept", why=repr(error))
        if self._ending.is_set():
            return
        if failed is None:
            self._kept_at = self._clock()
        else:
            self.failures += 1
            if not self._is_failing:
                log.warning(LogEvent.GROUPS_UNKNOWN, cause=failed.what, why=failed.why)
        self._is_failing = failed is not None

    def _keep(self, topics: list[str]) -> BlockgzError | None:
        """Ask and store once; return the first failure after which the rest of the round continued, if any."""
        self._rounds += 1
        self._compare_clocks()
        failures: list[BlockgzError] = []
        ids = self._context.topic_ids(topics)
        opened = self._open(topics, ids, failures)
        has_groups = self._context.is_selected is not None and self._ask_groups(opened, failures)
        ends, changed = self._ask_ends(opened, ids, failures)
        now = self._now_ms()
        for topic in opened:
            if self._ending.is_set():
                break
            if topic in changed:
                continue  # what was answered may be about either of two topics
            try:
                self.stored += self._context.tables.keep(topic, now, ends.get(topic), has_groups=has_groups)
            except BlockgzError as error:
                failures.append(error)
        return next(iter(failures), None)

    def _open(self, topics: list[str], ids: Mapping[str, str], failures: list[BlockgzError]) -> dict[str, TopicTables]:
        tables, known = self._context.tables, self._context.partitions()
        opened: dict[str, TopicTables] = {}
        tables.forget_others(topics)
        for topic in topics:
            try:
                if topic in known:
                    opened[topic] = tables.open(topic, ids.get(topic), self._now_ms(), self._is_kept)
                    opened[topic].partitions = max(known[topic], opened[topic].partitions)
            except BlockgzError as error:
                failures.append(error)
        return opened

    def _ask_groups(self, opened: Mapping[str, TopicTables], failures: list[BlockgzError]) -> bool:
        """Ask all groups, also those that were known and are not listed; return whether they could be listed."""
        cluster, tables = self._context.cluster, self._context.tables
        try:
            listed = cluster.ids()
        except BlockgzError as error:
            failures.append(error)
            return False
        wanted = {*filter(self._is_kept, listed), *tables.group_ids(opened)}
        counts = {topic: each.partitions for topic, each in opened.items()}
        seconds = max(ROUND_SECONDS, self._context.interval_seconds)
        # Who waited longest comes first: groups without an answer are not to use up each round.
        order = sorted(wanted, key=lambda group_id: (self._asked_in.get(group_id, 0), group_id))
        answers, refused = self._positions(order, counts, seconds)
        tried = answers.keys() | refused.keys()
        self._asked_in = {each: self._rounds if each in tried else self._asked_in.get(each, 0) for each in wanted}
        failures.extend(refused.values())
        if not refused and len(tried) < len(wanted):
            failures.append(
                BrokerUnreachable(
                    f"{len(wanted) - len(tried)} consumer groups were not asked in time",
                    why=f"a round takes {seconds:.0f} s at most",
                    remedy="raise --groups-interval, or choose fewer groups by --groups",
                )
            )
        doubted = tables.hear(opened, answers)
        if doubted and self._is_single and not self._ending.wait(AGAIN_SECONDS):
            again, _ = self._positions(sorted(doubted), counts, seconds)
            tables.hear(opened, again)
        return True

    def _positions(self, group_ids: list[str], counts: Mapping[str, int], seconds: float) -> GroupAnswers:
        answers, failures = self._context.cluster.answers(group_ids, counts, seconds)
        ahead = self._ahead_ms
        return {name: each._replace(asked_at=each.asked_at + ahead) for name, each in answers.items()}, failures

    def _ask_ends(
        self, opened: Mapping[str, TopicTables], ids: Mapping[str, str], failures: list[BlockgzError]
    ) -> tuple[dict[str, LogEnds], set[str]]:
        """Return where the topics end, if their ids stayed the same, and the topics that have another id by now."""
        known = [topic for topic, each in opened.items() if each.topic_id is not None]
        if not known:
            return {}, set()
        asked_at = self._now_ms()
        ends: Mapping[tuple[str, int], int] = {}
        try:
            ends = self._context.high_watermarks(
                [(topic, number) for topic in known for number in range(opened[topic].partitions)]
            )
        except BlockgzError as error:
            failures.append(error)
        answered_at = max(asked_at, self._now_ms())
        after = self._context.topic_ids(known)
        by_topic: dict[str, list[LogEnd]] = {}
        for (topic, number), end in sorted(ends.items()):
            if ids.get(topic) == after.get(topic) == opened[topic].topic_id:
                by_topic.setdefault(topic, []).append(LogEnd(number, end))
        changed = {topic for topic in known if topic in after and after[topic] != opened[topic].topic_id}
        return {topic: LogEnds(asked_at, answered_at, tuple(each)) for topic, each in by_topic.items()}, changed

    def _compare_clocks(self) -> None:
        """Measure how far the store's clock is ahead; what was measured before counts if it does not report it."""
        before = self._wall_ms()
        try:
            told = self._context.store_clock() * 1000
        except BlockgzError:
            return
        after = self._wall_ms()
        exact = COARSE_MS if told % 1000 else 1000  # S3 reports whole seconds
        at_least, at_most = told - after, told + exact - before
        # Two clocks that may agree are taken to agree: otherwise each round would measure another fraction of a second.
        self._ahead_ms = 0 if at_least <= 0 <= at_most else round((at_least + at_most) / 2)

    def _now_ms(self) -> int:
        """Return the time by the store's clock, in ms."""
        return self._wall_ms() + self._ahead_ms

    def _is_kept(self, group_id: str) -> bool:
        is_ours = group_id == self._context.own_group or group_id.startswith(LEFT_OUT)
        return not is_ours and self._context.is_selected is not None and self._context.is_selected(group_id)

    def _run(self) -> None:
        interval = self._context.interval_seconds
        while not self._ending.wait(seconds_to_round(self._now_ms() / 1000, interval, self._phase)):
            self.keep()


def seconds_to_round(now: float, interval: float, phase: float) -> float:
    """Return the seconds until the next round, at the given part of each interval of the grid; always more than 0."""
    return interval - (now - phase * interval) % interval
