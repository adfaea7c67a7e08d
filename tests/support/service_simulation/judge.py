"""What must hold after a schedule: of what was fetched, of the archive, and of the gaps in it."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from index_format import marker as markers
from index_format import objects
from index_format.keys import LAYOUTS, TOPIC_OBJECT, PartitionKeys, TopicFolder, topic_home
from index_format.objects import TopicInfo
from tests.support.chain import MARKER, Chain, check_history, read_chain
from tests.support.service_simulation.logs import Log, Origin, Partition, Topic
from tests.support.service_simulation.store import Swap
from tests.support.service_simulation.world import POLL_SECONDS, Run, World

LAYOUT = "topic"


class Broken(Exception):
    """A schedule after which something does not hold that must."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Archived:
    """One partition of one incarnation, as readers see it."""

    topic: Topic
    """The life that the folder is for."""
    keys: PartitionKeys
    chain: Chain | None
    origins: list[Origin]

    @property
    def offsets(self) -> set[int]:
        return {origin.offset for origin in self.origins}


def judge(world: World) -> None:
    check_threads(world)
    archive = list(_archive(world))
    for archived in archive:
        _check_origins(world, archived)
        _check_gaps(archived)
        _check_nothing_is_passed_over(archived)
    _check_what_was_fetched(world, archive)


SECONDS_TO_CLAIM_AGAIN = 6.0
"""From an answer that names an id to the claims that keep it in the archive."""


def stayed_unknown(world: World, topic: Topic) -> bool:
    """Whether no process learned the id of that life of a topic early enough for the archive to keep it."""
    first = min((at for (_, each), at in world.kafka.ids_first_told.items() if each == topic.topic_id), default=None)
    return first is None or (topic.deleted_at is not None and topic.deleted_at - first < SECONDS_TO_CLAIM_AGAIN)


def check_threads(world: World) -> None:
    for failure in world.hub.failures:
        raise Broken("error", f"a thread ended with {failure!r}") from failure


def _archive(world: World) -> Iterator[Archived]:
    bodies = world.bucket.content.bodies()
    for name in sorted({topic.name for topic in world.cluster.lives}):
        incarnation = 1
        while (body := bodies.get(topic_home(LAYOUT, TopicFolder(name, incarnation)) + TOPIC_OBJECT)) is not None:
            folder = TopicFolder(name, incarnation)
            info = objects.decode(body, TopicInfo, name)
            topic = _life_of(world, info, name)
            for number in range(len(topic.logs)):
                keys = LAYOUTS[LAYOUT](folder, number)
                check_history(_versions(world, keys), keys.home)
                yield _read(topic, keys, bodies)
            incarnation += 1


def _versions(world: World, keys: PartitionKeys) -> dict[str, list[bytes]]:
    return {key: found for key, found in world.bucket.content.versions.items() if key.startswith(keys.home)}


def _life_of(world: World, info: TopicInfo, name: str) -> Topic:
    if info.topic_id is not None:
        return world.cluster.life(info.topic_id)
    return next(topic for topic in world.cluster.lives if topic.name == name)


def _read(topic: Topic, keys: PartitionKeys, bodies: dict[str, bytes]) -> Archived:
    try:
        chain = read_chain(bodies, keys.home, keys.chunks)
        if chain is not None:
            markers.decode_marker(bodies[keys.marker], keys.marker)
    except (AssertionError, KeyError, ValueError) as error:
        raise Broken("chain", f"{keys.home}: {error!r}") from error
    lines = chain.lines if chain else []
    origins = []
    for line in lines:
        origin = Origin.of(line.value or b"")
        if (origin.partition, origin.offset) != (keys.partition, line.offset):
            raise Broken("wrong", f"{keys.home}: at offset {line.offset} stands {origin}")
        origins.append(origin)
    return Archived(topic, keys, chain, origins)


def _check_origins(world: World, archived: Archived) -> None:
    """Records of one life of the topic, and none beside those that replaced it when the log was truncated."""
    log = archived.topic.logs[archived.keys.partition]
    for row, origin in enumerate(archived.origins):
        if origin.topic_id != log.topic_id and not _could_not_be_told(world, archived, row):
            raise Broken("mixed", f"{archived.keys.home} is for {log.topic_id} and holds {origin}")
    gaps = archived.chain.gaps if archived.chain else []
    for before, after in pairwise(archived.origins):
        cuts = log.truncations[before.version : after.version]
        # Where retention took the archived tail from the log, nobody could compare it.
        could_tell = before.offset >= log.low and not any(before.offset < start <= after.offset for start, _ in gaps)
        if could_tell and any(end <= before.offset for end in cuts):
            raise Broken("mixed", f"{archived.keys.home}: {after} follows {before}, which the log had lost")


def _could_not_be_told(world: World, archived: Archived, row: int) -> bool:
    """Whether nobody could tell a record's topic from the claimed one, of which nothing had been read.

    So there was no leader epoch that could have fallen, and the writer had been told no newer id when it fetched it.
    """
    origin, log = archived.origins[row], archived.topic.logs[archived.keys.partition]
    if any(earlier.topic_id == log.topic_id for earlier in archived.origins[:row]):
        return False
    swap = next(each for each in world.bucket.swaps if each.key == archived.keys.marker and _covers(each, origin))
    fetched = [at for at, _, each in world.run_of(swap.host).origins() if each == origin and at <= swap.at]
    told_at = world.kafka.ids_first_told.get((swap.host, origin.topic_id))
    if not fetched or told_at is None:
        return bool(fetched)
    ends_at = world.run_of(swap.host).told_to_stop_at  # from then on nothing is claimed again
    return told_at >= max(fetched) or (ends_at is not None and told_at >= ends_at)


def _covers(swap: Swap, origin: Origin) -> bool:
    return swap.next_offset is not None and swap.next_offset > origin.offset


def _check_gaps(archived: Archived) -> None:
    log = archived.topic.logs[archived.keys.partition]
    for start, end in archived.chain.gaps if archived.chain else ():
        if end > log.low and any(start <= entry.offset < end for entry in _from(log, log.low)):
            raise Broken("wrong gap", f"{archived.keys.home}: [{start}, {end}), and the log begins at {log.low}")


def _check_nothing_is_passed_over(archived: Archived) -> None:
    """What stood in the log between the chain's ends is there or in a gap.

    The log as it was when the chain went on behind it: what a truncated log got later is none of the chain's.
    """
    chain = archived.chain
    if chain is None:
        return
    there = archived.offsets
    last_of_version = {origin.version: origin.offset for origin in archived.origins}
    for entry in archived.topic.logs[archived.keys.partition].entries:
        if any(version < entry.version and last >= entry.offset for version, last in last_of_version.items()):
            continue
        if entry.version and not any(version >= entry.version for version in last_of_version):
            continue
        is_due = chain.start_offset <= entry.offset < chain.next_offset and entry.offset not in there
        if is_due and not any(start <= entry.offset < end for start, end in chain.gaps):
            raise Broken("lost", f"{archived.keys.home}: offset {entry.offset} is neither archived nor in a gap")


def _from(log: Log, offset: int) -> list[Any]:
    return log.entries[bisect_left(log.entries, offset, key=lambda entry: entry.offset) :]


def _check_what_was_fetched(world: World, archive: list[Archived]) -> None:
    """What a run held that nothing excuses is in the archive of its topic's life."""
    there: dict[tuple[str, int], set[tuple[int, int]]] = {}
    homes: dict[tuple[str, int], str] = {}
    for archived in archive:
        place = (archived.topic.topic_id, archived.keys.partition)
        there.setdefault(place, set()).update((origin.offset, origin.version) for origin in archived.origins)
        homes.setdefault(place, archived.keys.home)
    for run in world.runs:
        for at, partition, origin in run.origins():
            place = (origin.topic_id, origin.partition)
            if (origin.offset, origin.version) in there.get(place, ()):
                continue
            if excuse(world, run, at, partition, origin, homes.get(place, "none")) is None:
                raise Broken(
                    "dropped",
                    f"{run.host.name} fetched {origin} of {partition} at {at:.3f} and it is not in {homes.get(place)}; "
                    f"the run left it: {leave_of(run, at, partition)}",
                )


def leave_of(run: Run, at: float, partition: Partition) -> tuple[float, str]:
    """When and how a run's hold on a partition ended that it had at a time."""
    for left_at, left, how in run.left:
        if left == partition and left_at >= at:
            return left_at, how
    return (run.ended_at if run.ended_at is not None else float("inf")), run.how


def excuse(  # noqa: PLR0911
    world: World, run: Run, at: float, partition: Partition, origin: Origin, home: str
) -> str | None:
    """Why a record that a run fetched at a time need not be in the archive."""
    left_at, how = leave_of(run, at, partition)
    begins, ends = flush_of(run, left_at, how)
    if how == "killed" or (run.how == "killed" and run.ended_at is not None and run.ended_at < ends):
        return "killed"
    if _is_beyond_the_drain(run, partition, origin):
        return "beyond the end of --once"
    if _is_unconfirmed(world, run, at, ends, origin.topic_id) or _came_early(world, run, at, home):
        return "another topic, and not confirmed"
    folder = f"topic={partition[0]}"
    number = f"/partition={partition[1]:05d}/"
    swaps = [swap for swap in world.bucket.swaps if swap.key.startswith(folder) and number in swap.key]
    own = max((swap.at for swap in swaps if swap.host == run.host.name and swap.at <= at), default=0.0)
    if any(own < swap.at <= ends and swap.host != run.host.name for swap in swaps):
        return "fenced"
    if _store_was_troubled(world, run, folder, begins, ends):
        return "the store did not answer"
    if any(at <= lost_until for lost_until in _losses_of_the_buffer(run, partition)):
        return "the buffer failed"
    return None


def _losses_of_the_buffer(run: Run, partition: Partition) -> Iterator[float]:
    """Until when a partition may have taken no records, each time: the service looks after it behind the next poll."""
    for failed_until in run.buffer_failed:
        yield failed_until
        for restarted_at, restarted in run.taken_over_again:
            if restarted == partition and failed_until < restarted_at <= failed_until + POLL_SECONDS:
                yield restarted_at


def _is_unconfirmed(world: World, run: Run, at: float, ends: float, topic_id: str) -> bool:
    """Whether the topic was created again, and no later answer named the id of what was fetched."""
    successor = world.cluster.successor(world.cluster.life(topic_id))
    if successor is None or successor.created_at >= ends:
        return False
    return at > world.kafka.ids_told.get((run.host.name, topic_id), -1.0) - BETWEEN_ANSWERS


def _came_early(world: World, run: Run, at: float, home: str) -> bool:
    """Whether the run had not claimed the partition of this life of the topic yet, but one of an earlier life."""
    claims = [swap.at for swap in world.bucket.swaps if swap.host == run.host.name and swap.key.startswith(home)]
    return at < min(claims, default=at + 1)


BETWEEN_ANSWERS = 4.0
"""The last answer may have been another's; the partitions are told one every few seconds."""


def flush_of(run: Run, left_at: float, how: str) -> tuple[float, float]:
    """From when to when a run had the time to commit what it held."""
    if how == "lost":
        return left_at, left_at + run.grace
    if how == "revoked":
        return left_at - run.grace, left_at
    begins = left_at if run.told_to_stop_at is None else run.told_to_stop_at
    return begins - (run.grace if how == "failed" else 0.0), left_at


def _is_beyond_the_drain(run: Run, partition: Partition, origin: Origin) -> bool:
    report = run.service.reports.get(partition) if run.service is not None else None
    return report is not None and report.end_offset is not None and origin.offset >= report.end_offset


MEMORY_OF_TROUBLE = 61.0
"""Seconds after which a fault is over: a request that hung may be given up so late, and then one waits to try again."""


def _store_was_troubled(world: World, run: Run, folder: str, begins: float, ends: float) -> bool:
    bucket = world.bucket
    since = begins - MEMORY_OF_TROUBLE
    for spell in bucket.past_spells:
        is_met = spell.host in (None, run.host.name) and (spell.prefix or folder).startswith(folder)
        if is_met and spell.start < ends and spell.end > since:
            return True
    return any(
        since <= when <= ends
        for key, times in bucket.troubled_at.items()
        if key.startswith(folder) or "/" not in key
        for when in times
    )


def marker_key(name: str, incarnation: int, number: int) -> str:
    return LAYOUTS[LAYOUT](TopicFolder(name, incarnation), number).home + MARKER
