"""The checks before a replay: what the target would lose, rewrite or reorder is refused before the first record."""

from collections.abc import Iterator

from blockgz.archive.cuts import cut_lines
from blockgz.archive.positions import OffsetRange
from blockgz.errors import NoSuchTopic
from blockgz.units import time_text
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import TopicConfig, TopicFacts
from replayer.replay.plan import LOSSLESS_FORMATS, Preflight, ReplayPlan, SourcePartition, TargetRequest
from replayer.replay.routing import SpreadByKey
from replayer.replay.stages import NO_TIMESTAMP


def make_plan(preflight: Preflight) -> ReplayPlan:
    """The plan; raises NoSuchTopic or ReplayRefused where the target would not keep the records as they are."""
    target = _fit_target(preflight)
    return ReplayPlan(
        preflight.request.topic,
        preflight.request.target,
        target.num_partitions,
        preflight.sources,
        tuple(_warnings(preflight, target)),
        preflight.router,
        preflight.job,
        preflight.notes,
        preflight.lifted,
        preflight.cuts,
        preflight.cut_bytes,
    )


def _warnings(preflight: Preflight, target: TopicFacts) -> Iterator[str]:
    config = target.config
    if config is None:
        yield (
            f"the broker does not report the configuration of {target.name}, or it may not be asked for: "
            "retention, timestamps and sizes are not checked"
        )
    else:
        if config.compacts:
            yield f"{target.name} is compacted: only the newest record of each key will stay"
        if config.deletes and config.retention_bytes is not None:
            yield f"{target.name} keeps at most retention.bytes={config.retention_bytes} a partition"
    job = preflight.job
    if job.begun:
        yield f"job {job.name} is resumed: {job.written} records of it are in {target.name} already"
    if job.begun and not job.transactional:
        yield "what was sent after the previous run's last checkpoint is sent again"
    held = {partition: bounds for partition, bounds in preflight.watermarks.items() if bounds.end > bounds.low}
    for lane in preflight.lanes:
        if lane in held:
            low, end = held[lane]
            yield f"{target.name}:{lane} is not empty, it holds [{low}..{end}): the records are appended"
    for source in preflight.sources:
        yield from _source_warnings(source)
    yield from cut_lines(preflight.cuts)


def _source_warnings(source: SourcePartition) -> Iterator[str]:
    if source.pruned is not None:
        yield pruned_text(source.partition, source.pruned)
    for gap in source.gaps:
        yield f"partition {source.partition} has a recorded gap [{gap.start}..{gap.end}) ({gap.reason})"
    if source.timestamps is not None and source.timestamps.min <= 0 <= source.timestamps.max:
        yield (
            f"partition {source.partition} may hold records with timestamp 0, which the client cannot send: "
            "they get timestamp 1"
        )
    for name in sorted(source.record_formats - LOSSLESS_FORMATS):
        yield f"partition {source.partition} was archived as {name}: keys, headers and timestamps were not kept"


def pruned_text(partition: int, pruned: OffsetRange) -> str:
    """What of a partition is not replayed, because the archive keeps it no longer."""
    most = pruned.end - pruned.start
    return f"partition {partition} was pruned: up to {most} records, offsets [{pruned.start}..{pruned.end}), are gone"


def _fit_target(preflight: Preflight) -> TopicFacts:
    """The target; raises the first refusal there is: NoSuchTopic or ReplayRefused."""
    refuse_source(preflight.request)
    for check in (_refuse_second_copy, _refuse_lost_keys, _refuse_impossible_times):
        check(preflight)
    target = preflight.target
    if target is None:
        name, needed = preflight.request.target, _needed_partitions(preflight)
        raise NoSuchTopic(
            f"the cluster has no topic {name!r}",
            why="a replay creates a topic only on request",
            remedy=f"add --create-topic, or create it: kafka-topics.sh --create --topic {name} --partitions {needed} "
            "--config retention.ms=-1",
        )
    for check_target in (_refuse_too_few_partitions, _refuse_unknown_past, _refuse_foreign_records):
        check_target(preflight, target)
    if target.config is not None:
        refuse_by_config(preflight, target.config)
    return target


def refuse_by_config(preflight: Preflight, config: TopicConfig) -> None:
    """Raises ReplayRefused where the target's configuration would lose, rewrite or reject the records."""
    for check in (
        _refuse_log_append_time,
        _refuse_retention,
        _refuse_times,
        _refuse_missing_keys,
        _refuse_large_records,
    ):
        check(preflight, config)


def refuse_source(request: TargetRequest) -> None:
    """Raises ReplayRefused where the records would go to the topic that they come from, unless that is wanted."""
    if request.target == request.topic and not request.into_source:
        raise ReplayRefused(
            f"{request.target} is the topic that was archived",
            why="the replay would append a second copy of its records to it",
            remedy="choose another topic with --to-topic, or add --into-source if this is what you want",
        )


def _refuse_second_copy(preflight: Preflight) -> None:
    job = preflight.job
    if job.begun and not job.resume:
        state = "is complete" if job.complete else "has started and is not complete"
        raise ReplayRefused(
            f"job {job.name} {state}",
            why=f"{job.written} of its records are in {preflight.request.target}, and this would write them again",
            remedy="add --resume to continue it, or --job NAME to write another copy",
        )


def _refuse_unknown_past(preflight: Preflight, target: TopicFacts) -> None:
    """Nothing recorded and an empty target: the job was broken off before its first record. Otherwise nobody knows."""
    job = preflight.job
    held = [lane for lane in preflight.lanes if lane in preflight.watermarks and preflight.watermarks[lane].end]
    if job.resume and not job.begun and held:
        raise ReplayRefused(
            f"there is nothing to resume: nothing is recorded for job {job.name}",
            why=f"{target.name}:{held[0]} has had records, and it is unknown which of them came from this replay",
            remedy="repeat the first command unchanged, with its --job; or remove --resume to append all records",
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
        remedy=f"choose a topic with at least {needed} partitions, fold them into fewer with --partitions "
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
    retention, times = config.retention_ms, _known_times(preflight)
    if config.deletes and retention is not None and times and min(times) < preflight.now_ms - retention:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} would delete the records soon after they arrive",
            why=f"its retention.ms is {retention} ({_duration(retention)}) and the oldest are of "
            f"{time_text(min(times))}",
            remedy=f"{_alter(preflight)}retention.ms=-1"
            + (", or lift it until the replay is complete with --retention hold" if preflight.can_hold else ""),
        )


def _refuse_times(preflight: Preflight, config: TopicConfig) -> None:
    before, after, now = config.timestamp_before_max_ms, config.timestamp_after_max_ms, preflight.now_ms
    times = _known_times(preflight)
    if before is not None and times and min(times) < now - before:
        raise _out_of_range(preflight, "before", before, "as old", f"oldest are of {time_text(min(times))}")
    if after is not None and times and max(times) > now + after:
        raise _out_of_range(preflight, "after", after, "as far in the future", f"newest are of {time_text(max(times))}")


def _out_of_range(preflight: Preflight, side: str, limit: int, how: str, found: str) -> ReplayRefused:
    setting = f"message.timestamp.{side}.max.ms"
    return ReplayRefused(
        f"topic {preflight.request.target!r} takes no records {how} as these",
        why=f"its {setting} is {limit} ({_duration(limit)}) and the {found}",
        remedy=f"{_alter(preflight)}{setting}={2**63 - 1}",
    )


def _refuse_missing_keys(preflight: Preflight, config: TopicConfig) -> None:
    found = preflight.findings.without_key
    if config.compacts and found is not None:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} does not accept records without a key",
            why=f"its cleanup.policy is {','.join(sorted(config.cleanup_policy))}, and the record at partition "
            f"{found.partition}, offset {found.offset} has none",
            remedy=_alter(preflight) + "cleanup.policy=delete, or choose another topic",
        )


def _refuse_large_records(preflight: Preflight, config: TopicConfig) -> None:
    found, limit = preflight.findings.too_large, config.max_message_bytes
    if found is not None and limit is not None and found.bytes > limit:
        raise ReplayRefused(
            f"topic {preflight.request.target!r} does not accept records as large as some of these",
            why=f"its max.message.bytes is {limit}, and the record at partition {found.place.partition}, offset "
            f"{found.place.offset} takes {found.bytes} bytes even compressed",
            remedy=f"{_alter(preflight)}max.message.bytes={found.bytes * 2}",
        )


def _refuse_lost_keys(preflight: Preflight) -> None:
    lossy = [source for source in preflight.sources if source.record_formats - LOSSLESS_FORMATS]
    if lossy and isinstance(preflight.router, SpreadByKey):
        raise ReplayRefused(
            "these records cannot be spread by key",
            why=f"partition {lossy[0].partition} was archived as {', '.join(sorted(lossy[0].record_formats))}, without "
            "keys: records of one key would go to different partitions and lose their order",
            remedy="remove --partitions, or use a number or a map",
        )


def _refuse_impossible_times(preflight: Preflight) -> None:
    for source in preflight.sources:
        if source.timestamps is not None and source.timestamps.min < NO_TIMESTAMP:
            raise ReplayRefused(
                "some records would get timestamps before 1970",
                why=f"the oldest of partition {source.partition} would be {source.timestamps.min} ms since the epoch, "
                "and Kafka accepts none below 0",
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
                why=f"{target.name}:{lane} holds offsets [{bounds.low}..{bounds.end}), which are not from this replay",
                remedy="choose an empty topic, or add --append to write after them",
            )


def _needed_partitions(preflight: Preflight) -> int:
    return max(preflight.lanes, default=0) + 1


def _alter(preflight: Preflight) -> str:
    if preflight.creates:
        return "add --topic-config "
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {preflight.request.target} --add-config "


def _known_times(preflight: Preflight) -> list[int]:
    """The bounds of all partitions' timestamps, apart from records that have none."""
    return [time for source in preflight.sources for time in source.timestamps or () if time >= 0]


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"
