"""Replays for Python programs: keyword arguments, planned and carried out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_type_hints

from blockgz.archive.archive import ArchivePlace, ArchiveReader
from blockgz.archive.cuts import refuse_doubtful
from blockgz.archive.selection import SKIPS, STOPS, DamagePolicies
from replayer.library_choice import Choice, as_bytes, chosen, one_of
from replayer.replay.jobs.folder import open_jobs
from replayer.replay.pace import Commands, make_pace
from replayer.replay.pipeline import AddHeader, LeftOut
from replayer.replay.plan import ReplayPlan
from replayer.replay.proof import JobProof, prove_job
from replayer.replay.replaying import planned_replay
from replayer.replay.request import ReplayRequest, Surroundings, named_target
from replayer.replay.run import Progress, ReplayResult

# HOST:PORT, or librdkafka's settings, `bootstrap.servers` among them.
Cluster = str | Mapping[str, str]


class ReplayChoice(Choice, total=False):
    """The arguments of a replay, as the options of `replayer replay`. None is the default."""

    routing: str
    """The target partitions: "keep", "by-key", "by-key:N", "N" or a map such as "0:2,1-3:0"."""
    timestamps: str
    """"keep", "now" or "shift=+30d"."""
    strip_headers: Iterable[str]
    add_headers: Mapping[str, bytes | str]
    provenance: bool
    """Adds a header with the record's place in the archive."""
    tombstones: Literal["keep", "drop"]
    transforms: str | Path | None
    """A file of Kafka Connect's transforms."""
    on_transform_error: Literal["fail", "skip"]
    allow_unchanged: bool
    """Allows transforms that do nothing to the first 1,000 records."""
    create_topic: bool
    topic_config: Mapping[str, str]
    """Settings of the topic that is created."""
    omit_topic_config: Iterable[str]
    """Settings of the archived topic that are left out."""
    append: bool
    """Allows a topic that holds records already."""
    retention: Literal["refuse", "hold"]
    into_source: bool
    transactional: bool
    """Exactly once, over crashes and `resume`, too."""
    partial: bool
    """Replays what is there if the archive lacks partitions."""
    resume: bool
    job: str | None
    jobs: str | None
    """The folder of jobs."""
    patience: float
    """Seconds that brokers may stand still."""
    rate: str | None
    """"5000/s" or "20MB/s"."""
    speed: str | None
    """"1x": spaced as their timestamps are."""
    compression: str | None


class Replayed(NamedTuple):
    """The plan and result of a replay."""

    plan: ReplayPlan
    result: ReplayResult
    left_out: LeftOut
    """How many records transforms left out."""


def cluster_properties(kafka: Cluster) -> dict[str, str]:
    """Return librdkafka's settings."""
    return {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)


def replay_request(topic: str, to_topic: str, choice: ReplayChoice, *, skips_damage: bool = False) -> ReplayRequest:
    """Return the request that keyword arguments make; raises UsageError or BadName."""
    given: dict[str, Any] = {name: value for name, value in choice.items() if value is not None}
    records = {name: given.pop(name) for name in Choice.__annotations__ if name in given}
    wanted, selection = chosen(topic, cast(Choice, records))
    given["pace"] = make_pace(given.pop("rate", None), given.pop("speed", None))
    unknown = given.keys() - {"pace"} - ReplayChoice.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
    if "transforms" in given:
        given["chain"] = given.pop("transforms")
    if "add_headers" in given:
        given["add_headers"] = tuple(AddHeader(name, as_bytes(value)) for name, value in given["add_headers"].items())
    hints = get_type_hints(ReplayRequest, include_extras=True)
    for name, value in given.items():
        for option in getattr(hints[name], "__metadata__", ()):
            if option.choices:
                one_of(name, value, option.choices)
            elif option.parse is not None and isinstance(value, str | Path):
                given[name] = option.parse(value)
            elif name in ("strip_headers", "omit_topic_config"):
                given[name] = tuple(value)
    target = named_target(to_topic, wanted, None)
    assert target is not None
    return ReplayRequest(wanted, target, selection, on_damage=SKIPS if skips_damage else STOPS, **given)


async def plan(archive: ArchiveReader, place: ArchivePlace, request: ReplayRequest, kafka: Cluster) -> ReplayPlan:
    """Return the plan of a replay; writes nothing."""
    async with planned_replay(request, _surroundings(archive, place, request.jobs, kafka)) as planned:
        return planned.plan


async def replay(
    archive: ArchiveReader, place: ArchivePlace, request: ReplayRequest, kafka: Cluster, progress: Progress
) -> tuple[Replayed, DamagePolicies]:
    async with planned_replay(request, _surroundings(archive, place, request.jobs, kafka)) as planned:
        refuse_doubtful(planned.plan.cuts)
        async with planned.begun() as run:
            result = await run(Commands(), progress)
            await planned.settled(result)
        return Replayed(planned.plan, result, planned.target.left_out), planned.damage


async def prove(archive: ArchiveReader, place: ArchivePlace, job: str, jobs: str | None, kafka: Cluster) -> JobProof:
    return await prove_job(job, _surroundings(archive, place, jobs, kafka))


def _surroundings(archive: ArchiveReader, place: ArchivePlace, jobs: str | None, kafka: Cluster) -> Surroundings:
    return Surroundings(archive, cluster_properties(kafka), open_jobs(jobs, place))
