"""Running a restore: its topics side by side, each replayed, proved and given its last settings."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from blockgz.archive.damage import Verdict
from blockgz.open_files import allow_open_files
from index_format.errors import BlockgzError
from replayer.replay.prepare import PRODUCERS
from replayer.replay.proof.job_proof import JobProof, prove_job
from replayer.replay.recorded_job import kept_job
from replayer.replay.replaying import FILES, FILES_OF_A_PRODUCER
from replayer.replay.run import Progress
from replayer.replay.stages import wall_clock
from replayer.restore.choosing import topic_job
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.folder import RestoreFolder, TopicDone
from replayer.restore.request import Surroundings
from replayer.restore.target import create_empty, refuse_lost, set_last
from replayer.restore.topic_replay import TopicOutcome, TopicReplays


@dataclass
class RestoreRun:
    """One run of a restore; `progress` is called with records and bytes, `told` with each topic that is done."""

    plan: RestorePlan
    folder: RestoreFolder
    around: Surroundings
    workers: int
    progress: Progress
    told: Callable[[TopicOutcome], None]

    def __post_init__(self) -> None:
        self._replays = TopicReplays(self.folder.name, self.progress)
        self._proving: set[asyncio.Future[JobProof]] = set()
        self.ending = False

    def end(self) -> None:
        """Commits what was sent, and ends; a proof is broken off."""
        self.ending = True
        self._replays.end()
        for proving in self._proving:
            proving.cancel()

    async def topics(self) -> list[TopicOutcome]:
        """Restores every topic, biggest first; a failure of one does not stop the others."""
        self.around = self.around.reading(await self.around.archive.pinned())
        admin = await asyncio.to_thread(lambda: self.around.admin)
        allow_open_files(self.workers * (FILES + PRODUCERS * (FILES_OF_A_PRODUCER + admin.num_brokers)))
        limit = asyncio.Semaphore(self.workers)
        refused = [
            TopicOutcome(each, topic_job(self.folder.name, each.source), "refused", error=each.refused)
            for each in self.plan.refused
        ]

        async def one(topic: TopicToRestore) -> TopicOutcome:
            async with limit:
                outcome = TopicOutcome(topic, topic_job(self.folder.name, topic.source))
                if not self.ending:
                    await self._guarded(outcome)
                    self.told(outcome)
                return outcome

        done = [asyncio.ensure_future(one(each)) for each in self.plan.restorable]
        try:
            return [*await asyncio.gather(*done), *refused]
        finally:
            for each in done:
                each.cancel()
            await asyncio.gather(*done, return_exceptions=True)

    async def _guarded(self, outcome: TopicOutcome) -> None:
        try:
            await self._restore(outcome)
        except BlockgzError as error:
            outcome.state = "interrupted" if self.ending else "failed"
            outcome.error = error.reason
            outcome.do = error.remedy or None
        except Exception as error:  # of one topic: the others do not suffer from it
            outcome.state, outcome.error, outcome.do = "failed", f"{type(error).__name__}: {error}", "report this bug"

    async def _restore(self, outcome: TopicOutcome) -> None:
        began = asyncio.get_running_loop().time()
        topic = outcome.topic
        done = await asyncio.to_thread(self.folder.topic, outcome.job)
        if done is None:
            if topic.numbers:
                whole = await self._replays.run(self.plan, outcome, self.around)
                if self.ending or not whole or (self.plan.prove != "none" and not await self._proved(outcome)):
                    return
            else:
                await asyncio.to_thread(create_empty, self.plan, topic, outcome.job, self.around)
            done = TopicDone(
                source=topic.source,
                target=topic.target,
                records=outcome.records,
                verdict=outcome.verdict,
                warnings=tuple(outcome.notes),
                at=wall_clock(),
            )
            await asyncio.to_thread(self.folder.add_topic, outcome.job, done)
        else:
            await asyncio.to_thread(refuse_lost, topic, outcome.job, self.around)
            self.progress(round(topic.records * self.plan.passes), topic.bytes)
        notes = await asyncio.to_thread(set_last, topic, self.around)
        outcome.records, outcome.verdict, outcome.notes = done.records, done.verdict, [*done.warnings, *notes]
        outcome.state = "restored"
        outcome.seconds = asyncio.get_running_loop().time() - began

    async def _proved(self, outcome: TopicOutcome) -> bool:
        """Whether the topic holds what the archive does, record by record."""
        kept, folder = await asyncio.to_thread(kept_job, outcome.job, self.around.jobs)

        @contextmanager
        def watched(_: int) -> Iterator[Callable[[int], None]]:
            yield lambda records: self.progress(records, 0)

        around = self.around
        proving = asyncio.ensure_future(
            prove_job(kept, folder, around.archive, around.properties, watched, around.admin, self.plan.sample)
        )
        self._proving.add(proving)
        try:
            proof = await proving
        except asyncio.CancelledError:
            if self.ending and proving.cancelled():
                return False
            raise
        finally:
            self._proving.discard(proving)
        outcome.verdict = proof.verdict
        outcome.notes += proof.warnings
        if proof.not_compared:
            outcome.notes.append(f"sampled: {proof.not_compared} records are counted and not compared")
        if proof.verdict is Verdict.FAILURE:
            outcome.state, outcome.error = "failed", f"the proof failed: {_fault(proof)}"
            outcome.do = f"see replayer verify --job {outcome.job}"
            return False
        return True


def _fault(proof: JobProof) -> str:
    return next((fault for lane in proof.lanes for fault in lane.faults), "see the lanes")
