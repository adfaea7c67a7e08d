"""A replay that can be broken off and resumed: its name, what it was asked for, and where it stands."""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from blockgz.archive.damage import STOP, DamagePolicy
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, chosen_entries
from blockgz.errors import UsageError
from index_format.marker import ChunkEntry
from replayer.errors import ReplayRefused
from replayer.replay.ledger import LanePosition, SourceProgress
from replayer.replay.pipeline import Pipeline

HASH_DIGITS = 16
NAME_DIGITS = 12


def is_job_name(name: str) -> bool:
    """Whether a job can be called that."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) is not None and name.strip(".") != ""


def check_job_name(name: str) -> None:
    """Raises UsageError for what no job can be called."""
    if not is_job_name(name):
        raise UsageError(
            f"{name[:120]!r} is not a job name",
            why="it becomes part of names in Kafka and of file names",
            remedy="use up to 100 letters, digits, dots, dashes and underscores",
        )


@dataclass(frozen=True)
class Job:
    """What names a job in the cluster; `selection` is the hash of everything that was asked for."""

    name: str
    target: str
    selection: str

    def __post_init__(self) -> None:
        """Raises UsageError."""
        check_job_name(self.name)

    @property
    def group_id(self) -> str:
        """The group whose committed offsets are the job's positions."""
        return f"blockgz-{self.name}"

    def transactional_id(self, lane: int) -> str:
        """Who writes to a target partition: a second one fences the first."""
        return f"blockgz-{self.name}-{self.target}-{lane}"


def make_job(
    name: str | None, archive_id: str, folder: str, target: str, asked: Sequence[str], pipeline: Pipeline
) -> Job:
    """The job of a request. `asked` are partitions and positions as they were given, `folder` the topic's incarnation.

    Without a name it gets one that any other request, archive or target would change.
    """
    parts = [archive_id, folder, target, *asked, pipeline.fingerprint]
    digest = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
    return Job(name or digest[:NAME_DIGITS], target, digest[:HASH_DIGITS])


async def chain_hash(partition: ArchivedPartition, offsets: OffsetRange, on_damage: DamagePolicy = STOP) -> str:
    """A hash of the committed chunks that these offsets mean: it changes when any of them does, or goes.

    Raises a FormatError or ObjectMissing for a catalog that cannot be read; one that is passed over is hashed as such.
    """
    digest = hashlib.sha256(partition.marker.archive_id.encode())
    async for found in chosen_entries(partition, *offsets):
        if isinstance(found, ChunkEntry):
            digest.update(f"\n{found.name} {found.sha256}".encode())
        else:
            on_damage.meet(found)
            digest.update(f"\n{found.key} cannot be read".encode())
    return digest.hexdigest()


def first_positions(
    job: Job, ranges: Mapping[int, OffsetRange], histories: Mapping[int, str], pipeline: Pipeline
) -> dict[int, LanePosition]:
    """Where each lane stands before the first record; `ranges` and `histories` are those of each source partition."""
    positions = {}
    for lane, sources in sorted(pipeline.feeding(ranges).items()):
        history = hashlib.sha256("\n".join(histories[source] for source in sources).encode()).hexdigest()
        progress = {source: SourceProgress(ranges[source].start, *ranges[source]) for source in sources}
        positions[lane] = LanePosition(job.selection, history[:HASH_DIGITS], 0, progress)
    return positions


def rewritten_since(
    first: Mapping[int, LanePosition], recorded: Mapping[int, LanePosition], maintained: Container[int]
) -> dict[int, LanePosition]:
    """Where each lane stands before the first record, with the recorded history where maintainers are at work.

    They rewrite chunks, and leave the records at their offsets: the chunks cannot tell whether it is the same archive.
    """
    return {
        lane: replace(position, history=recorded[lane].history)
        if lane in recorded and any(source in maintained for source in position.sources)
        else position
        for lane, position in first.items()
    }


def followed_positions(job: Job, selections: Sequence[Selection], pipeline: Pipeline) -> dict[int, LanePosition]:
    """As `first_positions`, of a job that follows its archive up to where these end.

    Its history is the incarnation alone: chunks come, and old ones may be merged or pruned meanwhile.
    """
    ranges = {each.partition.partition: each.offsets for each in selections}
    histories = {
        each.partition.partition: f"{each.partition.marker.archive_id} {each.partition.keys.folder}"
        for each in selections
    }
    return first_positions(job, ranges, histories, pipeline)


def followed(selections: Sequence[Selection], recorded: Mapping[int, LanePosition]) -> list[Selection]:
    """The selections of a job that follows its archive: from where it began, up to where they end now."""
    starts = {source: each.start for position in recorded.values() for source, each in position.sources.items()}
    return [
        each._replace(offsets=OffsetRange(starts.get(each.partition.partition, each.offsets.start), each.offsets.end))
        for each in selections
    ]


def continued(recorded: Mapping[int, LanePosition], first: Mapping[int, LanePosition]) -> dict[int, LanePosition]:
    """The recorded positions of a job that follows its archive, up to where its ranges end now."""
    return {lane: position.up_to(first[lane]) if lane in first else position for lane, position in recorded.items()}


def pinned(selections: Sequence[Selection], recorded: Mapping[int, LanePosition]) -> list[Selection]:
    """The selections with the ranges that the job recorded when it began: the archive may have grown since."""
    ranges = {
        source: OffsetRange(progress.start, progress.end)
        for position in recorded.values()
        for source, progress in position.sources.items()
    }
    # What was found again just now, an end as of a time, does not count then.
    return [
        Selection(each.partition, ranges[each.partition.partition]) if each.partition.partition in ranges else each
        for each in selections
    ]


def refuse_other_job(recorded: Mapping[int, LanePosition], first: Mapping[int, LanePosition]) -> None:
    """Raises ReplayRefused where a recorded position is not one of the job that begins at `first`."""
    for lane, position in recorded.items():
        wanted = first.get(lane)
        if wanted is None or position.selection != wanted.selection:
            raise ReplayRefused(
                "this is not the replay that the job started with",
                why="it started with other partitions, positions, filters, routing, archive or topic",
                remedy="repeat the first command with --resume, or start another job with --job NAME",
            )
        if not position.same_job(wanted):
            raise ReplayRefused(
                "the archive is not the one that the job started with",
                why=f"the chunks that it recorded for target partition {lane} have changed or are gone",
                remedy="start another job with --job NAME, with --from where this one stopped",
            )
