"""The target of a replay: found or planned before anything is changed, made ready for the records, and set back."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blockgz_runtime.errors import NoSuchTopic
from index_format.keys import parse_topic_folder
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import ConfigChange, NewTopic, TopicFacts
from replayer.read.archive import Archive
from replayer.replay.pipeline import KeepPartitions, Pipeline, Router, Stage
from replayer.replay.plan import SourcePartition, TimeBounds
from replayer.replay.request import ReplayRequest, Shape
from replayer.replay.routing import make_router
from replayer.replay.stages import AddProvenance, DropTombstones, KeepTimestamps, LeftOut, StripHeaders, TransformStage
from replayer.replay.target_topic import (
    RetentionFile,
    new_topic,
    plan_hold,
    plan_undo,
    still_means,
    while_held,
)


@dataclass(frozen=True)
class ShapedTarget:
    """What records go through and the topic they go to; `facts` are those while they arrive, None if it is missing."""

    name: str
    facts: TopicFacts | None
    creates: NewTopic | None
    holds: bool
    pipeline: Pipeline
    left_out: LeftOut
    notes: tuple[str, ...]


async def shaped_target(request: ReplayRequest, archive: Archive, admin: KafkaAdmin) -> ShapedTarget:
    """Asks archive and cluster; changes nothing. Raises ReplayRefused where --partitions does not fit."""
    shape, topic, target = request.shape, request.topic.topic, request.target
    found = await asyncio.to_thread(admin.topic, target)
    creates = await _planned(shape, archive, topic, target) if found is None and shape.create_topic else None
    facts = creates.facts if creates else found
    holds = (
        shape.retention == "hold"
        and facts is not None
        and facts.config is not None
        and facts.config.deletes
        and (facts.config.retention_ms, facts.config.retention_bytes) != (None, None)
    )
    router: Router = make_router(shape.routing, target, facts.num_partitions) if facts else KeepPartitions()
    left_out = LeftOut()
    stages = tuple(_stages(shape, parse_topic_folder(topic).topic, target, left_out))
    pipeline = Pipeline(stages, router)
    notes = tuple(_notes(shape, pipeline, facts, creates, holds=holds))
    held = while_held(facts) if facts is not None and holds else facts
    return ShapedTarget(target, held, creates, holds, pipeline, left_out, notes)


async def _planned(shape: Shape, archive: Archive, topic: str, target: str) -> NewTopic:
    archived = await archive.topic_config(topic)
    numbers = await archive.partitions(topic)
    source_partitions = max([archived.partitions if archived else 0, *(number + 1 for number in numbers)])
    return new_topic(target, shape.routing.partitions_for(source_partitions), archived, shape.topic_config)


def _stages(shape: Shape, topic: str, target: str, left_out: LeftOut) -> Iterator[Stage]:
    drops = shape.tombstones == "drop"
    if drops:
        yield DropTombstones()
    if shape.chain is not None:
        yield TransformStage(shape.chain, topic, target, shape.on_transform_error, left_out)
        if drops:
            # A transform may make values null.
            yield DropTombstones()
    if shape.strip_headers:
        yield StripHeaders(shape.strip_headers)
    yield from shape.add_headers
    if shape.provenance:
        yield AddProvenance(topic)
    if not isinstance(shape.timestamps, KeepTimestamps):
        yield shape.timestamps


def _notes(
    shape: Shape, pipeline: Pipeline, facts: TopicFacts | None, creates: NewTopic | None, *, holds: bool
) -> Iterator[str]:
    if creates is not None:
        settings = ", ".join(f"{name}={value}" for name, value in creates.config.items())
        yield f"topic {creates.name} is made with {creates.partitions} partitions and {settings}"
    if holds and facts is not None and facts.config is not None:
        limits = {"retention.ms": facts.config.retention_ms, "retention.bytes": facts.config.retention_bytes}
        again = " and ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        yield (
            f"retention of {facts.name} is unlimited until the replay is complete; then {again} holds again, and the "
            "broker deletes what is beyond"
        )
    if not isinstance(pipeline.router, KeepPartitions):
        yield f"records go to partitions by: {pipeline.router.fingerprint}"
    for stage in pipeline.stages:
        if isinstance(stage, TransformStage):
            names = ", ".join(step.alias for step in stage.chain.steps)
            yield f"on the way: transforms {names}; at a record that they cannot handle: {shape.on_transform_error}"
            yield "what transforms make of keys and sizes is not checked against the target beforehand"
        else:
            yield f"on the way: {stage.fingerprint}"


def as_sent(sources: Sequence[SourcePartition], shape: Shape, now_ms: int) -> tuple[SourcePartition, ...]:
    """The sources with the timestamps that their records will have."""
    return tuple(
        replace(source, timestamps=TimeBounds(*(shape.timestamps.moved(time, now_ms) for time in source.timestamps)))
        if source.timestamps is not None
        else source
        for source in sources
    )


def make_ready(target: ShapedTarget, admin: KafkaAdmin, properties: Mapping[str, str]) -> None:
    """Makes the topic, and holds its retention, what it was having been written down first."""
    if target.creates is None and not target.holds:
        return
    changes = TopicChanges(properties)
    if target.creates is not None:
        changes.create(target.creates)
    if target.holds:
        file = retention_file(admin, properties, target.name)
        topic_id = target.facts.topic_id if target.facts else None
        hold = file.read()
        # What an earlier run wrote down is what the retention was before any of them.
        if hold is None or not still_means(hold, target.name, topic_id):
            hold = plan_hold(target.name, topic_id, changes.own_config(target.name))
            file.write(hold)
        changes.alter(target.name, ConfigChange(hold.held))


def set_back(name: str, admin: KafkaAdmin, properties: Mapping[str, str]) -> str | None:
    """Sets the retention back that was written down, and says so; None where nothing was."""
    file = retention_file(admin, properties, name)
    hold = file.read()
    if hold is None:
        return None
    facts = admin.topic(name)
    if facts is not None and not still_means(hold, name, facts.topic_id):
        file.remove()
        return f"topic {name} is another one than its retention was held of: nothing to set back"
    changes = TopicChanges(properties)
    change = plan_undo(hold, changes.own_config(name))
    if change:
        changes.alter(name, change)
    file.remove()
    done = [f"{setting}={value}" for setting, value in change.values.items()]
    done += [f"{setting} of the cluster" for setting in change.removed]
    done += [f"{setting} left as somebody set it meanwhile" for setting in change.kept]
    return f"retention of {name} is set back: {', '.join(done) or 'it was already'}"


def undo_retention(name: str, admin: KafkaAdmin, properties: Mapping[str, str]) -> str:
    """As `set_back`; raises NoSuchTopic where there is no such topic."""
    if admin.topic(name) is None:
        raise NoSuchTopic(
            f"the cluster has no topic {name!r}", why="nothing can be set back", remedy="check --to-topic and -b"
        )
    return set_back(name, admin, properties) or f"no retention of {name} is held"


def retention_file(admin: KafkaAdmin, properties: Mapping[str, str], name: str) -> RetentionFile:
    """Where the retention of a topic is written down."""
    return RetentionFile(state_folder() / "retention", admin.cluster_id or properties["bootstrap.servers"], name)


def state_folder() -> Path:
    """Where this machine keeps what replays write down."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "blockgz"
