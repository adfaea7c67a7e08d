"""The target of a replay: the topic, what records go through on their way to it, and making it ready for them.

Nothing is changed before `make_ready`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from blockgz.archive.archive import Archive
from blockgz.archive.request import SKIPS
from index_format.keys import parse_topic_folder
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import ConfigChange, NewTopic, TopicFacts
from replayer.replay.pipeline import KeepPartitions, Pipeline, Router, Stage
from replayer.replay.request import ReplayRequest, Shape
from replayer.replay.routing import make_router
from replayer.replay.stages import (
    AddProvenance,
    DropTombstones,
    KeepTimestamps,
    LeftOut,
    StripHeaders,
    TransformStage,
)
from replayer.replay.target_topic import HELD, RetentionHold, plan_hold, retention_file, still_means, while_held
from replayer.topics import MIN_INSYNC, creation_note, new_topic, partition_count


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
    """Asks archive and cluster; changes nothing.

    Raises ReplayRefused where --partitions does not fit, or the cluster would not create the topic.
    """
    shape, topic, target = request.shape, request.topic.topic, request.target
    found = await asyncio.to_thread(admin.topic, target)
    creates = await _planned(shape, archive, topic, target) if found is None and shape.create_topic else None
    if creates is not None:
        await asyncio.to_thread(admin.refuse_uncreatable, creates)
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
    stages = tuple(make_stages(shape, parse_topic_folder(topic).topic, target, left_out))
    pipeline = Pipeline(stages, router)
    notes = tuple(_notes(request, pipeline, facts, creates, holds=holds))
    held = while_held(facts) if facts is not None and holds else facts
    return ShapedTarget(target, held, creates, holds, pipeline, left_out, notes)


async def _planned(shape: Shape, archive: Archive, topic: str, target: str) -> NewTopic:
    if shape.new_topic is not None:
        return shape.new_topic
    archived = await archive.topic_config(topic)
    wanted = shape.routing.partitions_for(partition_count(archived, await archive.partitions(topic)))
    return new_topic(target, wanted, archived, shape.topic_config, without={MIN_INSYNC})


def make_stages(shape: Shape, topic: str, target: str, left_out: LeftOut) -> Iterator[Stage]:
    """The stages in order; `topic` is the source's name without its incarnation."""
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
    request: ReplayRequest, pipeline: Pipeline, facts: TopicFacts | None, creates: NewTopic | None, *, holds: bool
) -> Iterator[str]:
    yield from request.selection.positions.notes
    if not request.selection.filter.passes_all:
        yield f"only records with {request.selection.filter.described}"
    if request.on_damage == SKIPS:
        yield "damaged blocks are skipped, and listed at the end"
    if creates is not None:
        yield creation_note(creates)
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
            yield f"on the way: transforms {names}; if they cannot handle a record: {stage.on_error}"
            yield "keys and sizes after the transforms are not checked against the target beforehand"
        else:
            yield f"on the way: {stage.fingerprint}"


def make_ready(
    target: ShapedTarget, lifted: Mapping[str, str], admin: KafkaAdmin, properties: Mapping[str, str]
) -> None:
    """Create the topic with these settings `lifted`, and hold its retention; what they were is written down first."""
    if target.creates is None and not target.holds:
        return
    changes = TopicChanges(properties)
    file = retention_file(admin, properties, target.name)
    if target.creates is not None:
        own, held = target.creates.config, {**(HELD if target.holds else {}), **lifted}
        if held:
            before = {name: own.get(name) for name in held}
            file.write(RetentionHold(topic=target.name, topic_id=None, before=before, held=held))
        changes.create(replace(target.creates, config={**own, **held}))
    elif target.holds:
        topic_id = target.facts.topic_id if target.facts else None
        hold = file.read()
        # What an earlier run wrote down is what the retention was before any of them.
        if hold is None or not still_means(hold, target.name, topic_id):
            hold = plan_hold(target.name, topic_id, changes.own_config(target.name))
            file.write(hold)
        changes.alter(target.name, ConfigChange(hold.held))
