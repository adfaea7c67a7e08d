"""A warm standby: a restore that continues with what the archive gains, slot by slot, until its switch-over."""

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import msgspec

from blockgz.archive.partition import SkipDamage
from blockgz.archive.positions import OffsetRange, resolve_range
from blockgz.archive.selection import Reading, Selection
from blockgz.errors import BlockgzError
from blockgz.process import allow_open_files
from blockgz.units import wall_clock
from replayer.errors import JobTakenOver
from replayer.replay.job import LanePosition, decode_position
from replayer.replay.jobs.control import FRESH_MS, is_running, lock_folder
from replayer.replay.jobs.folder import JobFolder, JobRequest, this_process
from replayer.replay.plan import describe_source
from replayer.replay.replaying import FILES, FILES_OF_A_PRODUCER, PRODUCERS
from replayer.replay.request import Surroundings
from replayer.replay.sinks.transactional import CommittedPositions
from replayer.restore.consumers import FollowedGroups
from replayer.restore.document import (
    RestoreFolder,
    RestorePlan,
    StandbyReport,
    StandState,
    SwitchOver,
    TopicFollowed,
    TopicLeftOut,
    TopicStand,
    TopicToRestore,
    topic_job,
)
from replayer.restore.planning import TRUNCATED, gathered, sized, surveyed_topics, with_accepted_settings
from replayer.restore.running import TopicOutcome, TopicReplays

# Milliseconds past now up to which records are copied, so that timestamps of a clock ahead of this one count too.
AHEAD_MS = 24 * 3600 * 1000


class StandbyTurn(NamedTuple):
    """A topic that exists now, the reason why it is not followed (None if it is), and what to do about it."""

    topic: TopicToRestore
    stopped: str | None = None
    do: str | None = None
    is_gone: bool = False


def turns(
    found: RestorePlan, followed: Mapping[str, TopicToRestore], existing: Collection[str]
) -> Iterator[StandbyTurn]:
    """Yield whether each topic that was found is followed.

    `followed` are by source those that were followed before, oldest first, `existing` the topics of the target.
    """
    owners = {each.target: source for source, each in followed.items() if each.target in existing}
    for topic in found.topics:
        owner = owners.setdefault(topic.target, topic.source)
        copied = followed[owner] if owner in followed and followed[owner].topic == topic.topic else topic
        if not topic.is_in_one_folder:
            yield StandbyTurn(copied, TRUNCATED)
        elif copied.source != topic.source:
            yield StandbyTurn(
                copied,
                f"{topic.topic} was created again as {topic.source}: {topic.target} stays a copy of {owner}",
                f"delete topic {topic.target} in the standby, and {topic.source} is followed",
            )
        elif owner != topic.source:
            yield StandbyTurn(topic, f"{topic.target} is a copy of {owner}", "use another standby, with --map")
        elif topic.lacks and not found.partial:
            yield StandbyTurn(topic, topic.lacks[0], "repair the archive, or follow what is there with --partial")
        else:
            yield StandbyTurn(topic)


def gone(found: RestorePlan, followed: Mapping[str, TopicToRestore]) -> list[StandbyTurn]:
    """Return the topics that were followed and are no longer in the source."""
    newest = {each.topic: each for each in followed.values()}
    return [StandbyTurn(newest[each.topic], each.why, is_gone=True) for each in found.left_out if each.topic in newest]


async def survey(
    plan: RestorePlan, followed: Mapping[str, TopicToRestore], around: Surroundings, now_ms: int
) -> tuple[RestorePlan, list[StandbyTurn]]:
    """Return the topics of the archive, and the turns of these and of those that were followed before and are gone."""
    assert plan.follow is not None
    now = msgspec.structs.replace(plan, at=now_ms + AHEAD_MS)
    found = await surveyed_topics(now, plan.follow, around)
    existing = await asyncio.to_thread(lambda: around.refresh_admin().topics)
    return found, [*turns(found, followed, existing), *gone(found, followed)]


# Seconds between two looks for a switch-over.
LOOK_SECONDS = 2.0


# Seconds after which an idle job commits its positions again: clusters forget them, by default after 7 days.
REFRESH_SECONDS = 12 * 3600.0


class StandbyRun:
    """One run of a follower; `told` is called with each topic whose state changed, `every` are seconds.

    Without `groups` consumer groups are left alone.
    """

    def __init__(
        self,
        plan: RestorePlan,
        folder: RestoreFolder,
        around: Surroundings,
        replays: TopicReplays,
        groups: FollowedGroups | None,
        workers: int,
        every: float,
        told: Callable[[TopicStand], None],
    ) -> None:
        self.plan, self.folder, self.around, self.replays = plan, folder, around, replays
        self.groups, self.workers, self.every, self.told = groups, workers, every, told
        self._ended = asyncio.Event()
        self._taken: JobTakenOver | None = None
        self._followed: dict[str, TopicToRestore] | None = None
        # The ends of each source's partitions in the archive when the target had all of it.
        self._reached: dict[str, Mapping[int, int]] = {}
        # The time of the next refresh of each source, on the loop's clock.
        self._refresh_at: dict[str, float] = {}
        self._stands: dict[str, TopicStand] = {}

    def end(self) -> None:
        """Commit what was sent, and end."""
        self.replays.end()
        self._ended.set()

    async def follow(self) -> None:
        """Follow until the end is requested; raise JobTakenOver if another run follows, and what the start raises.

        Afterwards an error of the archive, of the cluster or of a topic is reported, and the next slot tries again.
        """
        admin = await asyncio.to_thread(lambda: self.around.admin)
        allow_open_files(self.workers * (FILES + PRODUCERS * (FILES_OF_A_PRODUCER + admin.num_brokers)))
        clock = asyncio.get_running_loop().time
        report: StandbyReport | None = None
        watching = asyncio.ensure_future(self._watch())
        try:
            while not self.replays.ending:
                due = clock() + self.every
                report = await self.slot()
                await self._report(report)
                # A turn's clients of the cluster are parts of cycles: they keep connections until these are found.
                await asyncio.to_thread(gc.collect)
                await self._wait(due - clock())
            if report is not None:
                await self._report(msgspec.structs.replace(report, state="ended"))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if self._taken is not None and await asyncio.to_thread(self.folder.get, SwitchOver) is None:
            raise self._taken

    async def slot(self) -> StandbyReport:
        """Copy what the archive has now, and set the groups."""
        error: str | None = None
        notes: tuple[str, ...] = ()
        try:
            if self._followed is None:
                self._followed = await asyncio.to_thread(self.folder.followed)
                last = await asyncio.to_thread(self.folder.get, StandbyReport)
                self._stands = {each.source: each for each in (last.topics if last else ())}
            notes = await self._slot(self._followed)
        except BlockgzError as failed:
            error = failed.reason
        except Exception as failed:  # the next slot may do better
            error = f"{type(failed).__name__}: {failed}"
        topics = tuple(stand for _, stand in sorted(self._stands.items()))
        return StandbyReport(
            state="following",
            host=this_process(),
            slot_at=wall_clock(),
            every=self.every,
            topics=topics,
            group_notes=notes,
            error=error,
        )

    async def _slot(self, followed: dict[str, TopicToRestore]) -> tuple[str, ...]:
        """Copy what the archive has now, set the groups, and return notes on these."""
        around = self.around.reading(await self.around.archive.pin())
        found, due = await survey(self.plan, followed, around, wall_clock())
        limit = asyncio.Semaphore(self.workers)

        async def one(turn: StandbyTurn) -> None:
            async with limit:
                if not self.replays.ending:
                    self._tell(await self._taken_turn(turn, followed, around))

        await asyncio.gather(*map(one, due))
        there = {turn.topic.source for turn in due}
        self._stands = {source: stand for source, stand in self._stands.items() if source in there}
        if self.groups is None or self.replays.ending:
            return ()
        whole = [each for each in found.topics if each.source in self._reached]
        return await self.groups.follow(msgspec.structs.replace(found, topics=tuple(whole)), self._reached, around)

    async def _taken_turn(
        self, turn: StandbyTurn, followed: dict[str, TopicToRestore], around: Surroundings
    ) -> TopicStand:
        """Return the topic after its turn; an error is of this topic alone."""
        topic = turn.topic
        if turn.is_gone:
            return self._stand(topic, "gone", turn.stopped)
        if turn.stopped is not None:
            self._reached.pop(topic.source, None)
            return self._stand(topic, "stopped", turn.stopped, turn.do)
        try:
            return await self._copied(topic, followed, around)
        except JobTakenOver as error:
            self._taken = error
            self.end()
            return self._stand(topic, "failing", error.reason, error.remedy)
        except BlockgzError as error:
            self._reached.pop(topic.source, None)
            return self._stand(topic, "failing", error.reason, error.remedy)
        except Exception as error:
            self._reached.pop(topic.source, None)
            return self._stand(topic, "failing", f"{type(error).__name__}: {error}", "report this bug")

    async def _copied(
        self, topic: TopicToRestore, followed: dict[str, TopicToRestore], around: Surroundings
    ) -> TopicStand:
        opened = await around.archive.open_topic(topic.source)
        ends = {each.partition: each.next_offset for each in opened}
        now = asyncio.get_running_loop().time()
        is_due = self._reached.get(topic.source) != ends or now >= self._refresh_at[topic.source]
        if not ends or not is_due:
            return self._stand(topic, "following")
        topic = msgspec.structs.replace(topic, partitions=max(topic.partitions, max(ends) + 1))
        if topic.source not in self._reached:
            topic = await asyncio.to_thread(with_accepted_settings, self.plan, topic, around)
        outcome = TopicOutcome(topic, topic_job(self.folder.name, topic.source))
        if topic.source not in followed:
            begun = TopicFollowed(topic=topic, at=wall_clock())
            await asyncio.to_thread(self.folder.put, begun, outcome.job, begun.topic.source)
            followed[topic.source] = topic
        if not await self.replays.run(self.plan, outcome, around):
            return self._stand(topic, "behind")
        self._reached[topic.source] = ends
        self._refresh_at[topic.source] = now + REFRESH_SECONDS
        return self._stand(topic, "following", skipped=outcome.skipped)

    def _stand(
        self,
        topic: TopicToRestore,
        state: StandState,
        why: str | None = None,
        do: str | None = None,
        skipped: Collection[str] = (),
    ) -> TopicStand:
        last = self._stands.get(topic.source)
        all_skipped = tuple(dict.fromkeys((*(last.skipped if last else ()), *skipped)))
        return TopicStand(topic.source, topic.target, state, why, do or None, all_skipped)

    def _tell(self, stand: TopicStand) -> None:
        if self._stands.get(stand.source) != stand:
            self.told(stand)
        self._stands[stand.source] = stand

    async def _report(self, report: StandbyReport) -> None:
        """Store the slot's report; if the folder is not writable now, the next slot's report replaces it."""
        with suppress(BlockgzError):
            await asyncio.to_thread(self.folder.replace, report)

    async def _watch(self) -> None:
        """End the run once the folder says so."""
        while not self.replays.ending:
            with suppress(BlockgzError):
                if await asyncio.to_thread(self.folder.get, SwitchOver) is not None:
                    self.end()
            await self._wait(LOOK_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(0.0, seconds))


PASSING_DAMAGE = Reading(on_damage=lambda _: SkipDamage())


class TopicLag(NamedTuple):
    """How far a topic of the standby is behind the archive; `oldest` is the least missing timestamp."""

    copied: int = 0
    records: int = 0
    oldest: int | None = None
    error: str | None = None

    def seconds(self, now_ms: int) -> float:
        """Return how long ago the oldest missing record was written, by its timestamp; 0 if none is missing."""
        return 0.0 if self.oldest is None else max(0, now_ms - self.oldest) / 1000


async def lag_of(topic: TopicToRestore, restore: str, around: Surroundings) -> TopicLag:
    """Return the lag by archive and cluster; an error is in it, and is not raised."""
    try:
        kept = await asyncio.to_thread(JobFolder(around.jobs, topic_job(restore, topic.source)).request)
        opened = (await around.archive.survey_topic(topic.source)).partitions
        numbers = [each.partition for each in opened]
        positions = {} if kept is None else await asyncio.to_thread(_positions, kept, numbers, around)
        missing = []
        for partition in opened:
            start, end = await resolve_range(partition, None, None)
            if (position := positions.get(partition.partition)) is not None:
                start = position.sources[partition.partition].next
            if start < end:
                missing.append(await describe_source(Selection(partition, OffsetRange(start, end)), PASSING_DAMAGE))
    except BlockgzError as error:
        return TopicLag(error=error.reason)
    oldest = min((each.timestamps.min for each in missing if each.timestamps is not None), default=None)
    return TopicLag(sum(each.written for each in positions.values()), sum(each.records for each in missing), oldest)


def _positions(kept: JobRequest, partitions: Sequence[int], around: Surroundings) -> dict[int, LanePosition]:
    # A standby keeps partitions: each lane has the number of its partition.
    with closing(CommittedPositions(around.properties, kept.names, decode_position)) as positions:
        return positions.read(partitions)


def follows_elsewhere(report: StandbyReport | None, host: str, now_ms: int) -> bool:
    """Return whether a process of another machine than that of `host` still follows, by its last report."""
    if report is None or report.state != "following" or report.host.rpartition(":")[0] == host.rpartition(":")[0]:
        return False
    return now_ms - report.slot_at < report.every * 1000 + FRESH_MS


def follower_of(folder: RestoreFolder, report: StandbyReport | None, now_ms: int) -> str:
    """Return whether a standby is `following`, `switched over` or `not running`."""
    if folder.get(SwitchOver) is not None:
        return "switched over"
    if is_running(lock_folder(), folder.name) or follows_elsewhere(report, this_process(), now_ms):
        return "following"
    return "not running"


async def switched_plan(
    plan: RestorePlan,
    found: RestorePlan,
    due: Sequence[StandbyTurn],
    followed: Mapping[str, TopicToRestore],
    around: Surroundings,
) -> RestorePlan:
    """Return the plan of a switch-over: all that is archived now of the topics that are followed, or can be.

    A topic that stopped is as far as it was archived, and the plan says what it lacks.
    """
    there = [turn for turn in due if not turn.is_gone]
    topics = await gathered(there, lambda turn: _measured(_known(turn, followed), around))
    gone = [TopicLeftOut(each.topic.topic, str(each.stopped)) for each in due if each.is_gone]
    left_out = [*found.left_out, *gone]
    return msgspec.structs.replace(
        plan,
        at=found.at,
        topics=tuple(topics),
        left_out=tuple({each.topic: each for each in left_out}.values()),
        warnings=found.warnings,
    )


def _known(turn: StandbyTurn, followed: Mapping[str, TopicToRestore]) -> TopicToRestore:
    topic, stopped = turn.topic, turn.stopped
    if stopped is None:
        return topic
    if topic.source not in followed:
        return msgspec.structs.replace(topic, refused=stopped)
    return msgspec.structs.replace(topic, lacks=tuple(dict.fromkeys((stopped, *topic.lacks))))


async def _measured(topic: TopicToRestore, around: Surroundings) -> TopicToRestore:
    """Return the topic with the sizes of all that is archived of it, which decide about its retention."""
    if topic.refused is not None:
        return topic
    sources = []
    for partition in (await around.archive.survey_topic(topic.source)).partitions:
        offsets = await resolve_range(partition, None, None)
        sources.append(await describe_source(Selection(partition, offsets), PASSING_DAMAGE))
    numbers = tuple(each.partition for each in sources)
    count = max([topic.partitions, *(number + 1 for number in numbers)])
    return sized(msgspec.structs.replace(topic, numbers=numbers, partitions=count), sources)


def standby_document(
    name: str,
    turns: Sequence[StandbyTurn],
    lags: Mapping[str, TopicLag],
    report: StandbyReport | None,
    follower: str,
    now_ms: int,
) -> dict[str, Any]:
    """Return how far a standby is behind its archive, by source in `lags`, and what its follower said last."""
    said = {each.source: each for each in report.topics} if report else {}
    topics = [
        _topic_document(turn, lags[turn.topic.source], said.get(turn.topic.source), now_ms)
        for turn in turns
        if not turn.is_gone
    ]
    topics += [_topic_document(turn, TopicLag(), None, now_ms) | {"state": "gone"} for turn in turns if turn.is_gone]
    return {
        "restore": name,
        "follower": follower,
        "host": report.host if report else None,
        "slot_at": report.slot_at if report else None,
        "behind_records": sum(each["behind_records"] for each in topics),
        "behind_seconds": max((each["behind_seconds"] for each in topics), default=0.0),
        "topics": topics,
        "group_notes": list(report.group_notes) if report else [],
        "error": report.error if report else None,
    }


def _topic_document(turn: StandbyTurn, lag: TopicLag, said: TopicStand | None, now_ms: int) -> dict[str, Any]:
    topic, why, do, _ = turn
    state = "stopped" if why is not None else "behind" if lag.records else "following"
    if why is None and lag.error is not None:
        state, why = "failing", lag.error
    elif why is None and said is not None and said.state == "failing":
        state, why, do = said.state, said.why, said.do
    return {
        "source": topic.source,
        "target": topic.target,
        "state": state,
        "records": lag.copied,
        "behind_records": lag.records,
        "behind_seconds": round(lag.seconds(now_ms), 3),
        "why": why,
        "do": do,
        "skipped": list(said.skipped) if said else [],
    }
