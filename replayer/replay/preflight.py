"""The checks before a replay: what the target would lose, rewrite or reorder is refused before the first record.

Each check looks at the `Preflight` and raises, or returns; `REFUSALS` is their order. Checks of `TARGET_REFUSALS` are
asked only where the target exists, those of `CONFIG_REFUSALS` only where the broker shows its configuration.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from blockgz_runtime.errors import NoSuchTopic
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import TopicConfig, TopicFacts
from replayer.replay.plan import LOSSLESS_FORMATS, Preflight, ReplayPlan, SourcePartition
from replayer.replay.routing import SpreadByKey
from replayer.replay.stages import NO_TIMESTAMP


def make_plan(preflight: Preflight) -> ReplayPlan:
    """The plan; raises NoSuchTopic or ReplayRefused where the target would not keep the records as they are."""
    refuse(preflight)
    target = existing_target(preflight)
    warnings = tuple(_warnings(preflight, target))
    request = preflight.request
    return ReplayPlan(
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
        yield f"job {job.name} is resumed: {job.written} records of it are in {target.name} already"
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


def refuse(preflight: Preflight) -> None:
    """Raises the first refusal there is: NoSuchTopic or ReplayRefused."""
    for check in REFUSALS:
        check(preflight)
    target = existing_target(preflight)
    for check_target in TARGET_REFUSALS:
        check_target(preflight, target)
    if target.config is not None:
        refuse_by_config(preflight, target.config)


def refuse_by_config(preflight: Preflight, config: TopicConfig) -> None:
    """Raises ReplayRefused where the target's configuration would lose, rewrite or reject the records."""
    for check in CONFIG_REFUSALS:
        check(preflight, config)


def existing_target(preflight: Preflight) -> TopicFacts:
    """The target; raises NoSuchTopic where there is none."""
    if preflight.target is not None:
        return preflight.target
    target, needed = preflight.request.target, _needed_partitions(preflight)
    raise NoSuchTopic(
        f"the cluster has no topic {target!r}",
        why="a replay creates a topic only on request",
        remedy=f"add --create-topic, or create it: kafka-topics.sh --create --topic {target} --partitions {needed} "
        "--config retention.ms=-1",
    )


def _refuse_source(preflight: Preflight) -> None:
    request = preflight.request
    if request.target == request.topic and not request.into_source:
        raise ReplayRefused(
            f"{request.target} is the topic that the archive was made from",
            why="a replay would append a second copy of its records to it",
            remedy="name another topic with --to-topic, or say --into-source if that is what you want",
        )


def _refuse_second_copy(preflight: Preflight) -> None:
    job = preflight.job
    if job.begun and not job.resume:
        state = "is complete" if job.complete else "was begun and is not complete"
        raise ReplayRefused(
            f"job {job.name} {state}",
            why=f"{job.written} records of it are in {preflight.request.target}, and this would write them again",
            remedy="add --resume to resume it, or --job NAME to write another copy",
        )


def _refuse_unknown_past(preflight: Preflight, target: TopicFacts) -> None:
    """Nothing recorded and an empty target: the job was broken off before its first record. Otherwise nobody knows."""
    job = preflight.job
    held = [lane for lane in preflight.lanes if lane in preflight.watermarks and preflight.watermarks[lane].end]
    if job.resume and not job.begun and held:
        raise ReplayRefused(
            f"there is nothing to resume: nothing is recorded of job {job.name}",
            why=f"{target.name}:{held[0]} has had records, and which of this replay's are among them is not known",
            remedy="repeat the first command as it was, with its --job; or leave --resume out to append all records",
        )


def _refuse_too_few_partitions(preflight: Preflight, target: TopicFacts) -> None:
    needed = _needed_partitions(preflight)
    if target.num_partitions >= needed:
        return
    source = next(s.partition for s in preflight.sources if needed - 1 in preflight.router.targets(s.partition))
    raise ReplayRefused(
        f"topic {target.name!r} has too few partitions",
        why=f"it has {target.num_partitions}, and partition {source} of {preflight.request.topic} goes to partition "
        f"{needed - 1}",
        remedy=f"name a topic with at least {needed} partitions, fold them into fewer with --partitions "
        f"{target.num_partitions}, or spread records with --partitions by-key",
    )


def _refuse_log_append_time(preflight: Preflight, config: TopicConfig) -> None:
    if config.timestamp_type == "LogAppendTime":
        raise ReplayRefused(
            f"topic {preflight.request.target!r} would replace the records' timestamps",
            why="its message.timestamp.type is LogAppendTime",
            remedy=_alter(preflight) + "message.timestamp.type=CreateTime",
        )


def _refuse_retention(preflight: Preflight, config: TopicConfig) -> None:
    retention, oldest = config.retention_ms, _oldest(preflight)
    if config.deletes and retention is not None and oldest is not None and oldest < preflight.now_ms - retention:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} would delete the records soon after they arrive",
            why=f"its retention.ms is {retention} ({_duration(retention)}) and the oldest are of {_time(oldest)}",
            remedy=f"{_alter(preflight)}retention.ms=-1"
            + (", or hold it until the replay is done with --retention hold" if preflight.can_hold else ""),
        )


def _refuse_too_old(preflight: Preflight, config: TopicConfig) -> None:
    before, oldest = config.timestamp_before_max_ms, _oldest(preflight)
    if before is not None and oldest is not None and oldest < preflight.now_ms - before:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} takes no records as old as these",
            why=f"its message.timestamp.before.max.ms is {before} ({_duration(before)}) and the oldest are of "
            f"{_time(oldest)}",
            remedy=f"{_alter(preflight)}message.timestamp.before.max.ms={2**63 - 1}",
        )


def _refuse_too_new(preflight: Preflight, config: TopicConfig) -> None:
    after = config.timestamp_after_max_ms
    newest = max((time for source in preflight.sources for time in _known_times(source)), default=None)
    if after is not None and newest is not None and newest > preflight.now_ms + after:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} takes no records as far in the future as these",
            why=f"its message.timestamp.after.max.ms is {after} ({_duration(after)}) and the newest are of "
            f"{_time(newest)}",
            remedy=f"{_alter(preflight)}message.timestamp.after.max.ms={2**63 - 1}",
        )


def _refuse_missing_keys(preflight: Preflight, config: TopicConfig) -> None:
    found = preflight.findings.without_key
    if config.compacts and found is not None:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} takes no records without a key",
            why=f"its cleanup.policy is {','.join(sorted(config.cleanup_policy))}, and the record at partition "
            f"{found.partition}, offset {found.offset} has none",
            remedy=_alter(preflight) + "cleanup.policy=delete, or choose another topic",
        )


def _refuse_large_records(preflight: Preflight, config: TopicConfig) -> None:
    solo, limit = preflight.findings.largest_solo, config.max_message_bytes
    if solo is not None and limit is not None and solo.bytes > limit:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} takes no record as large as some of these",
            why=f"its max.message.bytes is {limit}, and the record at partition {solo.place.partition}, offset "
            f"{solo.place.offset} takes {solo.bytes} bytes even compressed",
            remedy=f"{_alter(preflight)}max.message.bytes={solo.bytes * 2}",
        )


def _refuse_lost_keys(preflight: Preflight) -> None:
    lossy = [source for source in preflight.sources if source.record_formats - LOSSLESS_FORMATS]
    if lossy and isinstance(preflight.router, SpreadByKey):
        raise ReplayRefused(
            "these records cannot be spread by key",
            why=f"partition {lossy[0].partition} was archived as {', '.join(sorted(lossy[0].record_formats))}, without "
            "keys: records of one key would go to different partitions and lose their order",
            remedy="leave --partitions out, or give a number or a map",
        )


def _refuse_impossible_times(preflight: Preflight) -> None:
    for source in preflight.sources:
        if source.timestamps is not None and source.timestamps.min < NO_TIMESTAMP:
            raise ReplayRefused(
                "some records would get timestamps before 1970",
                why=f"the oldest of partition {source.partition} would be {source.timestamps.min} ms since the epoch, "
                "and Kafka takes none below 0",
                remedy="shift less far back with --timestamps",
            )


def _refuse_foreign_records(preflight: Preflight, target: TopicFacts) -> None:
    request = preflight.request
    if request.append or request.into_source or preflight.job.begun:
        return
    for lane in preflight.lanes:
        bounds = preflight.watermarks.get(lane)
        if bounds is not None and bounds.end > bounds.low:
            raise ReplayRefused(
                f"topic {target.name!r} is not empty",
                why=f"{target.name}:{lane} holds offsets {bounds.low}..{bounds.end}, which are not of this replay",
                remedy="name an empty topic, or say --append to write behind them",
            )


REFUSALS: tuple[Callable[[Preflight], None], ...] = (
    _refuse_source,
    _refuse_second_copy,
    _refuse_lost_keys,
    _refuse_impossible_times,
)
TARGET_REFUSALS: tuple[Callable[[Preflight, TopicFacts], None], ...] = (
    _refuse_too_few_partitions,
    _refuse_unknown_past,
    _refuse_foreign_records,
)
CONFIG_REFUSALS: tuple[Callable[[Preflight, TopicConfig], None], ...] = (
    _refuse_log_append_time,
    _refuse_retention,
    _refuse_too_old,
    _refuse_too_new,
    _refuse_missing_keys,
    _refuse_large_records,
)


def _needed_partitions(preflight: Preflight) -> int:
    return max(preflight.lanes, default=0) + 1


def _alter(preflight: Preflight) -> str:
    if preflight.creates:
        return "add --topic-config "
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {preflight.request.target} --add-config "


def _oldest(preflight: Preflight) -> int | None:
    return min((time for source in preflight.sources for time in _known_times(source)), default=None)


def _known_times(source: SourcePartition) -> list[int]:
    """The bounds of a partition's timestamps, apart from records that have none."""
    return [] if source.timestamps is None else [time for time in source.timestamps if time >= 0]


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return f"{timestamp_ms} ms"
