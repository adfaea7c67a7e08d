"""Stores on S3 behind a proxy that cuts, holds, doubles and fails answers."""

import asyncio
import hashlib
import math
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from archiver.commit.commit import store_once
from archiver.commit.operations import Driver
from blockgz.errors import AccessDenied, BufferFailed, ObjectChanged, ObjectTruncated, ShuttingDown, StoreUnavailable
from blockgz.store import s3_writer as s3_store
from blockgz.store import writer as store_writer
from blockgz.store.address import S3Address, S3Settings
from blockgz.store.reader import CountingReader, ObjectReader
from blockgz.store.s3_client import BODY_ATTEMPTS
from blockgz.store.s3_reader import (
    BURST,
    EXTRA_SHARE,
    FEWEST_READS,
    SHORTEST_PATIENCE,
    HedgingReader,
    SlowReads,
    open_s3,
)
from blockgz.store.s3_writer import S3Store, _check_file
from blockgz.store.writer import FileBody
from index_format.keys import Conflict
from tests.support.fault_proxy import Fault, FaultProxy, no_fault, once, seeded
from tests.support.http_proxy import Request
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

T = TypeVar("T")
BODY = bytes(range(256)) * 16 * 1024


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("blockgz.store.s3_client.REQUEST_ATTEMPTS", 1)
    bucket = Bucket(upstream, f"b-{uuid.uuid4().hex}")
    bucket.put("x", BODY)
    yield bucket
    bucket.close()


@pytest.fixture
def proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        yield proxy


def reading(bucket: Bucket, proxy: FaultProxy, use: Callable[[ObjectReader], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_s3(S3Address(bucket.name, ""), S3Settings(proxy.endpoint_url)) as reader:
            return await asyncio.wait_for(use(reader), 60)

    return asyncio.run(run())


class Requests:
    """What the proxy does to the first GETs, in order; it notes the ranges and conditions of all."""

    def __init__(self, *faults: Fault, before: Callable[[int], None] = lambda number: None) -> None:
        self._faults = [*faults]
        self._before = before
        self.ranges: list[tuple[int, int]] = []
        self.conditions: list[str | None] = []

    def __call__(self, request: Request) -> Fault:
        headers = {name.lower(): value for name, value in request.headers.items()}
        first, last = headers["range"].removeprefix("bytes=").split("-")
        self._before(len(self.ranges))
        self.ranges.append((int(first), int(last) + 1))
        self.conditions.append(headers.get("if-match"))
        return self._faults.pop(0) if self._faults else Fault.NONE


@pytest.mark.slow
def test_a_body_that_breaks_off_continues_at_the_byte_reached(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.decide = requests = Requests(*[Fault.CUT] * 6)
    body = reading(bucket, proxy, lambda reader: reader.get_range("x", 1000, len(BODY) - 1000))
    assert body == BODY[1000:-1000]
    starts = [start for start, _ in requests.ranges]
    assert len(starts) == 7, "more cuts than attempts without progress"
    assert starts == sorted(set(starts))
    assert {end for _, end in requests.ranges} == {len(BODY) - 1000}
    assert requests.conditions[0] is None
    assert len(set(requests.conditions[1:])) == 1
    assert requests.conditions[1] is not None


def test_an_object_replaced_in_between_is_never_mixed_in(bucket: Bucket, proxy: FaultProxy) -> None:
    def replace(number: int) -> None:
        if number == 1:
            bucket.put("x", BODY[::-1])

    proxy.decide = Requests(Fault.CUT, before=replace)
    with pytest.raises(ObjectChanged):
        reading(bucket, proxy, lambda reader: reader.get_range("x", 0, len(BODY)))


def test_an_answer_without_a_byte_more_is_not_asked_forever(
    bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockgz.store.s3_client.BODY_ATTEMPTS", 2)
    proxy.decide = requests = Requests(*[Fault.RESET_BEFORE] * 10)
    with pytest.raises(StoreUnavailable):
        reading(bucket, proxy, lambda reader: reader.get_range("x", 0, 100))
    assert len(requests.ranges) <= 2


def test_a_read_that_hangs_is_asked_again(bucket: Bucket, proxy: FaultProxy) -> None:
    class Impatient(SlowReads):
        def patience(self, num_bytes: int) -> float | None:
            return 0.05

        def spend(self) -> bool:
            return True

    proxy.decide = requests = Requests(Fault.HELD)

    async def use(reader: ObjectReader) -> tuple[bytes, int]:
        hedging = HedgingReader(reader, Impatient())
        return await hedging.get_range("x", 5, 500), hedging.second_requests

    assert reading(bucket, proxy, use) == (BODY[5:500], 1)
    assert requests.ranges == [(5, 500)] * 2


MIB = 1024 * 1024


class Scripted(CountingReader):
    """Answers reads, once all are made, by what is scripted: a body, an error, or nothing until it is cancelled."""

    def __init__(self, *answers: bytes | Exception | None) -> None:
        self.answers = [*answers]
        self.asked = 0
        self.cancelled = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        answer = self.answers[self.asked]
        self.asked += 1
        while self.asked < len(self.answers):
            await asyncio.sleep(0)
        if answer is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


class Impatient(SlowReads):
    """Calls every read slow at once."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.allowed = allowed

    def patience(self, num_bytes: int) -> float | None:
        return 0

    def spend(self) -> bool:
        self.allowed -= 1
        return self.allowed >= 0


def read(scripted: Scripted, allowed: int = 1) -> tuple[bytes, int]:
    reader = HedgingReader(scripted, Impatient(allowed))
    body = asyncio.run(asyncio.wait_for(reader.get_range("x", 0, 4), 20))
    return body, reader.second_requests


def test_the_second_answer_wins_and_the_first_request_is_cancelled() -> None:
    scripted = Scripted(None, b"body")
    assert read(scripted) == (b"body", 1)
    assert (scripted.asked, scripted.cancelled) == (2, 1)


def test_the_first_answer_wins_and_the_second_request_is_cancelled() -> None:
    scripted = Scripted(b"body", None)
    assert read(scripted) == (b"body", 1)
    assert scripted.cancelled <= 1


def test_an_error_of_one_request_waits_for_the_other() -> None:
    assert read(Scripted(StoreUnavailable("down"), b"body")) == (b"body", 1)
    assert read(Scripted(b"body", StoreUnavailable("down"))) == (b"body", 1)


def test_where_both_fail_the_first_error_is_raised() -> None:
    with pytest.raises(ObjectTruncated):
        read(Scripted(ObjectTruncated("x", 0, 4), StoreUnavailable("down")))


def test_nothing_is_asked_twice_beyond_the_allowance() -> None:
    assert read(Scripted(b"body"), allowed=0) == (b"body", 0)


def test_cancelling_the_read_cancels_both_requests() -> None:
    scripted = Scripted(None, None)

    async def run() -> None:
        task = asyncio.create_task(HedgingReader(scripted, Impatient(1)).get_range("x", 0, 4))
        while scripted.asked < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 20))
    assert scripted.cancelled == 2


def test_a_read_is_slow_by_what_reads_of_its_size_took() -> None:
    slow_reads = SlowReads()
    for number in range(FEWEST_READS):
        assert slow_reads.patience(MIB) is None
        slow_reads.took(MIB, 1 + number / 100)
    assert slow_reads.patience(MIB) == pytest.approx(1 + 19 / 100)
    assert slow_reads.patience(MIB // 64) is None
    for _ in range(FEWEST_READS):
        slow_reads.took(100, 0.001)
    assert slow_reads.patience(100) == SHORTEST_PATIENCE


def test_second_requests_are_a_bounded_share() -> None:
    slow_reads, made = SlowReads(), Counter[bool]()
    for _ in range(10_000):
        slow_reads.patience(MIB)
        made[slow_reads.spend()] += 1
    assert made[True] <= 10_000 * EXTRA_SHARE + BURST
    for _ in range(10_000):
        slow_reads.patience(MIB)
    assert sum(slow_reads.spend() for _ in range(100)) == BURST


PART = 64 * 1024
AFTER_IT_WAS_APPLIED = [Fault.RESET_AFTER, Fault.ERROR_AFTER, Fault.TWICE, Fault.TWICE_LATE]
UNBEARABLE = (Fault.HELD, Fault.DENIED, Fault.EXPIRED)
BEFORE_IT_WAS_APPLIED = [Fault.RESET_BEFORE, Fault.ERROR_BEFORE, Fault.THROTTLE, Fault.LATE]


@pytest.fixture(scope="module")
def shared_proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as clean_proxy:
        yield clean_proxy


@pytest.fixture(scope="module")
def empty_bucket(upstream: str) -> Iterator[Bucket]:
    empty_bucket = Bucket(upstream, "archives")
    yield empty_bucket
    empty_bucket.close()


@pytest.fixture(scope="module")
def shared_store(shared_proxy: FaultProxy, empty_bucket: Bucket) -> Iterator[S3Store]:
    """Without repeats by the client itself, which would take their time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setattr(store_writer, "PART_BYTES", PART)
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
        store = S3Store(
            S3Address(empty_bucket.name, ""), S3Settings(shared_proxy.endpoint_url, "us-east-1"), attempts=1
        )
        yield store
        store.close()


@pytest.fixture
def clean_proxy(shared_proxy: FaultProxy) -> Iterator[FaultProxy]:
    shared_proxy.counts.clear()
    shared_proxy.operations.clear()
    yield shared_proxy
    shared_proxy.decide = no_fault


@pytest.fixture
def store(shared_store: S3Store, clean_proxy: FaultProxy) -> S3Store:
    """An archive of its own for each test."""
    shared_store.prefix = f"{uuid.uuid4().hex}/"
    shared_store._abandoned.clear()
    return shared_store


@pytest.fixture
def large(tmp_path: Path) -> FileBody:
    """A body of three parts."""
    content = random.randbytes(PART) + bytes(PART) + b"the rest"
    path = tmp_path / "chunk"
    path.write_bytes(content)
    return FileBody(path, len(content), hashlib.sha256(content).hexdigest())


class Nothing:
    """A log that is never asked."""

    def bounds(self, at_least: int) -> None: ...
    def record_at(self, offset: int) -> None: ...


def store_at(store: S3Store, body: FileBody | bytes, tries: list[int]) -> Conflict | None:
    """Store a body as a commit does; `tries` gets the number of each further try."""
    driver = Driver(store, Nothing(), lambda attempt, _: tries.append(attempt), lambda: True)  # type: ignore[arg-type]
    return driver.run(store_once([(lambda conflict: f"x{conflict or ''}", body)], 7))


@pytest.mark.parametrize("fault", [*BEFORE_IT_WAS_APPLIED, *AFTER_IT_WAS_APPLIED], ids=lambda fault: fault.value)
@pytest.mark.parametrize("operation", ["CompleteMultipartUpload", "UploadPart", "CreateMultipartUpload"])
def test_a_large_object_is_stored_once_under_its_plain_name(
    store: S3Store, clean_proxy: FaultProxy, large: FileBody, operation: str, fault: Fault
) -> None:
    clean_proxy.decide = once(operation, fault)
    assert store_at(store, large, []) is None
    clean_proxy.deliver_late()
    assert clean_proxy.counts[fault] == 1
    stored = store.get("x")
    assert stored is not None
    assert hashlib.sha256(stored.body).hexdigest() == large.sha256
    assert [found.key for found in store.list("")] == ["x"]
    if operation != "CreateMultipartUpload":  # one whose answer is lost stays until gc: nobody knows its id
        assert not list(store.leftovers())


@pytest.mark.parametrize("fault", [*BEFORE_IT_WAS_APPLIED, *AFTER_IT_WAS_APPLIED], ids=lambda fault: fault.value)
def test_a_small_object_is_stored_once_under_its_plain_name(
    store: S3Store, clean_proxy: FaultProxy, fault: Fault
) -> None:
    clean_proxy.decide = once("PutObject", fault)
    assert store_at(store, b"body", []) is None
    clean_proxy.deliver_late()
    assert [found.key for found in store.list("")] == ["x"]


def test_a_body_that_breaks_off_is_asked_for_again(store: S3Store, clean_proxy: FaultProxy, large: FileBody) -> None:
    store_at(store, large, [])
    content = large.path.read_bytes()
    for read in (lambda: store.get_range("x", 5, PART + 5), lambda: getattr(store.get("x"), "body", b"")[5 : PART + 5]):
        clean_proxy.decide = once("GetObject", Fault.CUT)
        assert read() == content[5 : PART + 5]
    assert clean_proxy.counts[Fault.CUT] == 2


def test_one_that_always_breaks_off_is_an_error(store: S3Store, clean_proxy: FaultProxy) -> None:
    store_at(store, b"body" * 99, [])
    clean_proxy.decide = lambda _: Fault.CUT
    with pytest.raises(StoreUnavailable):
        store.get("x")
    assert clean_proxy.counts[Fault.CUT] == BODY_ATTEMPTS


def test_an_answer_that_stays_lost_is_resolved_by_the_attempt(
    store: S3Store, clean_proxy: FaultProxy, large: FileBody
) -> None:
    """No request to complete it is ever answered, and no second upload is made."""

    def decide(request: Request) -> Fault:
        return Fault.ERROR_AFTER if request.operation == "CompleteMultipartUpload" else Fault.NONE

    clean_proxy.decide = decide
    tries: list[int] = []
    assert store_at(store, large, tries) is None
    assert clean_proxy.operations["CompleteMultipartUpload"] == clean_proxy.operations["CreateMultipartUpload"] == 1
    assert tries == [1]
    assert [found.key for found in store.list("")] == ["x"]


def test_another_writers_object_is_never_taken_for_ones_own(
    store: S3Store, empty_bucket: Bucket, large: FileBody
) -> None:
    empty_bucket.put(f"{store.prefix}x", b"an orphan")
    conflict = store_at(store, large, [])
    assert conflict is not None
    stored = store.get("x")
    assert stored is not None
    assert stored.body == b"an orphan"
    assert sorted(found.key for found in store.list("")) == ["x", f"x{conflict}"]
    assert not list(store.leftovers())


def test_an_upload_that_fails_is_aborted(store: S3Store, clean_proxy: FaultProxy, large: FileBody) -> None:
    def decide(request: Request) -> Fault:
        return Fault.THROTTLE if request.operation == "UploadPart" and "partNumber=2" in request.path else Fault.NONE

    clean_proxy.decide = decide
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("x", large, "attempt")
    assert clean_proxy.operations["AbortMultipartUpload"] == 1
    assert not list(store.leftovers())


def test_an_upload_that_a_shutdown_abandons_is_aborted(
    store: S3Store, clean_proxy: FaultProxy, large: FileBody
) -> None:
    def decide(request: Request) -> Fault:
        if request.operation == "UploadPart":
            store.abandon_uploads()
        return Fault.NONE

    clean_proxy.decide = decide
    with pytest.raises(ShuttingDown):
        store.put_if_absent("x", large, "attempt")
    assert clean_proxy.operations["CompleteMultipartUpload"] == 0
    assert not list(store.leftovers())
    with pytest.raises(ShuttingDown):
        store.put_if_absent("x", large, "attempt")


@pytest.mark.slow
def test_a_swap_survives_whatever_happens_to_its_requests(store: S3Store, clean_proxy: FaultProxy) -> None:
    """Each swap names the version before: what arrives late or twice changes nothing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    weights = {fault: 1.0 for fault in Fault if fault not in UNBEARABLE} | {Fault.NONE: 8.0}
    faulty = seeded(seed, weights)
    clean_proxy.decide = lambda request: faulty(request) if request.operation == "PutObject" else Fault.NONE
    etag: str | None = None
    for number in range(12):
        body = b"version %d" % number
        while True:
            try:
                etag_of_it = store.compare_and_swap("marker", body, etag)
            except StoreUnavailable:
                etag_of_it = None
            found = store.get("marker")
            if found is not None and found.body == body:
                assert etag_of_it in (None, found.etag)
                etag = found.etag
                break
        if number % 4 == 3:
            clean_proxy.deliver_late()
            found = store.get("marker")
            assert found is not None
            assert found.body == body
    assert sum(clean_proxy.counts.values()) > 12


def test_a_buffer_file_that_cannot_be_read_back_is_the_buffers_failure(store: S3Store, tmp_path: Path) -> None:
    """As of a disk that fails: the chunk is read from Kafka again, and the partition goes on."""
    folder = FileBody(tmp_path, tmp_path.stat().st_size, "0" * 64)
    with pytest.raises(BufferFailed, match="changed after it was written"):
        store.put_if_absent("x", folder, "attempt")
    with pytest.raises(BufferFailed):
        _check_file(folder)
    assert store.head("x") is None


class TestRefusals:
    def test_a_token_that_expired_is_replaced_by_the_one_in_its_file(
        self, clean_proxy: FaultProxy, empty_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = tmp_path / "credentials"
        profile.write_text("[default]\naws_access_key_id = OLD\naws_secret_access_key = secret\n")
        for name in CREDENTIALS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
        monkeypatch.setattr(s3_store, "RENEWED_SECONDS", 0.0)
        store = S3Store(S3Address(empty_bucket.name, ""), S3Settings(clean_proxy.endpoint_url, "us-east-1"), attempts=1)
        clean_proxy.decide = lambda request: Fault.EXPIRED if "OLD" in request.headers["authorization"] else Fault.NONE
        for ask in (lambda: store.get("x"), lambda: store.head("x")):
            with pytest.raises(AccessDenied) as caught:
                ask()
            assert "renew" in caught.value.remedy
        profile.write_text(profile.read_text().replace("OLD", "NEW"))
        assert store.get("x") is None
        store.close()

    def test_a_client_is_not_made_anew_for_each_refusal(
        self, store: S3Store, clean_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = list[str]()

        def new_client() -> object:
            clients.append("new")
            return store._latest_client

        monkeypatch.setattr(store, "_new_client", new_client)
        monkeypatch.setattr(store, "_renewed_at", -math.inf)
        clean_proxy.decide = lambda _: Fault.DENIED
        for _ in range(3):
            with pytest.raises(AccessDenied):
                store.get("x")
        clean_proxy.decide = no_fault
        assert store.get("x") is None and clients == ["new"]
