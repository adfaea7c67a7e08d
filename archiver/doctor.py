"""What stands between a configuration and a run of it: checks of broker, store and machine, each with its remedy.

What is found is judged by pure functions over values. A check that cannot be made is a warning that says why; nothing
is changed but scratch objects, which are removed.
"""

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from index_format import objects
from index_format.addresses import LocalAddress, parse_address
from index_format.errors import BlockgzError
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, archive_key

from .config import RunConfig, format_duration, format_size
from .errors import StoreUnfit
from .kafka_access import KafkaAccess, library_version
from .kafka_cluster import KafkaCluster, TopicDescription
from .kafka_settings import client_settings
from .probe import probe
from .stores import ToolStore
from .stores.opening import default_buffer_root, local_root, open_store
from .topic_selection import TopicSelection

NEEDED_OF_TOPICS = frozenset({"DESCRIBE", "READ"})
NEEDED_OF_GROUP = frozenset({"READ"})
CLOCK_WARNING_SECONDS = 60.0
CLOCK_REFUSED_SECONDS = 900.0
"""S3 refuses requests whose date is off by more."""
SHORT_RETENTION = 12
"""A topic that keeps its records for less than so many chunk intervals leaves little time to mend anything."""
FILES = 256
"""Open files of a process, but for connections: libraries, locks, parts on their way, some spare."""
FILES_A_BROKER = 8
PACKAGES = ("confluent-kafka", "pyarrow", "isal", "boto3")
SHOWN = 20


class Verdict(StrEnum):
    """How serious a finding is, from harmless to serious."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report; `remedy` is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def worst(findings: Sequence[Finding]) -> Verdict:
    """The most serious verdict."""
    order = list(Verdict)
    return max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)


def examine(config: RunConfig, wall: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All checks, as they are made; `wall` is this machine's clock in seconds since 1970."""
    kafka = _Cluster(config)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", _versions),
        ("broker", kafka.broker),
        ("topics", kafka.topics),
        ("permissions", kafka.permissions),
        ("retention", kafka.retention),
        ("timestamps", lambda: kafka.timestamps(wall())),
        ("open files", kafka.open_files),
        ("buffer", lambda: _buffer(config)),
        ("store", lambda: _store(config, wall, kafka.cluster_id)),
    ]
    for name, check in checks:
        yield from _carefully(name, check)


def _carefully(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except BlockgzError as error:
        yield failed(name, error)
    except Exception as error:  # whatever it is, the other checks are worth making
        yield Finding(name, Verdict.WARN, f"could not be checked: {type(error).__name__}: {_one_line(str(error))}")


def failed(check: str, error: BlockgzError) -> Finding:
    """A check that met one of our errors."""
    detail = f"{error.what}: {error.why}" if error.why else error.what
    return Finding(check, Verdict.FAIL, _one_line(detail), _one_line(error.remedy))


class _Cluster:
    """The checks that need a broker. Without one, all but the first say so and no more."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._known: dict[str, int] | None = None
        self._selected: list[str] = []
        self._brokers: int | None = None
        self.cluster_id: str | None = None

    def broker(self) -> Iterator[Finding]:
        settings = client_settings(self._config.bootstrap_servers, self._config.kafka)
        self._cluster, self._access = KafkaCluster(settings), KafkaAccess(settings)
        known = self._known = self._cluster.topics()
        self._brokers = self._access.num_brokers()
        self.cluster_id = self._cluster.cluster_id()
        where = f"cluster {self.cluster_id or 'without an id'}, {self._brokers or '?'} brokers, {len(known)} topics"
        yield Finding("broker", Verdict.OK, where)
        sample = next(iter(known), None)
        if sample is not None:
            yield judge_topic_ids(self._cluster.topic_ids([sample])[sample])
        if self._config.group_protocol == "consumer":
            yield judge_protocols(self._access.rebalance_protocols())

    def topics(self) -> Iterator[Finding]:
        if self._known is None:
            yield _unreachable("topics")
            return
        selection = TopicSelection(self._config.topics, self._config.exclude)
        self._selected = selection(self._known)
        missing = sorted(selection.names - self._known.keys())
        partitions = sum(self._known[topic] for topic in self._selected)
        if missing:
            yield Finding("topics", Verdict.FAIL, f"there is no topic {_listed(missing)}", "create it, or check -b")
        if self._selected:
            yield Finding("topics", Verdict.OK, f"{len(self._selected)} topics, {partitions} partitions")
        elif not missing:
            yield Finding("topics", Verdict.WARN, "none is selected so far", "check TOPIC and --exclude")

    def permissions(self) -> Iterator[Finding]:
        if self._known is None:
            yield _unreachable("permissions")
            return
        allowed = self._access.topic_operations(self._selected) if self._selected else {}
        yield from judge_topic_permissions(allowed)
        yield judge_group_permissions(self._config.group_id, self._access.group_operations(self._config.group_id))

    def retention(self) -> Iterator[Finding]:
        if self._known is None:
            yield _unreachable("retention")
            return
        yield from judge_topics(self._cluster.describe(self._selected), self._config.chunk_interval)

    def timestamps(self, now: float) -> Iterator[Finding]:
        if self._known is None:
            yield _unreachable("timestamps")
            return
        known = self._known
        partitions = [(topic, number) for topic in self._selected for number in range(known[topic])]
        yield judge_newest(self._access.newest_timestamp(partitions), now)

    def open_files(self) -> Iterator[Finding]:
        known = self._known or {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        partitions = sum(known[topic] for topic in self._selected)
        limit = None if soft == resource.RLIM_INFINITY else soft
        yield judge_open_files(limit, self._brokers or 1, partitions)


def judge_topic_ids(topic_id: str | None) -> Finding:
    """Whether a topic that is deleted and created again will be recognised."""
    if topic_id is not None:
        return Finding("broker api", Verdict.OK, "tells topic ids: a topic that is created again is recognised")
    return Finding(
        "broker api",
        Verdict.WARN,
        "does not tell topic ids: a topic that is created again looks like a log that was cut",
        "use Kafka 2.8 or newer",
    )


def judge_protocols(protocols: frozenset[str] | None) -> Finding:
    """Whether the group protocol `consumer` is offered."""
    if protocols is None:
        return Finding("group protocol", Verdict.WARN, "the broker does not tell which it offers", "Kafka 4 offers it")
    if "consumer" in protocols:
        return Finding("group protocol", Verdict.OK, f"offers {', '.join(sorted(protocols))}")
    offered = ", ".join(sorted(protocols))
    return Finding("group protocol", Verdict.FAIL, f"offers {offered} only", "set --group-protocol classic")


def judge_topic_permissions(allowed: Mapping[str, frozenset[str] | None]) -> Iterator[Finding]:
    """Whether all selected topics may be described and read; None where the broker does not tell."""
    silent = [topic for topic, operations in allowed.items() if operations is None]
    lacking: dict[str, frozenset[str]] = {}
    for topic, operations in allowed.items():
        if operations is not None and not operations >= NEEDED_OF_TOPICS:
            lacking[topic] = NEEDED_OF_TOPICS - operations
    for topic, missing in list(lacking.items())[:SHOWN]:
        what = " and ".join(sorted(missing))
        yield Finding(
            "topic ACL",
            Verdict.FAIL,
            f"{what} is not allowed on {topic}",
            f"grant {what} on topic {topic} to this user",
        )
    if silent:
        yield Finding("topic ACL", Verdict.WARN, f"the broker does not tell what is allowed on {_listed(silent)}")
    elif not lacking and allowed:
        yield Finding("topic ACL", Verdict.OK, f"DESCRIBE and READ are allowed on {len(allowed)} topics")


def judge_group_permissions(group_id: str, allowed: frozenset[str] | None) -> Finding:
    """Whether the consumer group may be joined."""
    if allowed is None:
        detail = f"the broker does not tell what is allowed on group {group_id}: it may not exist before the first run"
        return Finding("group ACL", Verdict.WARN, detail)
    if allowed >= NEEDED_OF_GROUP:
        return Finding("group ACL", Verdict.OK, f"READ is allowed on group {group_id}")
    remedy = f"grant READ on group {group_id} to this user, or choose another --group-id"
    return Finding("group ACL", Verdict.FAIL, f"READ is not allowed on group {group_id}", remedy)


def judge_topics(described: Mapping[str, TopicDescription], chunk_interval: float) -> Iterator[Finding]:
    """Whether records live long enough to be archived, and what their timestamps are; `chunk_interval` in seconds."""
    types: dict[str, int] = {}
    fine = silent = 0
    for topic, description in described.items():
        if description.config is None or description.defaults is None:
            silent += 1
            continue
        settings = {**description.defaults, **description.config}
        kind = settings.get("message.timestamp.type", "CreateTime")
        types[kind] = types.get(kind, 0) + 1
        finding = judge_retention(topic, settings, chunk_interval)
        if finding is None:
            fine += 1
        else:
            yield finding
    if silent:
        yield Finding("retention", Verdict.WARN, f"the broker does not tell the configuration of {silent} topics")
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
        detail = (
            f"{topic} keeps records {format_duration(kept)}, a chunk stays open {format_duration(chunk_interval)}: "
        )
        return Finding("retention", Verdict.FAIL, f"{detail}a crash loses records", remedy)
    if 0 <= kept < SHORT_RETENTION * chunk_interval:
        detail = f"{topic} keeps records {format_duration(kept)}: an outage that is longer loses records"
        return Finding("retention", Verdict.WARN, detail, remedy)
    if bound != "-1":
        detail = f"{topic} keeps {format_size(int(bound))} a partition: a burst or an outage may lose records"
        remedy = f"raise retention.bytes of {topic}, and watch blockgz_retention_headroom_records"
        return Finding("retention", Verdict.WARN, detail, remedy)
    return None


def judge_newest(newest_ms: int | None, now: float) -> Finding:
    """Kafka tells no time, but a record from the future tells of a wrong clock."""
    if newest_ms is None:
        return Finding("broker clock", Verdict.OK, "no record to compare with; Kafka itself does not tell its time")
    ahead = newest_ms / 1000 - now
    if ahead > CLOCK_WARNING_SECONDS:
        detail = f"the newest record is {format_duration(round(ahead))} in the future"
        return Finding("broker clock", Verdict.WARN, detail, "set the clocks of producers, brokers and this machine")
    return Finding("broker clock", Verdict.OK, "no record is from the future")


def judge_open_files(limit: int | None, brokers: int, partitions: int) -> Finding:
    """Whether the process may open what it needs: open chunks hold no file open, so partitions hardly count."""
    needed = FILES + FILES_A_BROKER * brokers
    detail = (
        f"limit {limit if limit is not None else 'none'}, needed about {needed}; {partitions} partitions need no more"
    )
    if limit is not None and limit < needed:
        return Finding(
            "open files", Verdict.WARN, detail, f"ulimit -n {max(1024, needed)}, or LimitNOFILE= of the unit"
        )
    return Finding("open files", Verdict.OK, detail)


def judge_space(folder: Path, free: int, budget: int) -> Finding:
    """Whether the buffer's budget fits on its disk, in bytes."""
    detail = f"{folder} can be written, {format_gib(free)} free, --buffer-bytes {format_gib(budget)}"
    if free < budget:
        return Finding("buffer", Verdict.WARN, detail, "free space, lower --buffer-bytes, or give another --buffer-dir")
    return Finding("buffer", Verdict.OK, detail)


def judge_clock(difference: float) -> Finding:
    """How far this machine's clock is ahead of the store's, in seconds."""
    way = "ahead of" if difference > 0 else "behind"
    detail = f"this machine is {format_duration(round(abs(difference)))} {way} the store"
    if abs(difference) > CLOCK_REFUSED_SECONDS:
        return Finding(
            "store clock", Verdict.FAIL, f"{detail}; S3 refuses such requests", "synchronise the clock (NTP)"
        )
    if abs(difference) > CLOCK_WARNING_SECONDS:
        return Finding("store clock", Verdict.WARN, detail, "synchronise the clock (NTP)")
    return Finding("store clock", Verdict.OK, "this machine and the store agree to a minute")


def judge_identity(found: Mapping[str, ArchiveInfo], layout: str, cluster_id: str | None) -> Finding:
    """Whether what is stored there is an archive of this cluster and layout; `found`: layout -> identity."""
    for other, info in found.items():
        if other != layout:
            remedy = f"use --layout {other}, or another --archive"
            return Finding("archive", Verdict.FAIL, f"it has layout {other}, not {layout}", remedy)
        if None not in (cluster_id, info.cluster_id) and cluster_id != info.cluster_id:
            remedy = "give each cluster an --archive of its own, or correct -b"
            return Finding("archive", Verdict.FAIL, f"it holds the topics of cluster {info.cluster_id}", remedy)
        return Finding("archive", Verdict.OK, f"archive {info.archive_id}, layout {layout}")
    return Finding("archive", Verdict.OK, "none there yet; the first run makes it")


def format_gib(size: int) -> str:
    """A size for people."""
    return f"{size / 1024**3:.1f}GiB"


def _versions() -> Iterator[Finding]:
    known = [f"Python {python_version()}", f"librdkafka {library_version()}"]
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding("versions", Verdict.FAIL, f"{package} is not installed", f"pip install {package}")
    yield Finding("versions", Verdict.OK, ", ".join(known))


def _buffer(config: RunConfig) -> Iterator[Finding]:
    folder = (config.buffer_dir or default_buffer_root(config.archive)).absolute()
    there = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        detail = f"{folder} cannot be written: {error.strerror or error}"
        yield Finding("buffer", Verdict.FAIL, detail, "mend it, or give another --buffer-dir")
        return
    yield judge_space(folder, free, config.buffer_bytes)


def _store(config: RunConfig, wall: Callable[[], float], cluster_id: str | None) -> Iterator[Finding]:
    with _opened(config) as store:
        before = wall()
        clock = store.clock()
        yield Finding("store", Verdict.OK, f"{store.url} answers")
        yield judge_clock((before + wall()) / 2 - clock)
        yield from _carefully("conditional writes", lambda: _conditional_writes(config, store))
        yield from _carefully("archive", lambda: _identity(config, store, cluster_id))
        yield from _carefully("unfinished uploads", lambda: _uploads(store))


def _conditional_writes(config: RunConfig, store: ToolStore) -> Iterator[Finding]:
    try:
        probe(store, multipart=store.url.startswith("s3:"))
    except StoreUnfit as error:
        finding = failed("conditional writes", error)
        if config.single_writer:
            yield Finding(finding.check, Verdict.WARN, f"{finding.detail}; --single-writer trusts that there is one")
        else:
            yield finding
        return
    yield Finding("conditional writes", Verdict.OK, "two writers are kept apart: all that must be refused is refused")


def _identity(config: RunConfig, store: ToolStore, cluster_id: str | None) -> Iterator[Finding]:
    found = {}
    for layout in LAYOUTS:
        stored = store.get(archive_key(layout))
        if stored is not None:
            found[layout] = objects.decode(stored.body, ArchiveInfo, archive_key(layout))
    yield judge_identity(found, config.layout, cluster_id)


def _uploads(store: ToolStore) -> Iterator[Finding]:
    try:
        expires = store.expires_uploads()
    except BlockgzError as error:
        detail = f"the lifecycle rules cannot be read: {error.why or error.what}"
        yield Finding("unfinished uploads", Verdict.WARN, _one_line(detail), "run archiver gc now and then")
        return
    if expires:
        yield Finding("unfinished uploads", Verdict.OK, "none stays for ever")
        return
    remedy = "add a lifecycle rule AbortIncompleteMultipartUpload of 7 days, or run archiver gc now and then"
    yield Finding(
        "unfinished uploads", Verdict.WARN, "those of killed processes stay, and cost, until somebody acts", remedy
    )


@contextmanager
def _opened(config: RunConfig) -> Iterator[ToolStore]:
    """The store; a folder that was made for it is removed again."""
    address = parse_address(config.archive)
    root = local_root(address) if isinstance(address, LocalAddress) else None
    there = _existing(root) if root is not None else None
    try:
        yield open_store(config.archive, endpoint_url=config.endpoint_url, region=config.region)
    finally:
        while root is not None and root != there:
            with suppress(OSError):
                root.rmdir()
            root = root.parent


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _unreachable(check: str) -> Finding:
    return Finding(check, Verdict.WARN, "could not be checked: no broker answered")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _one_line(text: str) -> str:
    return " ".join(text.split())
