"""How a process gets its partitions and gives them up: by a consumer group, or all of them with `--once`."""

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from archiver.errors import GroupOfAnother, MemberRefused, Next, Situation, what_next
from archiver.ingest.backpressure import Fetching
from archiver.ingest.kafka_cluster import BoundsOrFailure, KafkaCluster
from archiver.ingest.kafka_source import Partition, name_of
from archiver.ingest.ownership import Ownership
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.topics import TopicWatch
from archiver.logs import LogEvent, log
from blockgz.config.model import RunConfig
from blockgz.elastic_pool import RegularQuestion
from blockgz.errors import BlockgzError
from blockgz.kafka import LogBounds

OWNERS_SECONDS = 30.0

# Returns the metadata of the offsets that the group committed for these topics, if there is any.
AskOwners = Callable[[Sequence[str]], Mapping[Partition, str]]


class GroupOffsets:
    """Refuses a group in which another archive commits; all methods belong to the consumer thread.

    Two archives of one group would share the partitions of a topic, and neither would hold all of it.
    """

    def __init__(self, group_id: str, archive_id: str, ask: AskOwners, executor: Executor) -> None:
        """`ask` raises a BlockgzError if nobody answers; `executor` runs it while the process archives."""
        self._group_id = group_id
        self._archive_id = archive_id
        self._ask = ask
        self._question = RegularQuestion[Mapping[Partition, str]](executor, OWNERS_SECONDS)

    def check(self, topics: Sequence[str]) -> None:
        """Ask and wait for the answer; raises GroupOfAnother. Without an answer `check_again` asks soon."""
        self._take(lambda: self._ask(topics))

    def check_again(self, topics: Sequence[str], now: float) -> None:
        """Ask now and then, and wait for nothing; raises GroupOfAnother once the answer is there."""
        answer = self._question.answer(now, lambda: self._ask(topics))
        if answer is not None:
            self._take(answer.result)

    def _take(self, owners: Callable[[], Mapping[Partition, str]]) -> None:
        try:
            refuse_other_archive(self._group_id, self._archive_id, owners())
        except GroupOfAnother:
            raise
        except BlockgzError as error:
            log.warning(LogEvent.GROUP_UNKNOWN, group=self._group_id, cause=error.what, why=error.why)


def refuse_other_archive(group_id: str, archive_id: str | None, owners: Mapping[Partition, str]) -> None:
    """Raise GroupOfAnother if another archive committed an offset; `owners` holds archive ids.

    `archive_id` is None before the archive is made.
    """
    for partition, owner in sorted(owners.items()):
        if owner != archive_id:
            raise GroupOfAnother(
                f"another archive uses consumer group {group_id!r}",
                why=f"the group's offset of {name_of(partition)} was committed by archive {owner}, this one is "
                f"{archive_id or 'new'}: in one group, each would get only some of the partitions",
                remedy="give this archive its own --group-id, with --takeover the first time if it holds these topics "
                "already; or stop the other archive's processes and start with --takeover",
            )


# Looks at the group before a partition counts as forgotten.
LOOKS = 4

# The partitions of these topics that no member of the group has now, while it does not rebalance.
AskUnowned = Callable[[Sequence[str]], set[Partition]]


class UnownedWatch:
    """Looks for them now and then, in a thread."""

    def __init__(self, ask: AskUnowned, executor: Executor, patience_seconds: float) -> None:
        """`patience_seconds`: the time that a rebalance may take. `ask` raises a BlockgzError if nobody answers."""
        self._ask = ask
        self._question = RegularQuestion[set[Partition]](executor, patience_seconds / LOOKS)
        self._patience_seconds = patience_seconds
        self._since: dict[Partition, float] = {}

    def look(self, topics: Sequence[str], now: float) -> set[Partition]:
        """Return the partitions that nobody has had for longer than a rebalance takes; each once in that time."""
        answer = self._question.answer(now, lambda: self._ask(topics))
        if answer is None:
            return set()
        try:
            unowned = answer.result()
        except BlockgzError:  # the watch on topics logs that the cluster does not answer
            return set()
        self._since = {partition: self._since.get(partition, now) for partition in unowned}
        forgotten = {partition for partition, since in self._since.items() if now - since >= self._patience_seconds}
        self._since |= dict.fromkeys(forgotten, now)
        return forgotten


GROUP_COMMIT_SECONDS = 5.0
REJOIN_SECONDS = 1.0
ASKS_FOR_ENDS = 10
ASK_AGAIN_SECONDS = 3.0


@dataclass(frozen=True)
class DrainShare:
    """The partitions of one of several workers that drain the topics together."""

    number: int
    workers: int

    def holds(self, partition: Partition) -> bool:
        """Return whether the partition is this worker's. A topic's partitions are shared equally, plus or minus one."""
        topic, number = partition
        return (zlib.crc32(topic.encode()) + number) % self.workers == self.number


WHOLE = DrainShare(0, 1)
# For each partition the bounds of what may be read now, and those up to the high watermark.
Ends = list[tuple[Partition, BoundsOrFailure, BoundsOrFailure]]


class Drain:
    """Every partition of the topics, or a worker's share, up to where its log ends now. No group is joined."""

    def __init__(
        self,
        config: RunConfig,
        cluster: KafkaCluster,
        ownership: Ownership,
        topics: Mapping[str, int],
        share: DrainShare,
        rest: Callable[[], None],
        executor: Executor,
    ) -> None:
        """`topics` were selected with these numbers of partitions.

        `rest` waits for a moment; `executor` asks again for ends that nobody told at the start.
        """
        self._config = config
        self._cluster = cluster
        self._ownership = ownership
        self._topics = topics
        self._share = share
        self._rest = rest
        self._executor = executor
        self._without_end: Mapping[Partition, BlockgzError] = {}
        self._asked: Future[Ends] | None = None
        self._tries = 0
        self._ask_at = -math.inf
        self.joined = False

    @property
    def is_over(self) -> bool:
        return not self._without_end and self._ownership.is_over

    def start(self) -> None:
        known = self._cluster.topics()
        # A broker that has just started may know of fewer: what is gone for good is reported as such.
        most = {topic: max(count, known.get(topic, 0)) for topic, count in self._topics.items()}
        every = ((topic, number) for topic, count in most.items() for number in range(count))
        self._acquire(self._ends([partition for partition in every if self._share.holds(partition)]))
        self.joined = True

    def tick(self, now: float) -> None:
        """Ask again for ends of logs that nobody told; after ASKS_FOR_ENDS times their partitions are left."""
        if not self._without_end:
            return
        if self._asked is None:
            if now < self._ask_at:
                return
            self._ask_at = now + ASK_AGAIN_SECONDS
            self._tries += 1
            self._asked = self._executor.submit(self._ends, list(self._without_end))
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._acquire(asked.result())
            if self._tries >= ASKS_FOR_ENDS:
                self._leave()

    def refused(self, refusal: MemberRefused) -> None:
        """Raise the refusal: no group was joined, so another try would be refused too."""
        raise refusal

    def give_up(self, partitions: Sequence[Partition]) -> None:
        self._leave()
        self._ownership.give_up(partitions, self._config.grace, self._rest)

    def _ends(self, partitions: Collection[Partition]) -> Ends:
        # In this order: on a topic that is written to, an end that is requested first is below the other.
        highs = self._cluster.ask_bounds(partitions, "read_uncommitted")
        ends = self._cluster.ask_bounds(partitions, self._config.isolation_level)
        return [(partition, ends[partition], highs[partition]) for partition in partitions]

    def _acquire(self, ends: Ends) -> None:
        without_end: dict[Partition, BlockgzError] = {}
        for partition, end, high in ends:
            if isinstance(end, LogBounds) and isinstance(high, LogBounds):
                self._ownership.acquire(partition, end.end, max(end.end, high.end))
                continue
            failure = end if isinstance(end, BlockgzError) else high
            assert isinstance(failure, BlockgzError)
            if what_next(failure, Situation.BOUNDED) is Next.STOP:
                self._ownership.refuse(partition, failure)
            else:
                without_end[partition] = failure
        self._without_end = without_end

    def _leave(self) -> None:
        for partition, error in self._without_end.items():
            self._ownership.refuse(partition, error)
        self._without_end = {}


class GroupMember:
    """The partitions that the group assigns, for as long as the process runs. Also its GroupListener."""

    def __init__(
        self,
        config: RunConfig,
        ownership: Ownership,
        fetching: Fetching,
        topics: Sequence[str],
        watch: TopicWatch,
        offsets: GroupOffsets,
        unowned: UnownedWatch,
        *,
        rest: Callable[[], None],
        wait: Callable[[float], object],
    ) -> None:
        """`rest` waits for a moment, `wait` for the given seconds or until the process stops."""
        self._config = config
        self._offsets = offsets
        self._unowned = unowned
        self._ownership = ownership
        self._fetching = fetching
        self._topics = topics
        self._watch = watch
        self._rest = rest
        self._wait = wait
        self._informed_at = -math.inf
        self.joined = False

    @property
    def is_over(self) -> bool:
        return False

    def start(self) -> None:
        """Raise GroupOfAnother, unless the group is taken over."""
        if not self._config.takeover:
            self._offsets.check(self._topics)
        self._fetching.subscribe(self._topics, self)

    def tick(self, now: float) -> None:
        """Tell the group how far its partitions are; subscribe to topics that came or went; have all given out."""
        if now - self._informed_at >= GROUP_COMMIT_SECONDS:
            self._informed_at = now
            if not self._config.takeover:
                self._offsets.check_again(self._topics, now)
            self._inform(self._ownership.active)
        if unowned := self._unowned.look(self._topics, now):
            log.warning(LogEvent.UNOWNED, partitions=len(unowned), first=name_of(min(unowned)))
            self._fetching.join_again(self._topics, self)
        topics = self._watch.topics(now)
        if topics is None or topics == self._topics:
            return
        if gone := set(self._topics) - set(topics):
            log.warning(LogEvent.TOPIC_GONE, topics=",".join(sorted(gone)))
            self._ownership.gone(gone)
        self._ownership.back(set(topics) - set(self._topics))
        self._topics = topics
        if topics:
            log.info(LogEvent.SUBSCRIBED, topics=",".join(topics))
            self._fetching.subscribe(topics, self)

    def refused(self, refusal: MemberRefused) -> None:
        """Join again: in the KIP-848 protocol a static id is free once the session of its last owner has ended."""
        # In the classic one its newest owner is right, so that the refusal is raised: this process is a zombie.
        self._lose(self._ownership.assigned, refusal.why)
        if self._config.group_protocol == "classic":
            raise refusal
        self._fetching.close()
        self._wait(REJOIN_SECONDS)
        self._fetching.reconnect()
        self.start()

    def give_up(self, partitions: Sequence[Partition]) -> None:
        """Flush and commit within the grace time; the group hears how far the partitions came."""
        active = self._ownership.active
        leaving = {partition: active[partition] for partition in partitions if partition in active}
        self._hand_over(partitions)
        self._ownership.give_up(partitions, self._config.grace, self._rest)
        self._inform(leaving)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        log.info(LogEvent.ASSIGNED, partitions=len(partitions))
        self.joined = True
        for partition in partitions:
            self._ownership.acquire(partition)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        log.info(LogEvent.REVOKED, partitions=len(partitions))
        self._hand_over(partitions)
        # If the process has to end in the meantime, its grace is for its other partitions, too. What continues then,
        # next to the next owner, is safe where a swap keeps writers apart. The group does not hear here how far the
        # partitions came: their next owner commits that, and a commit that is answered late is dangerous; see
        # `KafkaSource._await_commit`.
        self._ownership.give_up(
            partitions, self._config.grace, self._rest, lambda: bool(self._wait(0)) and not self._config.single_writer
        )

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._lose(partitions, "the group continued without this process")

    def _lose(self, partitions: Collection[Partition], cause: str) -> None:
        log.warning(LogEvent.LOST, partitions=len(partitions), cause=cause)
        self.joined = False
        self._hand_over(partitions)
        self._ownership.lose(partitions)

    def _hand_over(self, partitions: Iterable[Partition]) -> None:
        """Offer records that were polled and are not handed over yet: they were fetched, too."""
        for event in self._fetching.batched(partitions):
            self._ownership.offer(event)

    def _inform(self, archivers: Mapping[Partition, PartitionArchiver]) -> None:
        """Report committed positions to the group, for lag tools."""
        # Advisory: the archive's markers alone say what is archived.
        positions = {partition: archiver.state.committed for partition, archiver in archivers.items()}
        self._fetching.commit({partition: at for partition, at in positions.items() if at is not None})


# How this process gets its partitions: `start` asks for them, `tick` lets time pass, `give_up` commits what leaves.
# `joined`: whether they are known. `is_over`: whether nothing is left to do, nor will be.
Assignment = Drain | GroupMember
