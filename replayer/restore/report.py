"""What a restore did, as plain JSON values."""

from collections.abc import Sequence
from typing import Any

import msgspec

from blockgz.archive.damage import Verdict, worst
from replayer.restore.acls import AclsOutcome
from replayer.restore.consumers import GroupsOutcome
from replayer.restore.document import RestorePlan
from replayer.restore.topic_replay import TopicOutcome


def plan_document(name: str, plan: RestorePlan, seconds: float, cut_bytes: int = 0) -> dict[str, Any]:
    """The plan, the seconds that it takes at the least, and the bytes that were read to find its cuts."""
    whole: dict[str, Any] = msgspec.to_builtins(plan)
    totals = {"records": plan.records, "bytes": plan.bytes, "seconds": round(seconds, 3), "cut_bytes": cut_bytes}
    totals |= {"acls": plan.acls, "topics_with_unknown_acls": plan.without_acls}
    return {"restore": name, "totals": totals, "plan": whole}


def outcome_document(
    name: str,
    plan: RestorePlan,
    outcomes: Sequence[TopicOutcome],
    groups: GroupsOutcome | None,
    groups_error: str | None,
    seconds: float,
    acls: AclsOutcome | None = None,
) -> dict[str, Any]:
    """Return what was done; `verdict` is OK only if every topic is restored and proved, and groups and ACLs are set."""
    restored = all(each.state == "restored" for each in outcomes)
    lacks = any(each.topic.lacks or each.topic.gaps or each.skipped for each in outcomes)
    verdicts = [each.verdict for each in outcomes if each.verdict is not None]
    verdicts += [Verdict.UNPROVED] if plan.prove == "none" else []
    failed = groups_error or (acls is not None and acls.error) or not restored
    verdicts += [Verdict.FAILURE] if failed else [Verdict.WARNING] if lacks else []
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
                "do": each.do,
                "gaps": each.topic.gaps,
                "lacks": each.topic.lacks,
                "skipped": each.skipped,
                "notes": [*each.topic.notes, *each.notes],
            }
            for each in outcomes
        ],
        "left_out": msgspec.to_builtins(plan.left_out),
        "groups": None if groups is None else groups.positions,
        "group_notes": [] if groups is None else list(groups.notes),
        "groups_error": groups_error,
        "acls": None if acls is None else dict(acls.created),
        "acl_notes": [] if acls is None else list(acls.notes),
        "acls_error": None if acls is None else acls.error,
        "warnings": plan.warnings,
    }
