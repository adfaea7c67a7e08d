"""Judgements of what broker, store and machine say: pure functions over values."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from archiver.commit.archive import GROUP_PREFIX
from archiver.doctor.findings import SHOWN, Finding, Verdict, failed
from archiver.errors import GroupOfAnother
from archiver.ingest.group_offsets import refuse_other_archive
from archiver.ingest.kafka_cluster import TopicDescription
from archiver.ingest.kafka_source import Partition
from blockgz.errors import listed
from blockgz.units import format_duration, format_size
from index_format.identity import ArchiveInfo

NEEDED_OF_TOPICS = frozenset({"DESCRIBE", "READ"})

NEEDED_OF_GROUP = frozenset({"READ"})

NEEDED_OF_DEAD_LETTERS = frozenset({"DESCRIBE", "WRITE"})

CLOCK_WARNING_SECONDS = 60.0

CLOCK_REFUSED_SECONDS = 900.0
"""S3 refuses requests whose date is off by more."""

SHORT_RETENTION = 12
"""A topic that keeps its records for less than so many chunk intervals leaves little time to mend anything."""

FILES = 256
"""Open files of a process, but for connections: libraries, locks, parts on their way, some spare."""

FILES_A_BROKER = 8


def judge_topic_ids(topic_id: str | None, *, is_denied: bool = False) -> Finding:
    """Whether a topic that is deleted and created again will be recognised."""
    if is_denied:
        return Finding("broker api", Verdict.WARN, "the user may not describe topics", "grant Describe on the topics")
    if topic_id is not None:
        return Finding("broker api", Verdict.OK, "reports topic ids, so a topic that is created again is recognised")
    return Finding(
        "broker api",
        Verdict.WARN,
        "does not report topic ids, so a topic that is created again looks like a truncated log",
        "use Kafka 2.8 or newer",
    )


def judge_protocols(protocols: frozenset[str] | None) -> Finding:
    """Whether the group protocol `consumer` is offered."""
    if protocols is None:
        return Finding("group protocol", Verdict.WARN, "the broker does not say which it offers", "Kafka 4 offers it")
    if "consumer" in protocols:
        return Finding("group protocol", Verdict.OK, f"offers {', '.join(sorted(protocols))}")
    offered = ", ".join(sorted(protocols))
    return Finding("group protocol", Verdict.FAIL, f"offers {offered} only", "set --group-protocol classic")


def judge_topic_permissions(allowed: Mapping[str, frozenset[str] | None]) -> Iterator[Finding]:
    """Whether all selected topics may be described and read; None where the broker does not tell."""
    silent = [topic for topic, operations in allowed.items() if operations is None]
    lacking = {
        topic: NEEDED_OF_TOPICS - operations
        for topic, operations in allowed.items()
        if operations is not None and not operations >= NEEDED_OF_TOPICS
    }
    for topic, missing in list(lacking.items())[:SHOWN]:
        what = " and ".join(sorted(missing))
        remedy = f"grant {what} on topic {topic} to this user"
        yield Finding("topic ACL", Verdict.FAIL, f"{what} is not allowed on {topic}", remedy, denied=True)
    if silent:
        yield Finding("topic ACL", Verdict.WARN, f"the broker does not say what is allowed on {listed(silent)}")
    elif not lacking and allowed:
        yield Finding("topic ACL", Verdict.OK, f"DESCRIBE and READ are allowed on {len(allowed)} topics")


def judge_group_permissions(group_id: str, allowed: frozenset[str] | None) -> Finding:
    """Whether the consumer group may be joined."""
    if allowed is None:
        detail = (
            f"the broker does not say what is allowed on group {group_id}: the group may not exist before the first run"
        )
        return Finding("group ACL", Verdict.WARN, detail)
    if allowed >= NEEDED_OF_GROUP:
        return Finding("group ACL", Verdict.OK, f"READ is allowed on group {group_id}")
    remedy = f"grant READ on group {group_id} to this user, or choose another --group-id"
    return Finding("group ACL", Verdict.FAIL, f"READ is not allowed on group {group_id}", remedy, denied=True)


def judge_dead_letters(topic: str, is_there: bool, allowed: frozenset[str] | None) -> Finding:
    """Whether records that cannot be archived can be sent on to their topic."""
    check = "dead letters"
    if not is_there:
        return Finding(check, Verdict.FAIL, f"there is no topic {topic}", "create it, or correct --dlq-topic")
    if allowed is None:
        return Finding(check, Verdict.WARN, f"the broker does not say what is allowed on {topic}")
    if allowed >= NEEDED_OF_DEAD_LETTERS:
        return Finding(check, Verdict.OK, f"WRITE is allowed on {topic}")
    remedy = f"grant DESCRIBE and WRITE on topic {topic} to this user"
    return Finding(check, Verdict.FAIL, f"WRITE is not allowed on {topic}", remedy, denied=True)


NEW_GROUP = Finding(
    "group ACL",
    Verdict.WARN,
    f"could not be checked: the first run names the group {GROUP_PREFIX} and part of the archive's id",
    f"if the cluster uses ACLs, grant READ on groups with the prefix {GROUP_PREFIX}, or set --group-id",
)


def judge_group_owners(
    group_id: str, archive: ArchiveInfo | None, owners: Mapping[Partition, str], *, takeover: bool
) -> Finding:
    """Whether another archive commits offsets of the group; `owners` holds archive ids."""
    try:
        refuse_other_archive(group_id, archive.archive_id if archive else None, owners)
    except GroupOfAnother as error:
        if takeover:
            return Finding("group", Verdict.WARN, f"{error.what}; --takeover trusts that it no longer does")
        return failed("group", error)
    return Finding("group", Verdict.OK, f"no other archive uses group {group_id}")


def judge_topics(described: Mapping[str, TopicDescription], chunk_interval: float) -> Iterator[Finding]:
    """Whether records live long enough to be archived, and what their timestamps are; `chunk_interval` in seconds."""
    types: Counter[str] = Counter()
    fine = silent = 0
    for topic, description in described.items():
        if description.config is None or description.defaults is None:
            silent += 1
            continue
        settings = {**description.defaults, **description.config}
        types[settings.get("message.timestamp.type", "CreateTime")] += 1
        finding = judge_retention(topic, settings, chunk_interval)
        if finding is None:
            fine += 1
        else:
            yield finding
    if silent:
        yield Finding("retention", Verdict.WARN, f"the broker does not report the configuration of {silent} topics")
    if fine:
        yield Finding("retention", Verdict.OK, f"{fine} topics keep records long enough for --chunk-interval")
    if types:
        counts = ", ".join(f"{kind} on {count} topics" for kind, count in sorted(types.items()))
        yield Finding("timestamp type", Verdict.OK, f"{counts}; archived as it is")


def judge_retention(topic: str, settings: Mapping[str, str], chunk_interval: float) -> Finding | None:
    """What threatens records before they are archived; None where nothing does."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return None
    bound = settings.get("retention.bytes", "-1")
    kept = int(settings.get("retention.ms", "-1")) / 1000
    remedy = f"raise retention.ms of {topic}, or lower --chunk-interval"
    if 0 <= kept <= chunk_interval:
        detail = f"{topic} keeps records {format_duration(kept)}, a chunk stays open {format_duration(chunk_interval)}"
        return Finding("retention", Verdict.FAIL, f"{detail}: a crash loses records", remedy)
    if 0 <= kept < SHORT_RETENTION * chunk_interval:
        detail = f"{topic} keeps records {format_duration(kept)}: a longer outage loses records"
        return Finding("retention", Verdict.WARN, detail, remedy)
    if bound != "-1":
        detail = f"{topic} keeps {format_size(int(bound))} a partition: a burst or an outage may lose records"
        remedy = f"raise retention.bytes of {topic}, and watch blockgz_retention_headroom_records"
        return Finding("retention", Verdict.WARN, detail, remedy)
    return None


def judge_newest(newest_ms: int | None, now: float) -> Finding:
    """Kafka does not report its time, but a record from the future shows a wrong clock."""
    if newest_ms is None:
        return Finding(
            "broker clock", Verdict.OK, "there is no record to compare with, and Kafka does not report its time"
        )
    ahead = newest_ms / 1000 - now
    if ahead > CLOCK_WARNING_SECONDS:
        detail = f"the newest record is {format_duration(round(ahead))} in the future"
        return Finding("broker clock", Verdict.WARN, detail, "set the clocks of producers, brokers and this machine")
    return Finding("broker clock", Verdict.OK, "no record has a future timestamp")


def judge_open_files(limit: int | None, brokers: int, partitions: int) -> Finding:
    """Whether the process may open what it needs: open chunks hold no file open, so partitions hardly count."""
    needed = FILES + FILES_A_BROKER * brokers
    shown = "none" if limit is None else limit
    detail = f"limit {shown}, needed about {needed}; {partitions} partitions need no more"
    if limit is not None and limit < needed:
        remedy = f"ulimit -n {max(1024, needed)}, or LimitNOFILE= in the systemd unit"
        return Finding("open files", Verdict.WARN, detail, remedy)
    return Finding("open files", Verdict.OK, detail)


def judge_space(folder: Path, free: int, budget: int) -> Finding:
    """Whether the buffer's budget fits on its disk, in bytes."""
    detail = f"{folder} can be written, {format_gib(free)} free, --buffer-bytes {format_gib(budget)}"
    if free < budget:
        return Finding("buffer", Verdict.WARN, detail, "free space, lower --buffer-bytes, or set another --buffer-dir")
    return Finding("buffer", Verdict.OK, detail)


def judge_clock(difference: float) -> Finding:
    """How far this machine's clock is ahead of the store's, in seconds."""
    way = "ahead of" if difference > 0 else "behind"
    detail = f"this machine is {format_duration(round(abs(difference)))} {way} the store"
    remedy = "synchronise the clock (NTP)"
    if abs(difference) > CLOCK_REFUSED_SECONDS:
        return Finding("store clock", Verdict.FAIL, f"{detail}; S3 refuses such requests", remedy)
    if abs(difference) > CLOCK_WARNING_SECONDS:
        return Finding("store clock", Verdict.WARN, detail, remedy)
    return Finding("store clock", Verdict.OK, "this machine and the store agree to within a minute")


def judge_identity(found: Mapping[str, ArchiveInfo], layout: str, cluster_id: str | None) -> Finding:
    """Whether what is stored there is an archive of this cluster and layout; `found`: layout -> identity."""
    for other, info in found.items():
        if other != layout:
            remedy = f"use --layout {other}, or another --archive"
            return Finding("archive", Verdict.FAIL, f"it has layout {other}, not {layout}", remedy)
        if None not in (cluster_id, info.cluster_id) and cluster_id != info.cluster_id:
            remedy = "give each cluster its own --archive, or correct -b"
            return Finding("archive", Verdict.FAIL, f"it holds the topics of cluster {info.cluster_id}", remedy)
        return Finding("archive", Verdict.OK, f"archive {info.archive_id}, layout {layout}")
    return Finding("archive", Verdict.OK, "there is none yet; the first run creates it")


def format_gib(size: int) -> str:
    """A size for people."""
    return f"{size / 1024**3:.1f}GiB"
