"""An archive for Python programs; page: docs/python.md."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, Unpack

import pyarrow as pa

from blockgz.archive import selection as selections
from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened, parse_topic
from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.lookup import FoundRecord, RecordQuery, TimedOffset, failure, look_up_together, offset_at
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import position_of, time_of
from blockgz.errors import UsageError
from blockgz.store.address import S3Settings, parse_address
from blockgz.store.reader import DiskCache, default_folder
from blockgz.units import wall_clock
from index_format.keys import parse_topic_folder
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES
from index_format.old_objects import ANCESTORS_FORMAT
from index_format.records import SCHEMA, TIMESTAMP_TYPES, Headers, iter_records
from replayer.export import Exported, ExportForm, export, format_of
from replayer.library_choice import Choice, Place, Time, chosen, one_of
from replayer.verify.report import ArchiveReport, ComparisonReport, Depth
from replayer.verify.verifying import verify_archive

if TYPE_CHECKING:
    from replayer.library_replay import Cluster, ReplayChoice, Replayed
    from replayer.replay.plan import ReplayPlan
    from replayer.replay.proof import JobProof
import threading

T = TypeVar("T")


class _Call:
    def __init__(self) -> None:
        self.given_up = False
        self.ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None

    async def made(self, work: Coroutine[Any, Any, T]) -> T:
        if self.given_up:
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await work
        finally:
            self.ended.set()

    def cancel(self) -> None:
        if self._task is None:
            self.ended.set()
        else:
            self._task.cancel()


class BackgroundLoop:
    """Runs coroutines for callers in other threads; `close` cancels those that still run."""

    def __init__(self) -> None:
        # With a factory, because else the caller's thread would be given this loop as its own.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self.closed = False
        self._thread = threading.Thread(target=self._serve, name="replayer", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work; an interrupt of the caller cancels it. Raises UsageError after `close`."""
        if self.closed:
            work.close()
            raise UsageError(
                "the archive is closed", why="its `with` block ended, or close() was called", remedy="open it again"
            )
        call = _Call()
        try:
            return asyncio.run_coroutine_threadsafe(call.made(work), self._loop).result()
        except KeyboardInterrupt:
            # Not by the future: the interrupt may come before there is one here.
            call.given_up = True
            self._loop.call_soon_threadsafe(call.cancel)
            call.ended.wait()
            raise

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Yield the items one after the other, each made on demand, and what runs ahead in `items`."""
        try:
            while (following := self.run(_following(items))) is not None:
                yield following[0]
                del following
        finally:
            self._end(items)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _end(self, items: AsyncGenerator[Any]) -> None:
        if self.closed:
            return
        if threading.current_thread() is self._thread:
            self._loop.create_task(items.aclose())  # the collector of garbage came by here
        else:
            self.run(items.aclose())

    def _serve(self) -> None:
        with self._runner:
            self._loop.run_forever()


async def _following(items: AsyncGenerator[T]) -> tuple[T] | None:
    async for item in items:
        return (item,)
    return None


# The columns of `Archive.batches`; timestamp is ms since the epoch, -1 for none.
BATCH_SCHEMA = SCHEMA.insert(0, pa.field("partition", pa.int32(), nullable=False))

_DEPTHS = {"structure": Depth.STRUCTURE, "blocks": Depth.BLOCKS, "records": Depth.RECORDS}


class ArchivedRecord(NamedTuple):
    """One record as it was in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """ms since the epoch, -1 for none."""
    timestamp_type: str
    """"CreateTime", "LogAppendTime" or "NoTimestampType"."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """Pairs of name and value."""


class LostRecords(NamedTuple):
    """Offsets [start, end) of a partition that cannot be read, and why."""

    partition: int
    start: int
    end: int
    reason: str


class Archive:
    """An archive at one address, made by `open_archive`; a context manager.

    Methods may be called from any thread, and from code that runs in an event loop, such as a notebook's cell: they
    wait, and the loop with them. An iterator belongs to one thread at a time. Not for use after a fork.
    All raise NoArchiveThere, AccessDenied, StoreError, or FormatError and ObjectMissing at damage.
    """

    def __init__(self, place: ArchivePlace, cache: DiskCache | None) -> None:
        """Open the store; nothing is read yet."""
        self.address = str(place.address)
        self._place = place
        self._loop = BackgroundLoop()
        self._stack = AsyncExitStack()
        try:
            self._archive: ArchiveReader = self._loop.run(self._stack.enter_async_context(opened(place, cache)))
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return f"<Archive {self.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all reading, and close the store; further calls do nothing."""
        if not self._loop.closed:
            try:
                self._loop.run(self._stack.aclose())
            finally:
                self._loop.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for readers of an archive of kafka-connect-s3, once something of it was read."""
        return self._archive.other.notes if self._archive.other else ()

    def topics(self) -> tuple[str, ...]:
        """Return the names of the archived topics, in order."""
        return self._loop.run(self._archive.topics())

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's archived partitions, in order; raises NotInArchive."""
        return self._loop.run(self._archive.partitions(topic))

    def get(self, topic: str, partition: int, offset: Place) -> ArchivedRecord:
        """Return the record at an offset; for another place, such as a time, the first record at or after it.

        One range read of one block. Raises NotInArchive, whose `why` is the reason, or UsageError.
        """
        parse_topic_folder(topic)
        query = RecordQuery(topic, partition, position_of(offset, wall_clock()), f"{topic}:{partition}:{offset}")
        outcome = self._loop.run(look_up_together(self._archive, [query]))[query]
        if not isinstance(outcome, FoundRecord):
            raise failure(query, outcome)
        return next(_records(topic, partition, outcome.batch))

    def records(
        self, topic: str, *, limit: int | None = None, lost: list[LostRecords] | None = None, **choice: Unpack[Choice]
    ) -> Iterator[ArchivedRecord]:
        """Yield the records of a topic, at most `limit`, partition after partition, in the order of their offsets.

        `choice` selects by `partitions`, `start`, `end`, `at`, `since`, `until`, `key`, `headers`, `grep`. Without
        `lost`, damage raises in its place; with a list, it is passed over and the lost offsets are added to the list.
        """
        return (
            record
            for partition, batch in self._selected(topic, limit, lost, choice)
            for record in _records(partition.topic, partition.partition, batch)
        )

    def batches(
        self, topic: str, *, limit: int | None = None, lost: list[LostRecords] | None = None, **choice: Unpack[Choice]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow's batches of `BATCH_SCHEMA`, each of one partition, none empty."""
        return (_numbered(*each) for each in self._selected(topic, limit, lost, choice))

    def export(
        self,
        topic: str,
        destination: str | Path,
        *,
        file_format: Literal["parquet", "csv", "jsonl", "arrow"] | None = None,
        key_as: Literal["binary", "text"] = "binary",
        value_as: Literal["binary", "text"] = "binary",
        overwrite: bool = False,
        limit: int | None = None,
        lost: list[LostRecords] | None = None,
        **choice: Unpack[Choice],
    ) -> Exported:
        """Write the records that `batches` gives to one file, which appears whole or not at all.

        Without `file_format`, the file's ending decides. Raises UsageError if the file exists, ExportFailed.
        """
        form = ExportForm(format_of(str(destination), file_format), key_as, value_as)
        wanted, selection = chosen(topic, choice)
        damage = selections.DamagePolicies(selections.STOPS if lost is None else selections.SKIPS)

        async def exported(parts: Sequence[selections.Selection]) -> Exported:
            async with aclosing(selections.selected_batches(parts, selection.filter, limit, damage)) as batches:
                return await export(batches, str(destination), form, overwrites=overwrite)

        try:
            parts = self._loop.run(selection.select(self._archive, wanted))
            _warn_of_times(parts)
            refuse_doubtful(selections.cuts_of(parts))
            return self._loop.run(exported(parts))
        finally:
            if lost is not None:
                lost.extend(_lost(damage))

    def find(self, topic: str, time: Time, *, partitions: Iterable[int] | None = None) -> tuple[TimedOffset, ...]:
        """Return each partition's position at a time: the first record in offset order that is as late."""
        at = time_of(time, wall_clock())
        numbers = None if partitions is None else tuple(partitions)

        async def found() -> list[TimedOffset]:
            opened_ones = await self._archive.open_topic(topic, numbers)
            return await asyncio.gather(*(offset_at(partition, at) for partition in opened_ones))

        return tuple(self._loop.run(found()))

    def verify(
        self, *topics: str, depth: Literal["structure", "blocks", "records"] = "structure", expected: Iterable[str] = ()
    ) -> ArchiveReport:
        """Check topics, written as "orders" or "orders:0-3", or everything; damage is in the report, not raised.

        "structure" is chain, catalogs, indexes and sizes, "blocks" reads all data, "records" decodes every record. Each
        of the `expected` topics must have something in the archive.
        """
        wanted = [parse_topic(topic) for topic in topics]
        return self._loop.run(
            verify_archive(self._archive, wanted, _DEPTHS[one_of("depth", depth, _DEPTHS)], expected=tuple(expected))
        )

    def compare(
        self,
        topic: str,
        with_topic: str,
        *,
        kafka: "Cluster",
        partitions: Iterable[int] | None = None,
        start: Place | None = None,
        end: Place | None = None,
        at: Time | None = None,
    ) -> ComparisonReport:
        """Compare records with those of a topic of a cluster: the one that was archived, or a copy of it.

        Differences and damage are in the report, not raised. Raises NoSuchTopic.
        """
        from replayer.library_replay import cluster_properties  # noqa: PLC0415  # it loads Kafka's client
        from replayer.verify.comparison import compare_with_topic  # noqa: PLC0415  # as above

        wanted, selection = chosen(topic, {"partitions": partitions, "start": start, "end": end, "at": at})
        properties = cluster_properties(kafka)
        compared = compare_with_topic(self._archive, wanted, with_topic, properties, selection.positions)
        return self._loop.run(compared)

    def verify_job(self, job: str, *, kafka: "Cluster", jobs: str | None = None) -> "JobProof":
        """Prove a replay's result: apply it again, and compare with the target. `jobs` as for `replay`."""
        from replayer.library_replay import prove  # noqa: PLC0415  # as above

        return self._loop.run(prove(self._archive, self._place, job, jobs, kafka))

    def plan_replay(
        self,
        topic: str,
        to_topic: str,
        *,
        kafka: "Cluster",
        skip_damage: bool = False,
        **choice: "Unpack[ReplayChoice]",
    ) -> "ReplayPlan":
        """Return what `replay` with the same arguments would do, and its warnings; writes nothing."""
        from replayer.library_replay import plan, replay_request  # noqa: PLC0415  # it loads Kafka's client

        request = replay_request(topic, to_topic, choice, skips_damage=skip_damage)
        return self._loop.run(plan(self._archive, self._place, request, kafka))

    def replay(
        self,
        topic: str,
        to_topic: str,
        *,
        kafka: "Cluster",
        lost: list[LostRecords] | None = None,
        progress: Callable[[int, int], None] = lambda *_: None,
        **choice: "Unpack[ReplayChoice]",
    ) -> "Replayed":
        """Write records to a topic of the cluster `kafka`, HOST:PORT or librdkafka's settings, without a question.

        `choice` selects records, as `records`, and has the options of `replayer replay`. `progress` is called from
        another thread with the records and bytes written since the last call. Damage raises or goes to `lost`. Raises
        ReplayRefused if the target would not keep the records as they are, DeliveryFailed, and others.
        """
        from replayer.library_replay import replay, replay_request  # noqa: PLC0415  # as above

        request = replay_request(topic, to_topic, choice, skips_damage=lost is not None)
        done, damage = self._loop.run(replay(self._archive, self._place, request, kafka, progress))
        if lost is not None:
            lost.extend(_lost(damage))
        return done

    def _selected(
        self, topic: str, limit: int | None, lost: list[LostRecords] | None, choice: Choice
    ) -> Iterator[selections.SelectedBatch]:
        """Raise what is wrong with the arguments at once, not with the first record."""
        wanted, selection = chosen(topic, choice)
        if limit is not None and limit < 0:
            raise UsageError(f"limit is {limit}", why="it must be a number of records", remedy="give 0 or more")
        damage = selections.DamagePolicies(selections.STOPS if lost is None else selections.SKIPS)

        def iterated() -> Iterator[selections.SelectedBatch]:
            try:
                parts = self._loop.run(selection.select(self._archive, wanted))
                _warn_of_times(parts)
                yield from self._loop.iterate(selections.selected_batches(parts, selection.filter, limit, damage))
            finally:
                if lost is not None:
                    lost.extend(_lost(damage))

        return iterated()


def _warn_of_times(parts: Sequence[selections.Selection]) -> None:
    """Warn of records on the wrong side of a time that was asked for."""
    for line in (*selections.notes_of(parts), *cut_lines(selections.cuts_of(parts))):
        warnings.warn(line, stacklevel=3)


def open_archive(
    url: str | Path,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    proxy_url: str | None = None,
    role_arn: str | None = None,
    external_id: str | None = None,
    customer_key: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    keys: str | None = None,
    max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES,
    use_cache: bool = True,
) -> Archive:
    """Return the archive at s3://bucket/prefix, file:///dir or a folder; use it in a `with` block, or close it.

    `endpoint_url` to `session_token` are for S3; the last four are `${file:/path}` or `${env:NAME}`. Without an access
    key, credentials come from AWS's own chain. `keys` are those of an encrypted archive: file:/path, env:NAME or
    kms:ARN, separated by commas. Indexes are kept in this machine's cache if `use_cache`. Raises UsageError for an
    address that is not valid; a missing archive shows with the first use.
    """
    s3 = S3Settings(
        *(endpoint_url, region, profile, proxy_url, role_arn, external_id, customer_key),
        *(access_key_id, secret_access_key, session_token),
    )
    place = ArchivePlace(parse_address(str(url)), s3, max_block_bytes, ANCESTORS_FORMAT, keys)
    folder = default_folder() if use_cache else None
    return Archive(place.absolute(), None if folder is None else DiskCache(folder))


def _lost(damage: selections.DamagePolicies) -> list[LostRecords]:
    return [LostRecords(partition.partition, *each) for partition, each in damage.skipped]


def _numbered(partition: ArchivedPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pa.repeat(pa.scalar(partition.partition, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=BATCH_SCHEMA)


def _records(topic: str, partition: int, batch: pa.RecordBatch) -> Iterator[ArchivedRecord]:
    for offset, timestamp, kind, key, value, headers in iter_records(batch):
        yield ArchivedRecord(topic, partition, offset, timestamp, TIMESTAMP_TYPES[kind], key, value, headers)
