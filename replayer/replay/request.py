"""What is asked of a replay: which records, what becomes of them on their way, and the topic they go to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from blockgz.archive.archive import TopicPartitions
from blockgz.archive.request import STOPS, SelectionRequest
from index_format.keys import parse_topic_folder
from replayer.kafka.topic_facts import NewTopic
from replayer.replay.pace import Slowest
from replayer.replay.routing import RoutingRequest
from replayer.replay.seams import PATIENCE_SECONDS
from replayer.replay.sinks.compression import Compression
from replayer.replay.stages import AddHeader, KeepTimestamps, TimestampPolicy
from replayer.transforms.chain import Chain


@dataclass(frozen=True)
class Shape:
    """How records are spread and changed, and what is done to the target topic."""

    routing: RoutingRequest = field(default_factory=RoutingRequest)
    timestamps: TimestampPolicy = field(default_factory=KeepTimestamps)
    strip_headers: tuple[str, ...] = ()
    add_headers: tuple[AddHeader, ...] = ()
    provenance: bool = False
    tombstones: Literal["keep", "drop"] = "keep"
    chain: Chain | None = None
    on_transform_error: Literal["fail", "skip"] = "fail"
    allow_unchanged: bool = False
    """Whether transforms may do nothing to the first records."""
    create_topic: bool = False
    topic_config: Mapping[str, str] = field(default_factory=dict)
    new_topic: NewTopic | None = None
    """What `create_topic` makes, where that is said in full."""
    append: bool = False
    retention: Literal["refuse", "hold"] = "refuse"
    undo_retention: bool = False


@dataclass(frozen=True)
class ReplayRequest:
    """What is replayed, where to, and how; without `job` the job gets a name that follows from the rest.

    `jobs` is the address of the folders of jobs, `patience` the seconds that a cluster may stand still. Without
    `compression` the producer's settings say it.
    """

    topic: TopicPartitions
    target: str
    selection: SelectionRequest = field(default_factory=SelectionRequest)
    shape: Shape = field(default_factory=Shape)
    on_damage: str = STOPS
    into_source: bool = False
    transactional: bool = False
    partial: bool = False
    resume: bool = False
    follows: bool = False
    """The job has no end: what is resumed goes on with what was archived since."""
    job: str | None = None
    jobs: str | None = None
    patience: float = PATIENCE_SECONDS
    pace: Slowest = field(default_factory=Slowest)
    compression: Compression | None = None

    @property
    def by_rules(self) -> "list[ReplayRequest]":
        """The request, and when it resumes without a rule for `--at`, the same by the rule of earlier jobs."""
        older = self.selection.positions.as_first if self.resume else None
        return [self] if older is None else [self, replace(self, selection=replace(self.selection, positions=older))]

    def producing(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """What producers are made with; raises UsageError where the settings contradict `compression`."""
        return self.compression.added_to(properties) if self.compression else properties


def named_target(to_topic: str | None, topic: TopicPartitions, chain: Chain | None) -> str | None:
    """The topic that records go to: `to_topic`, with `{topic}` replaced, or what transforms say; None if neither."""
    name = parse_topic_folder(topic.topic).topic
    if to_topic is not None:
        return to_topic.replace("{topic}", name)
    return chain.routed_name(name) if chain else None
