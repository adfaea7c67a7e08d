"""The target topic of a replay: what is changed for the replay, and restored afterwards."""

import asyncio
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.selection import SKIPS
from blockgz.atomic_file import make_private_folder, replace_file
from blockgz.errors import NoSuchTopic
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import ConfigChange, NewTopic, TopicFacts
from replayer.replay.pipeline import (
    AddProvenance,
    DropTombstones,
    LeftOut,
    Pipeline,
    Routing,
    Stage,
    StripHeaders,
    TransformStage,
)
from replayer.replay.request import ReplayRequest
from replayer.topics import MIN_INSYNC, creation_note, new_topic, omission_note, partition_count, without_refused

HELD: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1"}
LIMIT = "max.message.bytes"
LARGEST_LIMIT = 2**31 - 1
# Bytes that a small record takes in Kafka beyond those of its archived form.
ROOM = 1024


def raised_limit(config: Mapping[str, str], largest_block: int) -> dict[str, str]:
    """Return the limit that a new topic needs while records arrive; empty if its own one is high enough."""
    # Twice the largest block, uncompressed, covers any record of it and the headers that a replay adds.
    needed, own = min(LARGEST_LIMIT, 2 * largest_block + ROOM), config.get(LIMIT, "")
    return {LIMIT: str(needed)} if own.isdigit() and int(own) < needed else {}


class RetentionHold(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic that a replay lifted, and what they were; written before the change is made."""

    format: str = "blockgz-retention-hold"
    version: int = 1
    topic: str
    topic_id: str | None
    before: dict[str, str | None]
    """Settings of the topic itself before the hold; None for one that came from its cluster."""
    held: dict[str, str]


def plan_hold(
    topic: str, topic_id: str | None, own: Mapping[str, str], held: Mapping[str, str] = HELD
) -> RetentionHold:
    """Return the hold on a topic that has these settings of its own."""
    return RetentionHold(topic=topic, topic_id=topic_id, before={name: own.get(name) for name in held}, held=dict(held))


def still_means(hold: RetentionHold, topic: str, topic_id: str | None) -> bool:
    """Return whether a hold is of this topic, and not of a deleted one with its name."""
    return hold.topic == topic and (hold.topic_id is None or topic_id is None or hold.topic_id == topic_id)


def plan_undo(hold: RetentionHold, own: Mapping[str, str]) -> ConfigChange:
    """Return the change that restores a topic with these settings; a setting that is not as held was changed since."""
    held = [name for name, value in hold.held.items() if own.get(name) == value]
    values = {name: value for name in held if (value := hold.before.get(name)) is not None}
    removed = tuple(name for name in held if hold.before.get(name) is None)
    kept = tuple(name for name in hold.held if name not in held and own.get(name) != hold.before.get(name))
    return ConfigChange({name: value for name, value in values.items() if value != hold.held[name]}, removed, kept)


def while_held(target: TopicFacts) -> TopicFacts:
    """Return the target as it is while its retention is lifted."""
    return replace(target, config=target.config and replace(target.config, retention_ms=None, retention_bytes=None))


class RetentionFile:
    """The file that keeps the retention of one topic of one cluster."""

    def __init__(self, folder: Path, cluster: str, topic: str) -> None:
        """`cluster` is its id, or its address if it has none."""
        digest = hashlib.sha256(f"{cluster}\n{topic}".encode()).hexdigest()[:16]
        self.path = folder / f"{topic[:200]}.{digest}.json"

    def read(self) -> RetentionHold | None:
        """Return the hold; raises ReplayRefused for a file that cannot be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=RetentionHold)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise self._refused(str(error)) from error

    def write(self, hold: RetentionHold) -> None:
        """Write it down; on the disk when the call returns. Raises ReplayRefused."""
        try:
            make_private_folder(self.path.parent)
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(hold), indent=1))
        except OSError as error:
            raise self._refused(str(error)) from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _refused(self, why: str) -> ReplayRefused:
        return ReplayRefused(
            f"{self.path} cannot store the topic's previous retention",
            why=why,
            remedy="make the file or $XDG_STATE_HOME writable",
        )


def set_back(name: str, admin: KafkaAdmin, properties: Mapping[str, str]) -> str | None:
    """Set back the settings that were written down, and return what to say about retention; None if nothing."""
    # A limit that a topic was created with is set back without a word, as the plan said.
    file = retention_file(admin, properties, name)
    hold = file.read()
    if hold is None:
        return None
    facts = admin.topic(name)
    if facts is not None and not still_means(hold, name, facts.topic_id):
        file.remove()
        return f"topic {name} is not the one whose retention was lifted: nothing to restore"
    changes = TopicChanges(properties)
    change = plan_undo(hold, changes.own_config(name))
    if change:
        changes.alter(name, change)
    file.remove()
    if not hold.held.keys() & HELD.keys():
        return None
    done = [f"{setting}={value}" for setting, value in change.values.items()]
    done += [f"{setting} of the cluster" for setting in change.removed]
    done += [f"{setting} left as somebody has set it since" for setting in change.kept]
    return f"retention of {name} is restored: {', '.join(done) or 'it was already'}"


def undo_retention(name: str, properties: Mapping[str, str]) -> str:
    """Set back what an interrupted replay left lifted, and return what was done; raise NoSuchTopic."""
    admin = KafkaAdmin(properties)
    if admin.topic(name) is None:
        raise NoSuchTopic(
            f"the cluster has no topic {name!r}", why="nothing can be restored", remedy="check --to-topic and -b"
        )
    return set_back(name, admin, properties) or f"the retention of {name} is not lifted"


def retention_file(admin: KafkaAdmin, properties: Mapping[str, str], name: str) -> RetentionFile:
    """Return the file that keeps the retention of a topic."""
    return RetentionFile(state_folder() / "retention", admin.cluster_id or properties["bootstrap.servers"], name)


def state_folder() -> Path:
    """Return the folder of this machine for what replays write down."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "blockgz"


@dataclass(frozen=True)
class TargetTopic:
    """The target of a replay and the pipeline into it; nothing is changed before `make_ready`."""

    request: ReplayRequest
    properties: Mapping[str, str]
    """librdkafka's, as they were given."""
    admin: KafkaAdmin
    facts: TopicFacts | None
    """The topic as it is during the replay; None if it is missing."""
    creates: NewTopic | None
    holds: bool
    """True if its retention is lifted until the replay is complete."""
    pipeline: Pipeline
    left_out: LeftOut
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.request.target

    @property
    def lanes(self) -> range:
        """The partitions that exist before the replay."""
        return range(0 if self.facts is None or self.creates is not None else self.facts.num_partitions)

    def make_ready(self, lifted: Mapping[str, str]) -> None:
        """Create the topic with these settings `lifted`, and hold its retention; what they were is written down first.

        It blocks.
        """
        if self.creates is None and not self.holds:
            return
        changes = TopicChanges(self.properties)
        file = retention_file(self.admin, self.properties, self.name)
        if self.creates is not None:
            own, held = self.creates.config, {**(HELD if self.holds else {}), **lifted}
            if held:
                file.write(plan_hold(self.name, None, own, held))
            changes.create(replace(self.creates, config={**own, **held}))
            return
        topic_id = self.facts.topic_id if self.facts else None
        hold = file.read()
        # What an earlier run wrote down is what the retention was before any of them.
        if hold is None or not still_means(hold, self.name, topic_id):
            hold = plan_hold(self.name, topic_id, changes.own_config(self.name))
            file.write(hold)
        changes.alter(self.name, ConfigChange(hold.held))

    async def set_back(self) -> str | None:
        """Restore the retention that any run of a job lifted, once that is complete; return what to say about it."""
        return await asyncio.to_thread(set_back, self.name, self.admin, self.properties)


async def find_target(
    request: ReplayRequest, archive: ArchiveReader, properties: Mapping[str, str], admin: KafkaAdmin
) -> TargetTopic:
    """Ask archive and cluster; change nothing.

    Raise ReplayRefused if --partitions does not fit, or the cluster would not create the topic.
    """
    target = request.target
    found = await asyncio.to_thread(admin.topic, target)
    creates = await _planned(request, archive) if found is None and request.create_topic else None
    refused: list[str] = []
    if creates is not None and request.new_topic is None:
        asked = creates.config
        creates, why = await asyncio.to_thread(without_refused, admin, creates, request.topic_config)
        refused = [omission_note(name, asked[name], text) for name, text in why.items()]
    elif creates is not None:
        await asyncio.to_thread(admin.refuse_uncreatable, creates)
    facts = creates.facts if creates else found
    holds = (
        request.retention == "hold"
        and facts is not None
        and facts.config is not None
        and facts.config.deletes
        and (facts.config.retention_ms, facts.config.retention_bytes) != (None, None)
    )
    router = request.routing.for_target(target, facts.num_partitions) if facts else Routing()
    left_out = LeftOut()
    pipeline = Pipeline(tuple(make_stages(request, left_out)), router)
    notes = (*refused, *_notes(request, pipeline, facts, creates, holds=holds))
    held = while_held(facts) if facts is not None and holds else facts
    return TargetTopic(request, properties, admin, held, creates, holds, pipeline, left_out, notes)


async def _planned(request: ReplayRequest, archive: ArchiveReader) -> NewTopic:
    if request.new_topic is not None:
        return request.new_topic
    topic = request.topic.topic
    archived = await archive.topic_config(topic)
    wanted = request.routing.partitions_for(partition_count(archived, await archive.partitions(topic)))
    return new_topic(request.target, wanted, archived, request.topic_config, {MIN_INSYNC, *request.omit_topic_config})


def make_stages(request: ReplayRequest, left_out: LeftOut) -> Iterator[Stage]:
    """Yield what changes records on their way, in order."""
    drops = request.tombstones == "drop"
    if drops:
        yield DropTombstones()
    if request.chain is not None:
        yield TransformStage(request.chain, request.source, request.target, request.on_transform_error, left_out)
        if drops:
            # A transform may make values null.
            yield DropTombstones()
    if request.strip_headers:
        yield StripHeaders(request.strip_headers)
    yield from request.add_headers
    if request.provenance:
        yield AddProvenance(request.source)
    if request.timestamps.rule != "keep":
        yield request.timestamps


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
    if pipeline.router != Routing():
        yield f"records go to partitions by: {pipeline.router.fingerprint}"
    for stage in pipeline.stages:
        if isinstance(stage, TransformStage):
            names = ", ".join(step.alias for step in stage.chain.steps)
            yield f"on the way: transforms {names}; if they cannot handle a record: {stage.on_error}"
            yield "keys and sizes after the transforms are not checked against the target beforehand"
        else:
            yield f"on the way: {stage.fingerprint}"
