"""Taking a replay back: deletes the topic that a job created, as long as it holds nothing but the job's records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from blockgz.archive.positions import OffsetRange
from blockgz.errors import AccessDenied, listed
from blockgz.kafka import LogBounds
from replayer.errors import JobTakenOver, ReplayRefused, TargetChanged
from replayer.kafka.admin import KafkaAdmin, TopicChanges, TopicPin, kafka_groups
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.jobs import folder as folders
from replayer.replay.jobs.control import ALIVE, JobSigns, job_state, summary_of

# Small fetches: most of the places that are read hold only a transaction's marker.
SMALL_FETCHES: Mapping[str, str] = {
    "fetch.message.max.bytes": "65536",
    "fetch.wait.max.ms": "1",
    "queued.max.messages.kbytes": "1024",
}


@dataclass(frozen=True)
class UndoPlan:
    """The topic that is to be deleted: by partition its offsets, and how many records of the job it got.

    `warnings` say what else goes with it.
    """

    request: folders.JobRequest
    topic_id: str
    records: int
    bounds: Mapping[int, LogBounds]
    warnings: tuple[str, ...]


def refuse_running(job: str, signs: JobSigns, now_ms: int) -> None:
    """Raise JobTakenOver if the job runs, on this machine or, as far as it reports, on another."""
    state = job_state(signs, folders.this_process(), now_ms)
    if state in ALIVE:
        raise JobTakenOver(
            f"job {job} is running",
            why=f"its newest run is {state}",
            remedy=f"let it finish, or end it: replayer jobs cancel {job}",
        )


def plan_undo(folder: folders.JobFolder, kept: folders.JobRequest, properties: Mapping[str, str]) -> UndoPlan:
    """Return what would be deleted; change nothing.

    Raises ReplayRefused if the job did not create its target, or others wrote to it, and TargetChanged where the
    topic is another one or lacks records.
    """
    folder.refuse_undone()
    topic_id = refuse_not_created(kept)
    admin = KafkaAdmin(properties)
    lanes = range(_target(admin, kept).num_partitions)
    own = own_ranges(segment for _, segment in folder.segments())
    TopicPin(admin, kept.target, topic_id).check({lane: own[lane][-1].end if own.get(lane) else 0 for lane in lanes})
    bounds = admin.watermarks(kept.target, lanes, "read_uncommitted")
    readable = admin.watermarks(kept.target, lanes, kept.isolation_level)
    _refuse_open_transaction(kept.target, bounds, readable)
    with closing(KafkaReader({**properties, **SMALL_FETCHES}, kept.isolation_level)) as reader:
        for lane in lanes:
            for start, end in outside(bounds[lane], own.get(lane, ())):
                for batch in reader.read(kept.target, lane, start, end):
                    raise _foreign(kept, lane, batch.column("offset")[0].as_py())
    summary = summary_of(folder)
    records = summary.records if summary is not None else 0
    return UndoPlan(kept, topic_id, records, bounds, tuple(_warnings(kept, len(lanes), properties)))


def carry_out(plan: UndoPlan, folder: folders.JobFolder, properties: Mapping[str, str], now_ms: int) -> None:
    """Delete the topic, if it is still as planned, and write down that it was; raise as `plan_undo` does."""
    topic, ends = plan.request.target, {lane: each.end for lane, each in plan.bounds.items()}
    admin, changes = KafkaAdmin(properties), TopicChanges(properties)
    partitions = _target(admin, plan.request).num_partitions
    if TopicPin(admin, topic, plan.topic_id).check(ends) != ends or partitions != len(ends):
        raise ReplayRefused(
            f"topic {topic} changed after the plan was made",
            why="it has more records or partitions now",
            remedy="find out who writes to it, and run this again",
        )
    # Kafka's client deletes by name: a topic of that name that is made since the last look goes too.
    changes.delete(topic, plan.topic_id)
    folder.put(
        folders.JobUndone(
            target=topic,
            target_topic_id=plan.topic_id,
            records=plan.records,
            host=folders.this_process(),
            undone_at=now_ms,
        )
    )


def refuse_not_created(kept: folders.JobRequest) -> str:
    """Return the id of the topic that the job created; raises ReplayRefused if it did not, or if that is unknown."""
    by_hand = f"what it wrote cannot be told from the rest: delete {kept.target} yourself, if it may go as a whole"
    if kept.created is not True:
        is_old = kept.created is not False
        raise ReplayRefused(
            f"job {kept.job} cannot be undone",
            why=f"it is not known whether it created topic {kept.target}: an earlier version started it"
            if is_old
            else f"topic {kept.target} existed before the job, which therefore must not delete it",
            remedy=by_hand,
        )
    if kept.target_topic_id is None:
        raise ReplayRefused(
            f"job {kept.job} cannot be undone",
            why=f"the cluster did not tell the id of topic {kept.target}, so another one may have its name now",
            remedy=by_hand,
        )
    return kept.target_topic_id


def own_ranges(segments: Iterable[folders.Segment]) -> dict[int, list[OffsetRange]]:
    """Return by lane the target offsets of all records that the job noted, even void ones, ascending and joined."""
    noted: dict[int, list[OffsetRange]] = {}
    for segment in segments:
        for run in folders.runs_in(segment):
            ranges = noted.setdefault(run.lane, [])
            if ranges and ranges[-1].end == run.target_start:
                ranges[-1] = OffsetRange(ranges[-1].start, run.target_end)
            else:
                ranges.append(OffsetRange(run.target_start, run.target_end))
    return {lane: sorted(ranges) for lane, ranges in noted.items()}


def outside(bounds: LogBounds, ranges: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the offsets of a log that are in none of the ranges, which rise."""
    at = bounds.low
    for start, end in ranges:
        if at < min(start, bounds.end):
            yield OffsetRange(at, min(start, bounds.end))
        at = max(at, end)
    if at < bounds.end:
        yield OffsetRange(at, bounds.end)


def undo_document(plan: UndoPlan) -> dict[str, object]:
    """Return the plan as plain JSON values; `to` is excluded."""
    partitions = [{"partition": lane, "from": each.low, "to": each.end} for lane, each in sorted(plan.bounds.items())]
    return {
        "job": plan.request.job,
        "topic": plan.request.target,
        "topic_id": plan.topic_id,
        "records": plan.records,
        "partitions": partitions,
        "warnings": plan.warnings,
    }


def _target(admin: KafkaAdmin, kept: folders.JobRequest) -> TopicFacts:
    """Return the topic that the job created; raises TargetChanged if it is another one, or that is unknown."""
    facts = admin.topic(kept.target)
    folders.refuse_changed_target(kept, facts)
    assert facts is not None
    if facts.topic_id is None:
        raise TargetChanged(
            f"cannot tell whether topic {facts.name} is the one that the job created",
            why="the cluster does not tell its id now",
            remedy="run this again once the cluster answers; check the ACLs: Describe on the topic",
        )
    return facts


def _refuse_open_transaction(topic: str, bounds: Mapping[int, LogBounds], readable: Mapping[int, LogBounds]) -> None:
    for lane, (_, end) in sorted(bounds.items()):
        if readable[lane].end < end:
            raise ReplayRefused(
                f"a transaction is open in {topic}:{lane}",
                why=f"offsets [{readable[lane].end}..{end}) are not decided yet: somebody writes, or a run was killed",
                remedy="run this again: the cluster rolls back a killed run's transaction within a minute",
            )


def _foreign(kept: folders.JobRequest, lane: int, offset: int) -> ReplayRefused:
    return ReplayRefused(
        f"topic {kept.target} holds records that are not in the job's run map",
        why=f"the first one is {kept.target}:{lane}:{offset}: others wrote it"
        + ("" if kept.transactional else ", or a run of the job that was killed before it could note it"),
        remedy=f"look at replayer verify --job {kept.job}, which tells the two apart; if all of it may go, delete the "
        "topic yourself",
    )


def _warnings(kept: folders.JobRequest, num_partitions: int, properties: Mapping[str, str]) -> Iterator[str]:
    own = kept.names.group_id
    try:
        found, unknown = kafka_groups(properties).in_topic(kept.target, num_partitions)
    except AccessDenied as error:
        yield f"whether consumer groups read the topic is not known: {error.why}"
        return
    if groups := [group for group in found if group != own]:
        yield f"consumer groups have committed offsets in the topic: {listed(groups)}"
    if groups := [group for group in unknown if group != own]:
        yield f"whether these consumer groups read the topic is not known, they gave no answer: {listed(groups)}"
