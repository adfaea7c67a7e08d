"""The archiver's S3 store behind a proxy that loses, delays and doubles requests: writes end in one object or none."""

import hashlib
import math
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.commit.driver import Driver
from archiver.commit.objects import store_once
from blockgz.errors import AccessDenied, BufferFailed, ShuttingDown, StoreUnavailable
from blockgz.store import s3_writer as s3_store
from blockgz.store import writer as store_writer
from blockgz.store.address import S3Address
from blockgz.store.s3_client import BODY_ATTEMPTS
from blockgz.store.s3_settings import S3Settings
from blockgz.store.s3_writer import S3Store, _check_file
from blockgz.store.writer import FileBody
from index_format.keys import Conflict
from tests.support.fault_proxy import Fault, FaultProxy, no_fault, once, seeded
from tests.support.http_proxy import Request
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

PART = 64 * 1024
AFTER_IT_WAS_APPLIED = [Fault.RESET_AFTER, Fault.ERROR_AFTER, Fault.TWICE, Fault.TWICE_LATE]
UNBEARABLE = (Fault.HELD, Fault.DENIED, Fault.EXPIRED)
BEFORE_IT_WAS_APPLIED = [Fault.RESET_BEFORE, Fault.ERROR_BEFORE, Fault.THROTTLE, Fault.LATE]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def shared_proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(upstream: str) -> Iterator[Bucket]:
    bucket = Bucket(upstream, "archives")
    yield bucket
    bucket.close()


@pytest.fixture(scope="module")
def shared_store(shared_proxy: FaultProxy, bucket: Bucket) -> Iterator[S3Store]:
    """Without repeats by the client itself, which would take their time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        for module in (s3_store, store_writer):
            patch.setattr(module, "PART_BYTES", PART)
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
        store = S3Store(S3Address(bucket.name, ""), S3Settings(shared_proxy.endpoint_url, "us-east-1"), attempts=1)
        yield store
        store.close()


@pytest.fixture
def proxy(shared_proxy: FaultProxy) -> Iterator[FaultProxy]:
    shared_proxy.counts.clear()
    shared_proxy.operations.clear()
    yield shared_proxy
    shared_proxy.decide = no_fault


@pytest.fixture
def store(shared_store: S3Store, proxy: FaultProxy) -> S3Store:
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
    store: S3Store, proxy: FaultProxy, large: FileBody, operation: str, fault: Fault
) -> None:
    proxy.decide = once(operation, fault)
    assert store_at(store, large, []) is None
    proxy.deliver_late()
    assert proxy.counts[fault] == 1
    stored = store.get("x")
    assert stored is not None
    assert hashlib.sha256(stored.body).hexdigest() == large.sha256
    assert [found.key for found in store.list("")] == ["x"]
    if operation != "CreateMultipartUpload":  # one whose answer is lost stays until gc: nobody knows its id
        assert not list(store.leftovers())


@pytest.mark.parametrize("fault", [*BEFORE_IT_WAS_APPLIED, *AFTER_IT_WAS_APPLIED], ids=lambda fault: fault.value)
def test_a_small_object_is_stored_once_under_its_plain_name(store: S3Store, proxy: FaultProxy, fault: Fault) -> None:
    proxy.decide = once("PutObject", fault)
    assert store_at(store, b"body", []) is None
    proxy.deliver_late()
    assert [found.key for found in store.list("")] == ["x"]


def test_a_body_that_breaks_off_is_asked_for_again(store: S3Store, proxy: FaultProxy, large: FileBody) -> None:
    store_at(store, large, [])
    content = large.path.read_bytes()
    for read in (lambda: store.get_range("x", 5, PART + 5), lambda: getattr(store.get("x"), "body", b"")[5 : PART + 5]):
        proxy.decide = once("GetObject", Fault.CUT)
        assert read() == content[5 : PART + 5]
    assert proxy.counts[Fault.CUT] == 2


def test_one_that_always_breaks_off_is_an_error(store: S3Store, proxy: FaultProxy) -> None:
    store_at(store, b"body" * 99, [])
    proxy.decide = lambda _: Fault.CUT
    with pytest.raises(StoreUnavailable):
        store.get("x")
    assert proxy.counts[Fault.CUT] == BODY_ATTEMPTS


def test_an_answer_that_stays_lost_is_resolved_by_the_attempt(
    store: S3Store, proxy: FaultProxy, large: FileBody
) -> None:
    """No request to complete it is ever answered, and no second upload is made."""

    def decide(request: Request) -> Fault:
        return Fault.ERROR_AFTER if request.operation == "CompleteMultipartUpload" else Fault.NONE

    proxy.decide = decide
    tries: list[int] = []
    assert store_at(store, large, tries) is None
    assert proxy.operations["CompleteMultipartUpload"] == proxy.operations["CreateMultipartUpload"] == 1
    assert tries == [1]
    assert [found.key for found in store.list("")] == ["x"]


def test_another_writers_object_is_never_taken_for_ones_own(store: S3Store, bucket: Bucket, large: FileBody) -> None:
    bucket.put(f"{store.prefix}x", b"an orphan")
    conflict = store_at(store, large, [])
    assert conflict is not None
    stored = store.get("x")
    assert stored is not None
    assert stored.body == b"an orphan"
    assert sorted(found.key for found in store.list("")) == ["x", f"x{conflict}"]
    assert not list(store.leftovers())


def test_an_upload_that_fails_is_aborted(store: S3Store, proxy: FaultProxy, large: FileBody) -> None:
    def decide(request: Request) -> Fault:
        return Fault.THROTTLE if request.operation == "UploadPart" and "partNumber=2" in request.path else Fault.NONE

    proxy.decide = decide
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("x", large, "attempt")
    assert proxy.operations["AbortMultipartUpload"] == 1
    assert not list(store.leftovers())


def test_an_upload_that_a_shutdown_abandons_is_aborted(store: S3Store, proxy: FaultProxy, large: FileBody) -> None:
    def decide(request: Request) -> Fault:
        if request.operation == "UploadPart":
            store.abandon_uploads()
        return Fault.NONE

    proxy.decide = decide
    with pytest.raises(ShuttingDown):
        store.put_if_absent("x", large, "attempt")
    assert proxy.operations["CompleteMultipartUpload"] == 0
    assert not list(store.leftovers())
    with pytest.raises(ShuttingDown):
        store.put_if_absent("x", large, "attempt")


@pytest.mark.slow
def test_a_swap_survives_whatever_happens_to_its_requests(store: S3Store, proxy: FaultProxy) -> None:
    """Each swap names the version before: what arrives late or twice changes nothing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    weights = {fault: 1.0 for fault in Fault if fault not in UNBEARABLE} | {Fault.NONE: 8.0}
    faulty = seeded(seed, weights)
    proxy.decide = lambda request: faulty(request) if request.operation == "PutObject" else Fault.NONE
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
            proxy.deliver_late()
            found = store.get("marker")
            assert found is not None
            assert found.body == body
    assert sum(proxy.counts.values()) > 12


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
        self, proxy: FaultProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = tmp_path / "credentials"
        profile.write_text("[default]\naws_access_key_id = OLD\naws_secret_access_key = secret\n")
        for name in CREDENTIALS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
        monkeypatch.setattr(s3_store, "RENEWED_SECONDS", 0.0)
        store = S3Store(S3Address(bucket.name, ""), S3Settings(proxy.endpoint_url, "us-east-1"), attempts=1)
        proxy.decide = lambda request: Fault.EXPIRED if "OLD" in request.headers["authorization"] else Fault.NONE
        for ask in (lambda: store.get("x"), lambda: store.head("x")):
            with pytest.raises(AccessDenied) as caught:
                ask()
            assert "renew" in caught.value.remedy
        profile.write_text(profile.read_text().replace("OLD", "NEW"))
        assert store.get("x") is None
        store.close()

    def test_a_client_is_not_made_anew_for_each_refusal(
        self, store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = list[str]()

        def new_client() -> object:
            clients.append("new")
            return store._latest_client

        monkeypatch.setattr(store, "_new_client", new_client)
        monkeypatch.setattr(store, "_renewed_at", -math.inf)
        proxy.decide = lambda _: Fault.DENIED
        for _ in range(3):
            with pytest.raises(AccessDenied):
                store.get("x")
        proxy.decide = no_fault
        assert store.get("x") is None and clients == ["new"]
