"""Following: a restore that goes on with what the archive gains, slot by slot, until it is told to end."""

import asyncio
import gc
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from blockgz.open_files import allow_open_files
from index_format.errors import BlockgzError
from replayer.errors import JobTakenOver
from replayer.replay.jobs.log import this_process
from replayer.replay.prepare import PRODUCERS
from replayer.replay.replaying import FILES, FILES_OF_A_PRODUCER
from replayer.replay.stages import wall_clock
from replayer.restore.choosing import topic_job
from replayer.restore.consumers import FollowedGroups
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.folder import RestoreFolder, StandbyReport, StandState, TopicFollowed, TopicStand
from replayer.restore.request import Surroundings
from replayer.restore.topic_replay import TopicOutcome
from replayer.restore.turns import Turn, survey

LOOK_SECONDS = 2.0
"""So often a follower looks whether it is told to end."""


REFRESH_SECONDS = 12 * 3600.0
"""So often a job commits where it stands, though nothing was archived: clusters forget it, by default after 7 days."""


class Replays(Protocol):
    """As `TopicReplays` does them."""

    ending: bool

    def end(self) -> None: ...

    async def run(self, plan: RestorePlan, outcome: TopicOutcome, around: Surroundings) -> bool: ...


@dataclass
class StandbyRun:
    """One run of a follower; `told` is called with each topic whose state changed, `every` are seconds.

    Without `groups` consumer groups are left alone.
    """

    plan: RestorePlan
    folder: RestoreFolder
    around: Surroundings
    replays: Replays
    groups: FollowedGroups | None
    workers: int
    every: float
    told: Callable[[TopicStand], None]

    def __post_init__(self) -> None:
        self._ended = asyncio.Event()
        self._taken: JobTakenOver | None = None
        self._followed: dict[str, TopicToRestore] | None = None
        self._reached: dict[str, Mapping[int, int]] = {}
        """By source where its partitions ended in the archive when all of that was in the target."""
        self._refresh_at: dict[str, float] = {}
        """By source, on the loop's clock."""
        self._stands: dict[str, TopicStand] = {}

    def end(self) -> None:
        """Commits what was sent, and ends."""
        self.replays.end()
        self._ended.set()

    async def follow(self) -> None:
        """Follows until it is told to end; raises JobTakenOver where another run follows, and what the start raises.

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
        if self._taken is not None and await asyncio.to_thread(self.folder.switched_over) is None:
            raise self._taken

    async def slot(self) -> StandbyReport:
        """Copies what the archive has now, and sets the groups."""
        error: str | None = None
        notes: tuple[str, ...] = ()
        try:
            if self._followed is None:
                self._followed = await asyncio.to_thread(self.folder.followed)
                last = await asyncio.to_thread(self.folder.reported)
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
        """The same; notes on the groups."""
        around = self.around.reading(await self.around.archive.pinned())
        found, due, ended = await survey(self.plan, followed, around, wall_clock())
        limit = asyncio.Semaphore(self.workers)

        async def one(turn: Turn) -> None:
            async with limit:
                if not self.replays.ending:
                    self._tell(await self._taken_turn(turn, followed, around))

        await asyncio.gather(*map(one, due))
        for topic, why, _ in ended:
            self._tell(self._stand(topic, "gone", why))
        there = {turn.topic.source for turn in (*due, *ended)}
        self._stands = {source: stand for source, stand in self._stands.items() if source in there}
        if self.groups is None or self.replays.ending:
            return ()
        whole = [each for each in found.topics if each.source in self._reached]
        return await self.groups.follow(msgspec.structs.replace(found, topics=tuple(whole)), self._reached, around)

    async def _taken_turn(self, turn: Turn, followed: dict[str, TopicToRestore], around: Surroundings) -> TopicStand:
        """The topic after its turn; an error is of this topic alone."""
        topic = turn.topic
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
        outcome = TopicOutcome(topic, topic_job(self.folder.name, topic.source))
        if topic.source not in followed:
            begun = TopicFollowed(topic=topic, at=wall_clock())
            await asyncio.to_thread(self.folder.add_followed, outcome.job, begun)
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
        """A folder that cannot be written now has the next report."""
        with suppress(BlockgzError):
            await asyncio.to_thread(self.folder.report, report)

    async def _watch(self) -> None:
        """Ends the run once the folder says so."""
        while not self.replays.ending:
            with suppress(BlockgzError):
                if await asyncio.to_thread(self.folder.switched_over) is not None:
                    self.end()
            await self._wait(LOOK_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(0.0, seconds))
