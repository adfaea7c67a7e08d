"""Checks of a configuration before it runs: broker, store and machine, each finding with its remedy.

Pure functions judge what the checks find. A check that cannot be made is a warning with its reason; nothing is changed
but scratch objects, which are removed.
"""

import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition, libversion
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from archiver.commit.archive import GROUP_PREFIX
from archiver.errors import GroupOfAnother
from archiver.ingest.assignment import refuse_other_archive
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_source import Partition, cluster_settings
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import keyring_of
from blockgz.errors import AccessDenied, BlockgzError, StoreUnfit, listed, masked_urls
from blockgz.kafka.admin import answered
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import DENIED, make_client
from blockgz.program.main import kernel_words, kernels
from blockgz.store.address import LocalAddress, parse_address
from blockgz.store.customer_key import check_fingerprint, fingerprint_of
from blockgz.store.opening import default_buffer_root, open_store
from blockgz.store.probe import probe
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import format_duration, format_size
from index_format import objects
from index_format.keys import LAYOUTS, archive_key
from index_format.objects import ArchiveInfo, TopicConfig

SHOWN = 20


class Severity(StrEnum):
    """How serious a finding is, from harmless to serious."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report, and of its JSON; `remedy` is empty if nothing is to be done."""

    check: str
    verdict: Severity
    detail: str
    remedy: str = ""
    denied: bool = False
    """True if credentials or permissions are wrong."""


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Severity.OK, detail)


def warn(check: str, detail: str, remedy: str = "") -> Finding:
    return Finding(check, Severity.WARN, detail, remedy)


def fail(check: str, detail: str, remedy: str = "", *, denied: bool = False) -> Finding:
    return Finding(check, Severity.FAIL, detail, remedy, denied)


def worst(findings: Sequence[Finding]) -> Severity:
    """Return the most serious verdict."""
    order = list(Severity)
    return max((finding.verdict for finding in findings), key=order.index, default=Severity.OK)


def failed(check: str, error: BlockgzError) -> Finding:
    """Return the finding of a check that met one of our errors."""
    detail = f"{error.what}: {error.why}" if error.why else error.what
    return fail(check, one_line(detail), one_line(error.remedy), denied=isinstance(error, AccessDenied))


def carefully(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds; a check that fails is a finding itself."""
    try:
        yield from check()
    except BlockgzError as error:
        yield failed(name, error)
    except Exception as error:  # the other checks are worth making, whatever this one met
        yield warn(name, f"could not be checked: {type(error).__name__}: {one_line(str(error))}")


def one_line(text: str) -> str:
    """Return text of a library with its line breaks folded, and without the passwords of URLs."""
    return masked_urls(" ".join(text.split()))


NEEDED_OF_TOPICS = frozenset({"DESCRIBE", "READ"})
NEEDED_OF_GROUP = frozenset({"READ"})
NEEDED_OF_DEAD_LETTERS = frozenset({"DESCRIBE", "WRITE"})
CLOCK_WARNING_SECONDS = 60.0
# S3 refuses requests whose date is off by more.
CLOCK_REFUSED_SECONDS = 900.0
# Chunk intervals: a topic that keeps records for less time leaves little time to fix anything.
SHORT_RETENTION = 12
# Open files of a process without its connections: libraries, locks, parts that are sent, and some to spare.
FILES = 256
FILES_A_BROKER = 8


def judge_topic_ids(topic_id: str | None, *, is_denied: bool = False) -> Finding:
    """Return the finding on whether a topic that is deleted and created again will be recognised."""
    check = "broker api"
    if is_denied:
        return warn(check, "the user may not describe topics", "grant Describe on the topics")
    if topic_id is not None:
        return ok(check, "reports topic ids, so a topic that is created again is recognised")
    detail = "does not report topic ids, so a topic that is created again looks like a truncated log"
    return warn(check, detail, "use Kafka 2.8 or newer")


def judge_protocols(protocols: frozenset[str] | None) -> Finding:
    """Return the finding on whether the group protocol `consumer` is offered."""
    check = "group protocol"
    if protocols is None:
        return warn(check, "the broker does not say which it offers", "Kafka 4 offers it")
    offered = ", ".join(sorted(protocols))
    if "consumer" in protocols:
        return ok(check, f"offers {offered}")
    return fail(check, f"offers {offered} only", "set --group-protocol classic")


def judge_topic_permissions(allowed: Mapping[str, frozenset[str] | None]) -> Iterator[Finding]:
    """Yield findings on whether all selected topics may be described and read; None is for unknown rights."""
    check = "topic ACL"
    silent = [topic for topic, operations in allowed.items() if operations is None]
    lacking = {
        topic: NEEDED_OF_TOPICS - operations
        for topic, operations in allowed.items()
        if operations is not None and not operations >= NEEDED_OF_TOPICS
    }
    for topic, missing in list(lacking.items())[:SHOWN]:
        what = " and ".join(sorted(missing))
        remedy = f"grant {what} on topic {topic} to this user"
        yield fail(check, f"{what} is not allowed on {topic}", remedy, denied=True)
    if silent:
        yield warn(check, f"the broker does not say what is allowed on {listed(silent)}")
    elif not lacking and allowed:
        yield ok(check, f"DESCRIBE and READ are allowed on {len(allowed)} topics")


def judge_group_permissions(group_id: str, allowed: frozenset[str] | None) -> Finding:
    """Return the finding on whether the consumer group may be joined."""
    check, detail = "group ACL", f"READ is allowed on group {group_id}"
    if allowed is None:
        unknown = f"the broker does not say what is allowed on group {group_id}"
        return warn(check, f"{unknown}: the group may not exist before the first run")
    if allowed >= NEEDED_OF_GROUP:
        return ok(check, detail)
    remedy = f"grant READ on group {group_id} to this user, or choose another --group-id"
    return fail(check, f"READ is not allowed on group {group_id}", remedy, denied=True)


def judge_dead_letters(topic: str, is_there: bool, allowed: frozenset[str] | None) -> Finding:
    """Return the finding on whether records that cannot be archived can be sent on to their topic."""
    check = "dead letters"
    if not is_there:
        return fail(check, f"there is no topic {topic}", "create it, or correct --dlq-topic")
    if allowed is None:
        return warn(check, f"the broker does not say what is allowed on {topic}")
    if allowed >= NEEDED_OF_DEAD_LETTERS:
        return ok(check, f"WRITE is allowed on {topic}")
    remedy = f"grant DESCRIBE and WRITE on topic {topic} to this user"
    return fail(check, f"WRITE is not allowed on {topic}", remedy, denied=True)


NEW_GROUP = warn(
    "group ACL",
    f"could not be checked: the first run names the group {GROUP_PREFIX} and part of the archive's id",
    f"if the cluster uses ACLs, grant READ on groups with the prefix {GROUP_PREFIX}, or set --group-id",
)


def judge_group_owners(
    group_id: str, archive: ArchiveInfo | None, owners: Mapping[Partition, str], *, takeover: bool
) -> Finding:
    """Return the finding on whether another archive commits offsets of the group; `owners` holds archive ids."""
    try:
        refuse_other_archive(group_id, archive.archive_id if archive else None, owners)
    except GroupOfAnother as error:
        if takeover:
            return warn("group", f"{error.what}; --takeover trusts that it no longer does")
        return failed("group", error)
    return ok("group", f"no other archive uses group {group_id}")


def judge_topics(described: Mapping[str, TopicConfig], chunk_interval: float) -> Iterator[Finding]:
    """Yield findings on whether records live long enough to be archived, and their timestamp types. Seconds."""
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
        yield warn("retention", f"the broker does not report the configuration of {silent} topics")
    if fine:
        yield ok("retention", f"{fine} topics keep records long enough for --chunk-interval")
    if types:
        counts = ", ".join(f"{kind} on {count} topics" for kind, count in sorted(types.items()))
        yield ok("timestamp type", f"{counts}; archived as it is")


def judge_retention(topic: str, settings: Mapping[str, str], chunk_interval: float) -> Finding | None:
    """Return the finding on what threatens records before they are archived; None if nothing does."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return None
    bound = settings.get("retention.bytes", "-1")
    kept = int(settings.get("retention.ms", "-1")) / 1000
    keeps = f"{topic} keeps records {format_duration(kept)}"
    remedy = f"raise retention.ms of {topic}, or lower --chunk-interval"
    if 0 <= kept <= chunk_interval:
        detail = f"{keeps}, a chunk stays open {format_duration(chunk_interval)}: a crash loses records"
        return fail("retention", detail, remedy)
    if 0 <= kept < SHORT_RETENTION * chunk_interval:
        return warn("retention", f"{keeps}: a longer outage loses records", remedy)
    if bound != "-1":
        detail = f"{topic} keeps {format_size(int(bound))} a partition: a burst or an outage may lose records"
        remedy = f"raise retention.bytes of {topic}, and watch blockgz_retention_headroom_records"
        return warn("retention", detail, remedy)
    return None


def judge_newest(newest_ms: int | None, now: float) -> Finding:
    """Return the finding on the brokers' clock, by the newest record; `now` in seconds since 1970."""
    check = "broker clock"
    if newest_ms is None:
        return ok(check, "there is no record to compare with, and Kafka does not report its time")
    # Kafka does not report its time, but a record from the future shows a wrong clock.
    ahead = newest_ms / 1000 - now
    if ahead > CLOCK_WARNING_SECONDS:
        detail = f"the newest record is {format_duration(round(ahead))} in the future"
        return warn(check, detail, "set the clocks of producers, brokers and this machine")
    return ok(check, "no record has a future timestamp")


def judge_open_files(limit: int | None, brokers: int, partitions: int) -> Finding:
    """Return the finding on whether the process may open enough files."""
    # Open chunks hold no file open, so partitions hardly count.
    needed = FILES + FILES_A_BROKER * brokers
    shown = "none" if limit is None else limit
    detail = f"limit {shown}, needed about {needed}; {partitions} partitions need no more"
    if limit is not None and limit < needed:
        remedy = f"ulimit -n {max(1024, needed)}, or LimitNOFILE= in the systemd unit"
        return warn("open files", detail, remedy)
    return ok("open files", detail)


def judge_space(folder: Path, free: int, budget: int) -> Finding:
    """Return the finding on whether the buffer's budget fits on its disk, in bytes."""
    detail = f"{folder} can be written, {format_gib(free)} free, --buffer-bytes {format_gib(budget)}"
    if free < budget:
        return warn("buffer", detail, "free space, lower --buffer-bytes, or set another --buffer-dir")
    return ok("buffer", detail)


def judge_clock(difference: float) -> Finding:
    """Return the finding on how far this machine's clock is ahead of the store's, in seconds."""
    way = "ahead of" if difference > 0 else "behind"
    detail = f"this machine is {format_duration(round(abs(difference)))} {way} the store"
    remedy = "synchronise the clock (NTP)"
    if abs(difference) > CLOCK_REFUSED_SECONDS:
        return fail("store clock", f"{detail}; S3 refuses such requests", remedy)
    if abs(difference) > CLOCK_WARNING_SECONDS:
        return warn("store clock", detail, remedy)
    return ok("store clock", "this machine and the store agree to within a minute")


def judge_identity(found: Mapping[str, ArchiveInfo], layout: str, cluster_id: str | None) -> Finding:
    """Return the finding on whether the store holds an archive of this cluster and layout; `found`: by layout."""
    for other, info in found.items():
        if other != layout:
            remedy = f"use --layout {other}, or another --archive"
            return fail("archive", f"it has layout {other}, not {layout}", remedy)
        if None not in (cluster_id, info.cluster_id) and cluster_id != info.cluster_id:
            remedy = "give each cluster its own --archive, or correct -b"
            return fail("archive", f"it holds the topics of cluster {info.cluster_id}", remedy)
        return ok("archive", f"archive {info.archive_id}, layout {layout}")
    return ok("archive", "there is none yet; the first run creates it")


def format_gib(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1024**3:.1f}GiB"


DEADLINE_SECONDS = 5.0
MAX_TIMESTAMP: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


class ClusterChecks:
    """The checks that need a broker: all but the first only where `is_reached`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._known: dict[str, int] = {}
        self._selected: list[str] = []
        self._brokers: int | None = None
        self.is_reached = False
        self.cluster_id: str | None = None

    def broker(self) -> Iterator[Finding]:
        """Yield findings on whether a broker answers, and what it offers; the other checks depend on it."""
        settings = cluster_settings(self._config)
        self._cluster = KafkaCluster(settings)
        self._access = KafkaAccess(self._cluster.admin, make_client(AdminApart, settings))
        known = self._known = self._cluster.topics()
        self.is_reached = True
        self._brokers = self._access.num_brokers()
        self.cluster_id = self._cluster.cluster_id()
        where = f"cluster {self.cluster_id or 'without an id'}, {self._brokers or '?'} brokers, {len(known)} topics"
        yield ok("broker", where)
        sample = next(iter(known), None)
        if sample is not None:
            answers = self._cluster.topic_ids([sample])
            yield judge_topic_ids(answers.ids.get(sample), is_denied=sample in answers.denied)
        if self._config.group_protocol == "consumer":
            yield judge_protocols(self._access.rebalance_protocols())

    def topics(self) -> Iterator[Finding]:
        """Yield findings on which topics are selected, and which are missing."""
        selection = TopicSelection(self._config.topics, self._config.exclude, of_source=True)
        self._selected = selection(self._known)
        missing = sorted(selection.names - self._known.keys())
        partitions = sum(self._known[topic] for topic in self._selected)
        if missing:
            yield fail("topics", f"there is no topic {listed(missing)}", "create it, or check -b")
        if self._selected:
            yield ok("topics", f"{len(self._selected)} topics, {partitions} partitions")
        elif not missing:
            yield warn("topics", "no topics are selected yet", "check TOPIC and --exclude")

    def permissions(self) -> Iterator[Finding]:
        """Yield findings on whether topics may be read."""
        allowed = self._access.topic_operations(self._selected) if self._selected else {}
        yield from judge_topic_permissions(allowed)
        dlq = self._config.dead_letter_topic
        if dlq is not None:
            is_there = dlq in self._known
            yield judge_dead_letters(dlq, is_there, self._access.topic_operations([dlq])[dlq] if is_there else None)

    def group(self, archive: ArchiveInfo | None) -> Iterator[Finding]:
        """Yield findings on whether the consumer group may be joined, and belongs to no other archive."""
        group_id = self._config.group_id if archive is None else archive.group(self._config.group_id)
        if group_id is None:
            yield NEW_GROUP
            return
        yield judge_group_permissions(group_id, self._access.group_operations(group_id))
        owners = self._cluster.committed_metadata(group_id, self._selected)
        yield judge_group_owners(group_id, archive, owners, takeover=self._config.takeover)

    def retention(self) -> Iterator[Finding]:
        """Yield findings on whether records live long enough to be archived."""
        yield from judge_topics(self._cluster.describe(self._selected), self._config.chunk_interval)

    def timestamps(self, now: float) -> Iterator[Finding]:
        """Yield findings on whether records come from the future; `now` in seconds since 1970."""
        partitions = [(topic, number) for topic in self._selected for number in range(self._known[topic])]
        yield judge_newest(self._access.newest_timestamp(partitions), now)

    def open_files(self) -> Iterator[Finding]:
        """Yield findings on whether the process may open as many files as it needs."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        partitions = sum(self._known[topic] for topic in self._selected)
        limit = None if soft == resource.RLIM_INFINITY else soft
        yield judge_open_files(limit, self._brokers or 1, partitions)


class KafkaAccess:
    """Read-only questions; None if the brokers do not answer in time."""

    def __init__(self, admin: AdminClient, apart: AdminApart) -> None:
        self._admin = admin
        self._apart = apart

    def num_brokers(self) -> int | None:
        try:
            return len(self._admin.list_topics(timeout=DEADLINE_SECONDS).brokers)
        except KafkaException:
            return None

    def topic_operations(self, topics: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """Return what this user may do to each topic, in Kafka's words such as READ; None if unknown."""
        answers = self._admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=DEADLINE_SECONDS
        )
        return {topic: _operations(answer) for topic, answer in answers.items()}

    def group_operations(self, group_id: str) -> frozenset[str] | None:
        """Return what this user may do to a consumer group; None if unknown, as before anybody joined it."""
        try:
            return self._apart.group_operations(group_id, DEADLINE_SECONDS)
        except KafkaException as error:
            return _without_operations(error)

    def rebalance_protocols(self) -> frozenset[str] | None:
        """Return the group protocols that a broker offers, such as `classic` and `consumer`."""
        try:
            broker = next(iter(self._admin.list_topics(timeout=DEADLINE_SECONDS).brokers))
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (answer,) = self._admin.describe_configs([resource], request_timeout=DEADLINE_SECONDS).values()
            entry = answer.result().get("group.coordinator.rebalance.protocols")
        except (KafkaException, StopIteration):
            return None
        return frozenset(entry.value.split(",")) if entry is not None and entry.value else None

    def newest_timestamp(self, partitions: Iterable[Partition]) -> int | None:
        """Return the highest timestamp of any record in these logs, in ms."""
        wanted = dict.fromkeys((TopicPartition(*partition) for partition in partitions), MAX_TIMESTAMP)
        if not wanted:
            return None
        answers = self._admin.list_offsets(wanted, request_timeout=DEADLINE_SECONDS).values()
        told = (answered(each, "the newest timestamps cannot be read") for each in answers)
        found = [each.timestamp for each in told if each is not None]
        return max((timestamp for timestamp in found if timestamp is not None and timestamp >= 0), default=None)


def _operations(answer: Any) -> frozenset[str] | None:
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        return _without_operations(error)
    return None if operations is None else frozenset(operation.name for operation in operations)


def _without_operations(error: KafkaException) -> frozenset[str] | None:
    return frozenset() if error.args[0].code() in DENIED else None


PACKAGES = ("confluent-kafka", "pyarrow", "isal", "boto3")


def check_versions() -> Iterator[Finding]:
    """Yield findings on what is installed, and what is missing."""
    known = [f"Python {python_version()}", f"librdkafka {libversion()[0]}"]
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            yield fail("versions", f"{package} is not installed", f"pip install {package}")
    yield ok("versions", ", ".join(known))


def check_kernels() -> Iterator[Finding]:
    """Yield findings on whether the C extensions are in use."""
    check, found = "C extensions", kernels()
    if all(found.values()) or os.environ.get("BLOCKGZ_NO_KERNEL"):
        yield ok(check, kernel_words(found))
    else:
        remedy = "for speed, install a C compiler and Python's headers, then reinstall blockgz"
        yield warn(check, kernel_words(found), remedy)


def check_buffer(config: RunConfig) -> Iterator[Finding]:
    """Yield findings on whether the buffer's folder can be written, and has room for its budget."""
    folder = (config.buffer_dir or default_buffer_root(config.archive)).absolute()
    there = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        detail = f"{folder} cannot be written: {error.strerror or error}"
        yield fail("buffer", detail, "fix it, or set another --buffer-dir")
        return
    yield judge_space(folder, free, config.buffer_bytes)


def check_keys(config: RunConfig) -> Iterator[Finding]:
    """Yield findings on whether the keys of encrypted chunks can wrap and open a key; nothing without encryption."""
    keyring = keyring_of(config.encrypt)
    if keyring is not None:
        made = keyring.new_key()
        keyring.unwrap(made.wrapped, "a key")
        yield ok("keys", f"chunks are encrypted; the newest key is {keyring.newest_id}")


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def check_store(config: RunConfig, wall: Callable[[], float], cluster_id: str | None) -> Iterator[Finding]:
    """Yield findings on the store, its clock, conditional writes and archive; `wall` is in seconds since 1970."""
    with _opened(config) as store:
        before = wall()
        clock = store.clock()
        yield ok("store", f"{store.url} answers")
        yield judge_clock((before + wall()) / 2 - clock)
        yield from carefully("conditional writes", lambda: _conditional_writes(config, store))
        yield from carefully("archive", lambda: _identity(config, store, cluster_id))
        yield from carefully("unfinished uploads", lambda: _uploads(store))


def _conditional_writes(config: RunConfig, store: ToolStore) -> Iterator[Finding]:
    try:
        probe(store, multipart=store.url.startswith("s3:"))
    except StoreUnfit as error:
        finding = failed("conditional writes", error)
        trusted = f"{finding.detail}; with --single-writer, you guarantee that there is only one"
        yield warn(finding.check, trusted) if config.single_writer else finding
        return
    yield ok("conditional writes", "two writers are kept apart: every conditional write that must fail does")


def _identity(config: RunConfig, store: ToolStore, cluster_id: str | None) -> Iterator[Finding]:
    found = _identities(store)
    for info in found.values():
        check_fingerprint(info, fingerprint_of(config.customer_key), store.url)
    yield judge_identity(found, config.layout, cluster_id)


def _identities(store: ToolStore) -> dict[str, ArchiveInfo]:
    """Return the identities of archives in the store, by layout."""
    stored = {layout: store.get(archive_key(layout)) for layout in LAYOUTS}
    return {
        layout: objects.decode(each.body, ArchiveInfo, archive_key(layout))
        for layout, each in stored.items()
        if each is not None
    }


def _uploads(store: ToolStore) -> Iterator[Finding]:
    try:
        expires = store.expires_uploads()
    except BlockgzError as error:
        detail = f"the lifecycle rules cannot be read: {error.why or error.what}"
        yield warn("unfinished uploads", one_line(detail), "run archiver gc regularly")
        return
    if expires:
        yield ok("unfinished uploads", "they are cleaned up")
        return
    remedy = "add a lifecycle rule AbortIncompleteMultipartUpload of 7 days, or run archiver gc regularly"
    yield warn("unfinished uploads", "those of killed processes stay, and cost money, until they are removed", remedy)


@contextmanager
def _opened(config: RunConfig) -> Iterator[ToolStore]:
    """Provide the store; remove a folder that was made for it."""
    address = parse_address(config.archive)
    root = address.root() if isinstance(address, LocalAddress) else None
    there = existing(root) if root is not None else None
    try:
        yield open_store(config.archive, config.s3)
    finally:
        while root is not None and root != there:
            with suppress(OSError):
                root.rmdir()
            root = root.parent


def examine(config: RunConfig, wall: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yield all checks, as they are made; `wall` is this machine's clock in seconds since 1970."""
    kafka = ClusterChecks(config)
    yield from carefully("versions", check_versions)
    yield from carefully("C extensions", check_kernels)
    yield from carefully("broker", kafka.broker)
    for name, check in (
        ("topics", kafka.topics),
        ("permissions", kafka.permissions),
        ("group", lambda: _group(config, kafka)),
        ("retention", kafka.retention),
        ("timestamps", lambda: kafka.timestamps(wall())),
    ):
        if kafka.is_reached:
            yield from carefully(name, check)
        else:
            yield warn(name, "could not be checked: no broker answered")
    yield from carefully("open files", kafka.open_files)
    yield from carefully("buffer", lambda: check_buffer(config))
    yield from carefully("keys", lambda: check_keys(config))
    yield from carefully("store", lambda: check_store(config, wall, kafka.cluster_id))


def _group(config: RunConfig, kafka: ClusterChecks) -> Iterator[Finding]:
    try:
        with _opened(config) as store:
            archive = next(iter(_identities(store).values()), None)
    except BlockgzError as error:
        yield warn("group", f"could not be checked, as the archive names it: {error.what}")
        return
    yield from kafka.group(archive)
