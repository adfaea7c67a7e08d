"""From what is known to the plan: refusals first, then what the operator should know before saying yes."""

from collections.abc import Iterator

from .republish_plan import LOSSLESS_FORMATS, Preflight, RepublishPlan
from .republish_refusals import existing_target, refuse
from .topic_facts import TopicFacts


def make_plan(preflight: Preflight) -> RepublishPlan:
    """The plan; raises NoSuchTopic or ReplayRefused where the target would not keep the records as they are."""
    refuse(preflight)
    target = existing_target(preflight)
    warnings = tuple(_warnings(preflight, target))
    request = preflight.request
    return RepublishPlan(
        request.topic,
        request.target,
        target.num_partitions,
        preflight.sources,
        warnings,
        preflight.router,
        preflight.job,
        preflight.notes,
    )


def _warnings(preflight: Preflight, target: TopicFacts) -> Iterator[str]:
    config = target.config
    if config is None:
        yield (
            f"the broker does not tell the configuration of {target.name}: "
            "retention, timestamps and sizes are not checked"
        )
    else:
        if config.compacts:
            yield f"{target.name} is compacted: of records with the same key only the newest will stay"
        if config.deletes and config.retention_bytes is not None:
            yield f"{target.name} keeps at most retention.bytes={config.retention_bytes} a partition"
    job = preflight.job
    if job.begun:
        yield f"job {job.name} goes on: {job.written} records of it are in {target.name} already"
    if job.begun and not job.transactional:
        yield "what was sent after the last checkpoint of the run before is sent again"
    held = {partition: bounds for partition, bounds in preflight.watermarks.items() if bounds.end > bounds.low}
    for lane in preflight.lanes:
        if lane in held:
            low, end = held[lane]
            yield f"{target.name}:{lane} is not empty ({low}..{end}): the records are appended"
    for source in preflight.sources:
        for gap in source.gaps:
            yield f"partition {source.partition} has a recorded gap at {gap.start}..{gap.end} ({gap.reason})"
        if source.timestamps is not None and source.timestamps.min <= 0 <= source.timestamps.max:
            yield (
                f"partition {source.partition} may hold records with timestamp 0, which the client cannot send: "
                "they get timestamp 1"
            )
        for name in sorted(source.record_formats - LOSSLESS_FORMATS):
            yield f"partition {source.partition} was archived as {name}: keys, headers and timestamps were not kept"
