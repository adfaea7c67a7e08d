"""Run a restore: its topics side by side, each replayed, proved and given its last settings."""

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from blockgz.archive.partition import Damaged
from blockgz.archive.selection import SKIPS
from blockgz.errors import AccessDenied, BlockgzError, Verdict, worst
from blockgz.process import allow_open_files
from blockgz.units import wall_clock
from replayer.errors import ReplayRefused, TargetChanged
from replayer.kafka.topic_facts import ConfigChange, TopicFacts
from replayer.replay.jobs.folder import JobFolder, JobRequest, refuse_changed_target
from replayer.replay.pace import Commands
from replayer.replay.proof import JobProof, prove_job
from replayer.replay.replaying import FILES, FILES_OF_A_PRODUCER, PRODUCERS, planned_replay
from replayer.replay.request import Surroundings
from replayer.replay.run import JobLog, Progress
from replayer.replay.target_topic import LIMIT
from replayer.restore.consumers import Applied
from replayer.restore.document import RestoreFolder, RestorePlan, SkippedOffsets, TopicDone, TopicToRestore, topic_job
from replayer.restore.planning import last_settings, new_topic, replay_of
from replayer.topics import MIN_INSYNC


def refuse_foreign(
    plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings
) -> tuple[JobRequest | None, TopicFacts | None]:
    """Return the request of a topic's job and the topic of its new name, if there are any.

    Raise ReplayRefused for a topic that this restore did not create.
    """
    kept, facts = JobFolder(around.jobs, job).request(), around.refresh_admin().topic(topic.target)
    if kept is not None or facts is None:
        return kept, facts
    # A restore that was killed right after it created the topic left no job, and the topic just as it is created.
    wanted = new_topic(plan, topic)
    own = dict(around.changes.own_config(topic.target))
    if LIMIT in own and LIMIT in wanted.config:
        own[LIMIT] = wanted.config[LIMIT]  # a replay raises it at first
    if facts.num_partitions != wanted.partitions or own != dict(wanted.config):
        raise ReplayRefused(
            f"topic {topic.target} exists",
            why="this restore did not create it",
            remedy="restore under another name with --map and another --name, or delete it",
        )
    return kept, facts


def make_ready(plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Raise ReplayRefused as `refuse_foreign` does; add the partitions that a followed topic gained.

    Raise TargetChanged for another topic of its name.
    """
    kept, facts = refuse_foreign(plan, topic, job, around)
    if plan.follow is None or kept is None:
        return
    refuse_changed_target(kept, facts)
    if facts is not None and facts.num_partitions < topic.partitions:
        around.changes.add_partitions(topic.target, topic.partitions)


def create_empty(plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Create a topic of which no partition is archived; raise as `refuse_foreign` does."""
    _, facts = refuse_foreign(plan, topic, job, around)
    if facts is None:
        around.changes.create(new_topic(plan, topic))


def refuse_lost(topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Raise TargetChanged if a topic that was restored is gone, or another one has its name now."""
    kept = JobFolder(around.jobs, job).request()
    facts = around.refresh_admin().topic(topic.target)
    remedy = f"restore {topic.topic} again in another restore, with --name NAME"
    if facts is None:
        raise TargetChanged(
            f"topic {topic.target} no longer exists in the target",
            why="it was restored, and deleted since",
            remedy=remedy,
        )
    known = None if kept is None else kept.target_topic_id
    if None not in (known, facts.topic_id) and known != facts.topic_id:
        raise TargetChanged(
            f"topic {topic.target} is not the one that was restored",
            why=f"that had id {known}, the topic with that name has id {facts.topic_id}",
            remedy=f"delete it, and {remedy}",
        )


# A topic without these loses or keeps other records than the source did.
WARNED_OF = frozenset({MIN_INSYNC, "cleanup.policy"})


def set_last(topic: TopicToRestore, around: Surroundings) -> tuple[list[str], list[str]]:
    """Set the topic's last settings, and return notes and warnings of those that are not set.

    A setting that the cluster refuses now does not make the records wrong: it is set by hand.
    """
    replicas = around.refresh_admin().replication_factor(topic.target)
    change, held = last_settings(topic, around.changes.own_config(topic.target), replicas, wall_clock())
    notes, warnings = list(held), list[str]()
    try:
        if change:
            around.changes.alter(topic.target, change)
    except (ReplayRefused, AccessDenied):
        for name, value in change.values.items():  # one of them may be refused, and the others accepted
            try:
                around.changes.alter(topic.target, ConfigChange({name: value}))
            except (ReplayRefused, AccessDenied) as error:
                text = f"[{value}]" if "," in value else value
                command = (
                    f"kafka-configs.sh --bootstrap-server {around.properties['bootstrap.servers']} --alter "
                    f"--entity-type topics --entity-name {topic.target} --add-config {shlex.quote(f'{name}={text}')}"
                )
                told = f"{name}={value} is not set: {error.why}; to set it: {command}"
                (warnings if name in WARNED_OF else notes).append(told)
    return notes, warnings


TopicState = Literal["restored", "failed", "interrupted", "refused"]


@dataclass
class TopicOutcome:
    """The outcome of a topic; `records` are all that the restore wrote, `error` what happened and why."""

    topic: TopicToRestore
    job: str
    state: TopicState = "interrupted"
    records: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    error: str | None = None
    do: str | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Settings that could not be set, and change which records the topic keeps."""
    skipped: list[str] = field(default_factory=list)
    """Offsets that were passed over at damage."""
    lost: tuple[SkippedOffsets, ...] = ()
    """The same as numbers, as far as they were met by the run that ended the topic."""


class TopicReplays:
    """The replays of one restore's topics, which end together; `progress` is called with records and bytes."""

    def __init__(self, restore: str, progress: Progress) -> None:
        self._restore, self._progress = restore, progress
        self._running: set[Commands] = set()
        # Logs of jobs that follow their archive: kept so that the notes of an earlier replay are not read twice.
        self._logs: dict[str, JobLog] = {}
        self.ending = False

    def end(self) -> None:
        """Commit what was sent, and end."""
        self.ending = True
        for commands in self._running:
            commands.end()

    async def run(self, plan: RestorePlan, outcome: TopicOutcome, around: Surroundings) -> bool:
        """Return whether all records of the topic are there; raise as `make_ready`, `planned_replay` and `run_replay`
        do.
        """
        topic = outcome.topic
        await asyncio.to_thread(make_ready, plan, topic, outcome.job, around)
        request = replay_of(plan, topic, self._restore, around)
        commands = Commands()
        # The topic may have been created since the client of all topics asked for them.
        around = await asyncio.to_thread(around.refreshed)
        async with planned_replay(request, around, topic.lacks) as planned:
            self._progress(planned.plan.written, 0)
            planned.log = self._logs.pop(outcome.job, planned.log)
            async with planned.begun() as run:
                self._running.add(commands)
                try:
                    if self.ending:
                        commands.end()
                    result = await run(commands, self._progress)
                    await planned.settled(result)
                finally:
                    self._running.discard(commands)
                if request.follows:
                    self._logs[outcome.job] = planned.log
            outcome.records = result.records + result.records_before
            outcome.lost = tuple(
                SkippedOffsets(
                    partition.partition, lost.start, lost.end, f"{partition} [{lost.start}..{lost.end}): {lost.reason}"
                )
                for partition, lost in planned.damage.skipped
            )
            outcome.skipped = [lost.text for lost in outcome.lost]
            if result.zero_timestamps:
                outcome.notes.append(f"{result.zero_timestamps} records with timestamp 0 were sent with 1")
            return result.complete


class RestoreRun:
    """One run of a restore; `progress` is called with records and bytes, `told` with each topic that is done."""

    def __init__(
        self,
        plan: RestorePlan,
        folder: RestoreFolder,
        around: Surroundings,
        workers: int,
        progress: Progress,
        told: Callable[[TopicOutcome], None],
    ) -> None:
        self.plan, self.folder, self.around = plan, folder, around
        self.workers, self.progress, self.told = workers, progress, told
        self._replays = TopicReplays(self.folder.name, self.progress)
        self._proving: set[asyncio.Future[JobProof]] = set()
        self.ending = False

    def end(self) -> None:
        """Commit what was sent, and end; a proof is cancelled."""
        self.ending = True
        self._replays.end()
        for proving in self._proving:
            proving.cancel()

    async def topics(self) -> list[TopicOutcome]:
        """Restore every topic, biggest first; a failure of one does not stop the others."""
        self.around = self.around.reading(await self.around.archive.pin())
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
            if isinstance(error, Damaged) and self.plan.on_damage != SKIPS:
                outcome.do = (
                    f"{outcome.do}; or continue without it: " if outcome.do else ""
                ) + f"replayer restore --resume --on-damage skip --name {self.folder.name}"
        except Exception as error:  # of one topic: the others do not suffer from it
            outcome.state, outcome.error, outcome.do = "failed", f"{type(error).__name__}: {error}", "report this bug"

    async def _restore(self, outcome: TopicOutcome) -> None:
        began = asyncio.get_running_loop().time()
        topic = outcome.topic
        done = await asyncio.to_thread(self.folder.get, TopicDone, outcome.job)
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
                skipped=outcome.lost or msgspec.UNSET,
                at=wall_clock(),
            )
            await asyncio.to_thread(self.folder.put, done, outcome.job, done.source)
        else:
            await asyncio.to_thread(refuse_lost, topic, outcome.job, self.around)
            self.progress(round(topic.records * self.plan.passes), topic.bytes)
        notes, outcome.warnings = await asyncio.to_thread(set_last, topic, self.around)
        outcome.records, outcome.verdict, outcome.notes = done.records, done.verdict, [*done.warnings, *notes]
        outcome.lost = done.skipped or ()
        outcome.skipped = [lost.text for lost in outcome.lost]
        outcome.state = "restored"
        outcome.seconds = asyncio.get_running_loop().time() - began

    async def _proved(self, outcome: TopicOutcome) -> bool:
        """Return whether the topic holds what the archive does, record by record."""

        @contextmanager
        def watched(_: int) -> Iterator[Callable[[int], None]]:
            yield lambda records: self.progress(records, 0)

        proving = asyncio.ensure_future(prove_job(outcome.job, self.around, watched, self.plan.sample))
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
            fault = next((fault for lane in proof.lanes for fault in lane.faults), "see the lanes")
            outcome.state, outcome.error = "failed", f"the proof failed: {fault}"
            outcome.do = f"see replayer verify --job {outcome.job}"
            return False
        return True


def plan_document(name: str, plan: RestorePlan, seconds: float, cut_bytes: int = 0) -> dict[str, Any]:
    """Return the plan, the least seconds that it takes, and the bytes that were read to find its cuts."""
    whole: dict[str, Any] = msgspec.to_builtins(plan)
    totals = {"records": plan.records, "bytes": plan.bytes, "seconds": round(seconds, 3), "cut_bytes": cut_bytes}
    totals |= {"acls": plan.acls, "topics_with_unknown_acls": plan.without_acls}
    return {"restore": name, "totals": totals, "plan": whole}


def outcome_document(
    name: str,
    plan: RestorePlan,
    outcomes: Sequence[TopicOutcome],
    groups: Applied | None,
    acls: Applied | None,
    seconds: float,
) -> dict[str, Any]:
    """Return what was done; `verdict` is OK only if every topic is restored and proved, and groups and ACLs are set."""
    restored = all(each.state == "restored" for each in outcomes)
    lacks = any(each.topic.lacks or each.topic.gaps or each.skipped for each in outcomes)
    verdicts = [each.verdict for each in outcomes if each.verdict is not None]
    verdicts += [Verdict.UNPROVED] if plan.prove == "none" else []
    failed = not restored or any(each is not None and each.error for each in (groups, acls))
    warned = lacks or any(each.warnings for each in outcomes)
    verdicts += [Verdict.FAILURE] if failed else [Verdict.WARNING] if warned else []
    return {
        "verdict": worst(verdicts),
        "restore": name,
        "archive_id": plan.archive_id,
        "prove": plan.prove,
        "sample": None if plan.sample is None else plan.sample._asdict(),
        "at": plan.at,
        "seconds": round(seconds, 3),
        "records": sum(each.records for each in outcomes),
        "topics": [
            {
                "source": each.topic.source,
                "target": each.topic.target,
                "job": each.job,
                "state": each.state,
                "records": each.records,
                "proof": each.verdict,
                "seconds": round(each.seconds, 3),
                "error": each.error,
                "do": each.do or (each.topic.lacking(each.job) if each.state == "restored" else None),
                "gaps": each.topic.gaps,
                "lacks": each.topic.lacks,
                "skipped": each.skipped,
                "notes": [*each.topic.notes, *each.notes],
                "warnings": each.warnings,
            }
            for each in outcomes
        ],
        "left_out": msgspec.to_builtins(plan.left_out),
        "groups": None if groups is None or groups.error else dict(groups.counts),
        "group_notes": [] if groups is None else list(groups.notes),
        "groups_error": None if groups is None else groups.error,
        "acls": None if acls is None else dict(acls.counts),
        "acl_notes": [] if acls is None else list(acls.notes),
        "acls_error": None if acls is None else acls.error,
        "warnings": plan.warnings,
    }
