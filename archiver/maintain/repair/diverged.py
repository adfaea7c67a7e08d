"""A partition whose log was truncated and rewritten continues in the next folder, from where the log still agrees."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

from archiver.commit.archive import adopt_topic_id, archived_topic_id, settle_same_topic
from archiver.commit.commit import Held, PartitionIdentity
from archiver.commit.operations import Driver, LogReader
from archiver.commit.recovery import archived_level, why_diverged
from archiver.commit.repairs import continue_in
from archiver.errors import Diverged, UnreadableRecord
from archiver.ingest.kafka_cluster import KafkaCluster, PartitionLog, RecordReader
from archiver.ingest.kafka_source import CLIENT_ID
from archiver.maintain.planned import Problem
from archiver.maintain.repair.plan import RepairPlan, RepairStep, RepairTarget
from archiver.maintain.repair.salvage import SalvagedPiece, cut_chunk, last_record
from archiver.maintain.rewrite.replace import chunks_of
from archiver.maintain.rewrite.tree import StoredChain, read_chain, read_current
from blockgz.encryption.keyring import keyring_of
from blockgz.errors import BlockgzError, BrokerUnreachable, UsageError
from blockgz.kafka import LogBounds
from blockgz.kafka.connection import client_settings
from index_format.keys import LAYOUTS, parse_topic_folder
from index_format.marker import ChunkEntry, Marker
from index_format.objects import ChunkIndex
from index_format.records import Record


@dataclass(frozen=True)
class LogSource:
    """The cluster, as a repair reads it."""

    log_of: Callable[[str, int, str], LogReader]
    """The log of a topic's partition under an isolation level."""
    topic_id: Callable[[str], str | None]
    """None if the cluster does not tell it."""


def plan_diverged(target: RepairTarget, source: LogSource) -> RepairPlan:
    """Plan how a partition continues that the archiver refuses as diverged; reads its log."""
    store, plan = target.store, RepairPlan()
    try:
        place, held = _last_folder(target)
        if held is None:
            return RepairPlan(notes=[f"{target}: nothing of it is archived"])
        keys, marker = place.keys, held.marker
        level = Driver(store).run(archived_level(keys, marker)) or "read_committed"
        log = source.log_of(keys.folder.topic, keys.partition, level)
        driver = Driver(store, log)
        identity = _identity(place, marker, source.topic_id(keys.folder.topic), level)
        refusal = driver.run(why_diverged(identity, marker))
        if refusal is None:
            return RepairPlan(notes=[f"{target}: its log agrees with the archive; nothing to repair"])
        chain = read_chain(store, keys)
        if chain is None or chain.marker != marker:
            raise Diverged(f"{target} has changed", why="an archiver is running", remedy="run the command again")
        offset, cut = _agreement(place, chain, log)
        plan.steps.append(
            RepairStep(
                str(target),
                "marker",
                identity.keys.marker,
                _detail(place, identity, chain, offset, cut),
                partial(_continue, place, held, identity, offset, cut, driver),
            )
        )
        plan.notes.append(f"{refusal.what}: {refusal.why}")
    except BlockgzError as error:
        plan.problems.append(Problem(str(target), error))
    return plan


def _last_folder(target: RepairTarget) -> tuple[RepairTarget, Held | None]:
    """Return a partition in its last folder, and the marker there; None if nothing is archived."""
    while (held := read_current(target.store, target.keys)) is not None and held.marker.successor is not None:
        folder = parse_topic_folder(held.marker.successor)
        target = target.at(LAYOUTS[target.keys.layout](folder, target.keys.partition))
    return target, held if held is not None and held.marker.next_offset is not None else None


def _identity(place: RepairTarget, marker: Marker, topic_id: str | None, level: str) -> PartitionIdentity:
    """Return the partition in the next folder. Raises BrokerUnreachable or Diverged if the topic may be another one."""
    store, keys = place.store, place.keys
    known = marker.topic_id if marker.topic_id is not None else archived_topic_id(store, keys.layout, keys.folder)
    if known is not None and topic_id is None:
        raise BrokerUnreachable(
            f"the id of topic {keys.folder.topic!r} is unknown",
            why="the archive has the id, and the log may belong to another topic with this name",
            remedy="run the command again once the cluster reports the id",
        )
    if known != topic_id and known is not None:
        raise Diverged(
            f"topic {keys.folder.topic!r} was created again",
            why=f"its topic id is {topic_id}, the archive's is {known}",
            remedy="nothing to repair: the archiver continues in a new folder by itself",
        )
    following = keys.folder._replace(incarnation=keys.folder.incarnation + 1)
    there = store.head(LAYOUTS[keys.layout](following, keys.partition).marker)
    if there is None or archived_topic_id(store, keys.layout, following) == topic_id:
        return PartitionIdentity(
            keys=LAYOUTS[keys.layout](following, keys.partition),
            archive_id=marker.archive_id,
            topic_id=topic_id,
            group_id=marker.group_id,
            record_format="json",
            codec="gzip",
            isolation_level=level,
            key_prefix=store.prefix,
            encrypt=place.encrypt,
        )
    raise Diverged(f"{following} holds another topic", why="its topic id differs", remedy="nothing was changed")


def _agreement(place: RepairTarget, chain: StoredChain, log: LogReader) -> tuple[int, ChunkIndex | None]:
    """Return the offset from which the log is read: the end of the newest chunk whose last record it holds unchanged.

    If there is none, return the log's start, and the chunk around it: what it holds below is copied, so that no chunk
    is cut for readers.
    """
    # Newest chunk first: usually the log lost only its end.
    low, high = log.bounds(0)
    for entry in sorted(chain.entries, key=lambda entry: -entry.start_offset):
        if entry.last_offset < low:
            break
        found = _in_log(log, entry.last_offset) if entry.last_offset < high else None
        if found is not None and _is_archived(place, entry, found):
            return entry.last_offset + 1, None
    around = next((entry for entry in chain.entries if entry.start_offset < low <= entry.last_offset), None)
    return low, _index(place, around) if around is not None else None


def _in_log(log: LogReader, offset: int) -> Record | None:
    try:
        # A record that the client cannot hand over was never archived.
        return log.record_at(offset)
    except UnreadableRecord:
        return None


def _is_archived(place: RepairTarget, entry: ChunkEntry, found: Record) -> bool:
    index = _index(place, entry)
    archived = last_record(place, index, keyring_of(place.encrypt))
    if index.record_format == "text":
        return (found.offset, found.value) == (archived.offset, archived.value)
    return found == archived


def _index(place: RepairTarget, entry: ChunkEntry) -> ChunkIndex:
    (chunk,) = Driver(place.store).run(chunks_of(place.keys, [entry]))
    return chunk.index


def _detail(
    place: RepairTarget, identity: PartitionIdentity, chain: StoredChain, offset: int, cut: ChunkIndex | None
) -> str:
    keys = place.keys
    above = sum(entry.num_records for entry in chain.entries if entry.first_offset >= offset)
    also = f", and more in the chunk around offset {offset}" if cut is not None else ""
    older = f"{keys.folder.topic}~{keys.folder.incarnation}:{keys.partition}"
    return (
        f"continues in {identity.keys.folder} from offset {offset}; {above:,} records from there on{also}, "
        f"which the log does not hold, stay readable as {older}"
    )


def _continue(
    place: RepairTarget, held: Held, identity: PartitionIdentity, offset: int, cut: ChunkIndex | None, driver: Driver
) -> None:
    store, keys, folder = place.store, place.keys, identity.keys.folder
    if identity.topic_id is not None:
        # First: two folders with different ids would be two topics for who does not know the id.
        adopt_topic_id(store, keys.layout, keys.folder, identity.topic_id)
    settle_same_topic(store, keys.layout, folder, identity.topic_id)
    writer = str(uuid.uuid4())
    if cut is None:
        driver.run(continue_in(identity, keys, held, offset, offset, writer))
        return
    if cut.first_offset >= offset:
        driver.run(continue_in(identity, keys, held, cut.start_offset, offset, writer))
        return
    alike = replace(identity, record_format=cut.record_format, codec=cut.codec)
    with cut_chunk(place, SalvagedPiece(cut, cut.start_offset, offset)) as chunk:
        driver.run(continue_in(alike, keys, held, cut.start_offset, offset, writer, chunk))


NOT_ASKED = LogBounds(-1, -1)
READS_FOR_REPAIR = {
    "group.id": "blockgz-repair",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


@contextmanager
def log_source(kafka: Mapping[str, str]) -> Iterator[LogSource]:
    """Open the cluster that librdkafka's settings name; raises UsageError if they name none."""
    if "bootstrap.servers" not in kafka:
        raise UsageError("no cluster is given", why="the partition's log must be read", remedy="give -b HOST:PORT")
    settings = client_settings(kafka, CLIENT_ID)

    @cache
    def cluster() -> KafkaCluster:  # made when the plan asks for it: a client asks for tokens as soon as there is one
        return KafkaCluster(settings)

    @cache
    def records(level: str) -> RecordReader:
        reader = RecordReader(settings | READS_FOR_REPAIR | {"isolation.level": level})
        return readers.enter_context(closing(reader))

    def log_of(topic: str, partition: int, level: str) -> PartitionLog:
        return PartitionLog(
            (topic, partition),
            NOT_ASKED,
            lambda asked: cluster().ask_bounds(asked, level),
            records(level),
            lambda _: None,  # the plan compares ids itself
        )

    def id_of(topic: str) -> str | None:
        cluster().topics()  # raises if no broker answers or none lets this user in
        return cluster().topic_ids([topic]).ids.get(topic)

    with ExitStack() as readers:
        yield LogSource(log_of, id_of)
