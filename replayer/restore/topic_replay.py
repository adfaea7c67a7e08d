"""One topic of a restore: what becomes of it, and its replay."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from blockgz.archive.damage import Verdict
from replayer.replay.pace import Commands
from replayer.replay.replaying import planned_replay
from replayer.replay.run import Progress
from replayer.replay.seams import JobLog
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.request import Surroundings, replay_of
from replayer.restore.target import make_ready

TopicState = Literal["restored", "failed", "interrupted", "refused"]


@dataclass
class TopicOutcome:
    """What became of a topic; `records` are all that the restore wrote, `error` what happened and why."""

    topic: TopicToRestore
    job: str
    state: TopicState = "interrupted"
    records: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    error: str | None = None
    do: str | None = None
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Offsets that were passed over at damage."""


class TopicReplays:
    """The replays of one restore's topics, which end together; `progress` is called with records and bytes."""

    def __init__(self, restore: str, progress: Progress) -> None:
        self._restore, self._progress = restore, progress
        self._running: set[Commands] = set()
        self._logs: dict[str, JobLog] = {}
        """Of jobs that follow their archive: what an earlier replay noted need not be read again."""
        self.ending = False

    def end(self) -> None:
        """Commits what was sent, and ends."""
        self.ending = True
        for commands in self._running:
            commands.end()

    async def run(self, plan: RestorePlan, outcome: TopicOutcome, around: Surroundings) -> bool:
        """Whether all records of the topic are there; raises as `make_ready`, `planned_replay` and `run_replay` do."""
        topic = outcome.topic
        await asyncio.to_thread(make_ready, plan, topic, outcome.job, around)
        request = replay_of(plan, topic, self._restore, around)
        commands = Commands()
        admin = await asyncio.to_thread(around.admin.again)
        place = (around.archive, around.properties, around.jobs)
        async with planned_replay(request, *place, admin, topic.lacks) as planned:
            self._progress(planned.plan.job.written, 0)
            async with planned.begun() as begun:
                log = self._logs.pop(outcome.job, begun.keeping.log)
                work = begun._replace(keeping=begun.keeping._replace(log=log))
                self._running.add(commands)
                try:
                    if self.ending:
                        commands.end()
                    result = await work.run(commands, self._progress)
                    await work.settled(result)
                finally:
                    self._running.discard(commands)
                if request.follows:
                    self._logs[outcome.job] = log
            outcome.records = result.records + result.records_before
            outcome.skipped = [
                f"{partition} [{lost.start}..{lost.end}): {lost.reason}" for partition, lost in planned.damage.skipped
            ]
            if result.zero_timestamps:
                outcome.notes.append(f"{result.zero_timestamps} records with timestamp 0 were sent with 1")
            return result.complete
