"""Restores that have begun: their states, by their folders and those of their jobs alone, and taking them back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from blockgz.errors import BlockgzError
from blockgz.kafka.groups import KafkaGroups
from blockgz.store.writer import Store
from blockgz.units import wall_clock
from replayer.errors import ReplayRefused
from replayer.groups import map_of
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.jobs.control import is_running, job_signs, lock_folder, summary_of
from replayer.replay.jobs.folder import JobFolder, JobUndone, this_process
from replayer.replay.jobs.undo import UndoPlan, carry_out, plan_undo, refuse_running
from replayer.restore import document as records
from replayer.restore.document import RestoreFolder, TopicToRestore, topic_job
from replayer.restore.standby import follower_of

# The options that continue a restore in a state in which no process does.
CONTINUED = {"incomplete": "--resume", "switched over": "--switch-over", "not running": "--follow --resume"}


def _topics(folder: RestoreFolder) -> tuple[dict[str, TopicToRestore], set[str]]:
    """Return the topics of a restore by job, with those that a standby came to follow later, and its groups."""
    plan = folder.begun().plan
    topics = (*plan.topics, *(folder.followed().values() if plan.follow is not None else ()))
    rename = map_of(plan.groups.rename if plan.groups else ())
    groups = {rename(group) for each in topics if plan.groups and each.numbers for group in each.groups}
    return {topic_job(folder.name, each.source): each for each in topics}, groups


def restore_document(folder: RestoreFolder, jobs: Store, *, with_topics: bool = False) -> dict[str, Any]:
    """Return a restore as JSON values, with its topics if asked for; `at` is None for a standby.

    Raise UsageError if there is none of that name, ReplayRefused for damage.
    """
    record, done, now = folder.begun(), set(folder.names(records.TopicDone)), wall_clock()
    (topics, known), plan, found = _topics(folder), record.plan, folder.get(records.GroupsDone)
    groups = {} if found is None else found.groups
    missing = [f"group {name} is not set" for name in sorted(known - groups.keys())]
    missing += ["the ACLs are not created"] if plan.create_acls and folder.get(records.AclsDone) is None else []
    kept = {job for job in topics.keys() & done if JobFolder(jobs, job).get(JobUndone) is None}
    unfinished = bool(topics.keys() - done or missing)
    # A standby follows what is repaired, too.
    partly = plan.follow is None and (kept < topics.keys() or any(topics[job].lacks for job in kept))
    state = "incomplete" if unfinished or partly else "complete"
    if folder.get(records.RestoreUndone) is not None:
        state = "undone"
    elif plan.follow is not None and (state == "incomplete" or not topics):
        state = follower_of(folder, folder.get(records.StandbyReport), now)
    elif is_running(lock_folder(), folder.name):
        state = "running"
    document: dict[str, Any] = {
        "restore": record.name,
        "at": plan.at if plan.follow is None else None,
        "target": record.cluster_id,
        "topics_done": len(kept),
        "topics_of": len(topics),
        "groups": len(groups),
        "state": state,
        "begun_at_ms": record.begun_at,
        "missing": missing if state in ("incomplete", "running", "switched over") else [],
        "continue": record.command(CONTINUED[state])
        if state in CONTINUED and (unfinished or state != "incomplete")
        else None,
    }
    if with_topics:
        document["topics"] = [_topic_row(job, each, folder, jobs) for job, each in sorted(topics.items())]
    return document


def _topic_row(job: str, topic: TopicToRestore, folder: RestoreFolder, jobs: Store) -> dict[str, Any]:
    done, of_job = folder.get(records.TopicDone, job), JobFolder(jobs, job)
    begun = summary_of(of_job) if done is None else None
    written = done.records if done else begun.records if begun else 0
    state = "restored" if done else "begun" if begun else "refused" if topic.refused else "not begun"
    left = f"{topic.records - written} records" if topic.records > written else "the proof"
    missing = topic.lacking(job) if done else topic.refused if state == "refused" else left
    if of_job.get(JobUndone) is not None:
        state, missing = "undone", None
    skipped = [lost.text for lost in done.skipped or ()] if done else []
    names = {"source": topic.source, "target": topic.target, "job": job, "state": state, "records": written}
    return {**names, "proof": done.verdict if done else None, "skipped": skipped, "missing": missing}


class RestoreUndo(NamedTuple):
    """The topics that are deleted, the groups that the restore may have set, and what is `left`, with the reason."""

    topics: list[UndoPlan]
    groups: list[str]
    left: list[str]


def plan_restore_undo(
    folder: RestoreFolder, jobs: Store, properties: Mapping[str, str], client: KafkaGroups
) -> RestoreUndo:
    """Return what undoing the restore would delete; change nothing. Raise UsageError if it does not exist."""
    (topics, names), existing, plan = _topics(folder), KafkaAdmin(properties).topics, RestoreUndo([], [], [])
    for job, topic in sorted(topics.items()):
        of_job = JobFolder(jobs, job)
        kept = of_job.request()
        if topic.target not in existing or of_job.get(JobUndone) is not None or (kept is None and topic.refused):
            continue
        try:
            if kept is None:
                begun = "its job did not begin" if topic.numbers else "nothing of it is archived"
                raise ReplayRefused("no job created it", why=begun, remedy="delete the topic yourself, if it may go")
            refuse_running(job, job_signs(jobs, job, lock_folder()), wall_clock())
            plan.topics.append(plan_undo(of_job, kept, properties))
        except BlockgzError as error:
            plan.left.append(f"topic {topic.target} stays: {error.reason}; {error.remedy}")
    plan.groups.extend(sorted(name for name, found in client.members(names).items() if found.state != "DEAD"))
    return plan


def undo_restore(
    plan: RestoreUndo, folder: RestoreFolder, jobs: Store, properties: Mapping[str, str], client: KafkaGroups
) -> list[str]:
    """Delete what is planned, and write down that it is; return what could not be deleted, with the reason."""
    left = []
    folder.put(records.RestoreUndone(host=this_process(), undone_at=wall_clock()))
    for each in plan.topics:
        try:
            carry_out(each, JobFolder(jobs, each.request.job), properties, wall_clock())
            client.delete(each.request.names.group_id)
        except BlockgzError as error:
            left.append(f"topic {each.request.target}: {error.reason}; {error.remedy}")
    for name, members in client.members(plan.groups).items():
        if members.active or client.has_others(name, "", ()):
            left.append(f"group {name} stays: it has consumers, or positions in other topics")
        else:
            client.delete(name)
    return left


def deleted_topics(folder: RestoreFolder, jobs: Store) -> set[tuple[str, str]]:
    """Return the topics of a restore that were deleted on request, with their ids."""
    found = [JobFolder(jobs, job).get(JobUndone) for job in _topics(folder)[0]]
    return {(each.target, each.target_topic_id) for each in found if each is not None}
