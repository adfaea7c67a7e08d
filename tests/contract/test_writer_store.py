"""What every store of the archiver must do, whatever it is; then what each does when its world fails."""

import errno
import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import boto3
import pytest

from blockgz import errors
from blockgz.store import local
from blockgz.store.address import S3Address, S3Settings
from blockgz.store.local import LocalStore
from blockgz.store.opening import default_buffer_root, open_store
from blockgz.store.probe import probe
from blockgz.store.s3_writer import S3Store
from blockgz.store.writer import PART_BYTES, ContentTag, FileBody, ObjectHead, Store, StoredObject
from tests.support.http_proxy import Unconditional
from tests.support.memory_store import MemoryStore
from tests.support.s3_server import CREDENTIALS, s3_server
from tests.support.scripted_http import CLOSE, Answer, Script, scripted_server

RACERS = 32
KEYS = [
    "x",
    "topic=orders/partition=00003/00000000000000000000.gz",
    "topic=orders~2/partition=00003/00000000000000000000~e7-ab12cd34.index.json",
    "2016-02-24~e7-ab12cd34/bar-00000-000000000000.gz",
    ".probe-1/create",
    "a+b & c/%2F?#",
]


@pytest.fixture(scope="module", autouse=True)
def _credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def endpoint_url(_credentials: None) -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def s3_stores(endpoint_url: str) -> Iterator[dict[str, tuple[S3Store, S3Store]]]:
    """Two stores at the top of a bucket, two below a prefix, two without conditions; a client is slow to make."""
    client = boto3.client("s3", endpoint_url=endpoint_url)
    for bucket in ("top", "below", "single"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="below", Key="outside", Body=b"not of the archive")
    client.close()
    with ExitStack() as opened:
        unconditional = opened.enter_context(Unconditional(endpoint_url))

        def opening(bucket: str, prefix: str, *, is_conditional: bool = True) -> S3Store:
            url = endpoint_url if is_conditional else unconditional.endpoint_url
            store = S3Store(S3Address(bucket, prefix), S3Settings(url), is_conditional=is_conditional)
            opened.callback(store.close)
            return store

        yield {
            "s3": (opening("top", ""), opening("top", "")),
            "s3-prefix": (opening("below", "a/b/"), opening("below", "a/b/")),
            "s3-single": (opening("single", "", is_conditional=False), opening("single", "", is_conditional=False)),
        }
        assert unconditional.num_refused == 0, "a single writer sends no conditions"


class Place(NamedTuple):
    """A store under test; `again` opens another onto the same place, as another process would."""

    store: Store
    again: Callable[[], Store]
    keeps_attempts: bool


def keys_of(store: Store, prefix: str) -> list[str]:
    return sorted(found.key for found in store.list(prefix))


@pytest.fixture(params=["local", "s3", "s3-prefix", "s3-single", "memory"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_stores: dict[str, tuple[S3Store, S3Store]]
) -> Iterator[Place]:
    if request.param == "memory":
        memory = MemoryStore()
        yield Place(memory, lambda: memory, keeps_attempts=True)
    elif request.param == "local":
        root = tmp_path / "archive"
        yield Place(LocalStore(root), lambda: LocalStore(root), keeps_attempts=False)
    else:
        store, other = s3_stores[request.param]
        yield Place(store, lambda: other, keeps_attempts=True)
        for key in keys_of(store, ""):
            store.delete(key)


@pytest.fixture
def store(place: Place) -> Store:
    return place.store


def file_body(path: Path, content: bytes) -> FileBody:
    path.write_bytes(content)
    return FileBody(path, len(content), hashlib.sha256(content).hexdigest())


def body_of(store: Store, key: str) -> bytes | None:
    found = store.get(key)
    return None if found is None else found.body


@pytest.mark.slow
def test_what_is_not_there(store: Store) -> None:
    for key in KEYS:
        assert store.get(key) is None
        assert store.head(key) is None
        store.delete(key)
    assert keys_of(store, "") == []


@pytest.mark.parametrize("key", KEYS)
def test_keys(place: Place, key: str) -> None:
    assert place.store.put_if_absent(key, b"put", "attempt")
    assert body_of(place.again(), key) == b"put"
    assert place.store.head(key)
    place.store.delete(key)
    assert place.store.compare_and_swap(key, b"swapped", None)
    assert body_of(place.again(), key) == b"swapped"
    place.store.delete(key)
    assert place.store.get(key) is None


@pytest.mark.parametrize("content", [b"", b"content", bytes(range(256)) * 4096], ids=["empty", "small", "1 MiB"])
@pytest.mark.parametrize("from_file", [True, False])
def test_contents(place: Place, tmp_path: Path, content: bytes, from_file: bool) -> None:
    store, key = place.store, "topic=orders/x"
    body = file_body(tmp_path / "body", content) if from_file else content
    assert store.put_if_absent(key, body, "attempt-1")
    assert body_of(store, key) == body_of(place.again(), key) == content
    head = store.head(key)
    assert head is not None and head.size == len(content)
    assert head.attempt == ("attempt-1" if place.keeps_attempts else None)


def test_what_is_taken_stays(place: Place, tmp_path: Path) -> None:
    store = place.store
    assert store.put_if_absent("x", b"first", "attempt-1")
    assert not store.put_if_absent("x", b"second", "attempt-2")
    assert not place.again().put_if_absent("x", file_body(tmp_path / "body", b"third"), "attempt-3")
    assert body_of(store, "x") == b"first"
    head = store.head("x")
    assert head is not None and head.attempt in (None, "attempt-1")


@pytest.mark.slow
def test_a_body_of_several_parts(place: Place, tmp_path: Path) -> None:
    content = os.urandom(1024) * (2 * PART_BYTES // 1024) + b"the rest"
    body = file_body(tmp_path / "body", content)
    assert place.store.put_if_absent("topic=a/large.gz", body, "attempt-1")
    head = place.store.head("topic=a/large.gz")
    assert head is not None and head.size == len(content)
    assert head.attempt == ("attempt-1" if place.keeps_attempts else None)
    assert hashlib.sha256(body_of(place.store, "topic=a/large.gz") or b"").hexdigest() == body.sha256
    assert not place.again().put_if_absent("topic=a/large.gz", body, "attempt-2")
    assert keys_of(place.store, "") == ["topic=a/large.gz"]


def test_the_callers_file_stays_the_callers(store: Store, tmp_path: Path) -> None:
    body = file_body(tmp_path / "body", b"content")
    store.put_if_absent("x", body, "attempt-1")
    body.path.unlink(missing_ok=True)
    assert body_of(store, "x") == b"content"


@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_file_that_changed_is_not_stored(place: Place, tmp_path: Path, change: str) -> None:
    body = file_body(tmp_path / "body", b"content")
    if change == "cut":
        body.path.write_bytes(b"con")
    else:
        body.path.unlink()
    with pytest.raises(errors.BufferFailed):
        place.store.put_if_absent("x", body, "attempt-1")
    assert place.store.get("x") is None


def test_swap_creates_only_what_is_not_there(store: Store) -> None:
    etag = store.compare_and_swap("topic=a/marker", b"one", None)
    assert store.get("topic=a/marker") == StoredObject(b"one", etag or "")
    assert store.compare_and_swap("topic=a/marker", b"two", None) is None
    assert body_of(store, "topic=a/marker") == b"one"


def test_swap_replaces_the_version_it_names(place: Place) -> None:
    store = place.store
    first = store.compare_and_swap("x", b"one", None)
    second = store.compare_and_swap("x", b"two", first)
    assert None not in (first, second) and first != second
    assert store.get("x") == place.again().get("x") == StoredObject(b"two", second or "")
    assert store.compare_and_swap("x", b"three", first) is None, "a stale version"
    third = place.again().compare_and_swap("x", b"three", second)
    assert third is not None and body_of(store, "x") == b"three"


def test_swap_of_what_vanished_is_refused(store: Store) -> None:
    etag = store.compare_and_swap("x", b"one", None)
    store.delete("x")
    assert store.compare_and_swap("x", b"two", etag) is None
    assert store.get("x") is None


def test_equal_bodies_have_equal_versions(store: Store) -> None:
    assert store.compare_and_swap("x", b"one", None) == store.compare_and_swap("y", b"one", None)


def test_put_and_swap_see_each_other(store: Store) -> None:
    assert store.put_if_absent("x", b"one", "attempt-1")
    assert store.compare_and_swap("x", b"two", None) is None
    found = store.get("x")
    assert found is not None and store.compare_and_swap("x", b"two", found.etag)
    assert not store.put_if_absent("x", b"three", "attempt-2")


def test_ranges(place: Place) -> None:
    store = place.store
    assert isinstance(store, LocalStore | S3Store | MemoryStore)
    store.put_if_absent("a/x", b"0123456789", "mine")
    ranges = [(0, 10), (3, 5), (8, 20), (10, 12)]
    assert [store.get_range("a/x", *each) for each in ranges] == [b"0123456789", b"34", b"89", b""]
    with pytest.raises(errors.StoreError):
        store.get_range("a/gone", 0, 1)


def test_list_and_delete(store: Store) -> None:
    keys = ["t/a/10", "t/a/2", "t/b", "t-x", "u"]
    for key in keys:
        store.put_if_absent(key, b"1", "attempt")
    assert keys_of(store, "") == sorted(keys)
    assert keys_of(store, "t/") == ["t/a/10", "t/a/2", "t/b"]
    assert keys_of(store, "t") == ["t-x", "t/a/10", "t/a/2", "t/b"]
    assert keys_of(store, "t/a/1") == ["t/a/10"]
    assert keys_of(store, "none/") == []
    for key in keys:
        store.delete(key)
        store.delete(key)
    assert keys_of(store, "") == []
    assert store.put_if_absent("t/b", b"again", "attempt")


def test_a_race_to_create_has_one_winner(place: Place, request: pytest.FixtureRequest) -> None:
    skip_without_conditions(request)
    stores = [place.again() for _ in range(4)]
    with ThreadPoolExecutor(RACERS) as pool:
        wins = list(pool.map(lambda n: stores[n % 4].put_if_absent("race", b"%d" % n, f"a-{n}"), range(RACERS)))
    assert sum(wins) == 1
    assert body_of(place.store, "race") == b"%d" % wins.index(True)


def test_a_race_to_swap_has_one_winner(place: Place, request: pytest.FixtureRequest) -> None:
    skip_without_conditions(request)
    stores = [place.again() for _ in range(4)]
    etag = place.store.compare_and_swap("race", b"start", None)
    with ThreadPoolExecutor(RACERS) as pool:
        etags = list(pool.map(lambda n: stores[n % 4].compare_and_swap("race", b"%d" % n, etag), range(RACERS)))
    (winner,) = [number for number, given in enumerate(etags) if given is not None]
    assert place.store.get("race") == StoredObject(b"%d" % winner, etags[winner] or "")


def skip_without_conditions(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["place"] == "s3-single":
        pytest.skip("a store without conditions keeps no two writers apart")


@pytest.mark.slow
def test_the_probe_finds_it_fit_and_leaves_it_clean(store: Store, request: pytest.FixtureRequest) -> None:
    skip_without_conditions(request)
    probe(store, multipart=True)
    assert keys_of(store, "") == []


# The folder


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_temporary_and_lock_files_are_never_listed_and_temporary_ones_gone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/x", b"1", "attempt")
    store.put_if_absent("a/x", b"2", "attempt")
    etag = store.compare_and_swap("a/marker", b"1", None)
    store.compare_and_swap("a/marker", b"2", etag)
    store.compare_and_swap("a/marker", b"3", etag)
    assert everything(tmp_path) == {"a/x", "a/marker", "a/.marker.lock"}
    (tmp_path / "a" / ".x.0123.tmp").write_bytes(b"left by the dead")
    (tmp_path / ".buffer").mkdir()
    (tmp_path / ".buffer" / "x").write_bytes(b"")
    assert keys_of(store, "") == ["a/marker", "a/x"]


def test_a_finished_buffer_file_is_linked_and_not_copied(tmp_path: Path) -> None:
    body = file_body(tmp_path / "body", b"content")
    LocalStore(tmp_path / "archive").put_if_absent("x", body, "attempt")
    assert (tmp_path / "archive" / "x").stat().st_ino == body.path.stat().st_ino


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system here")
def test_a_buffer_on_another_file_system_is_copied(tmp_path: Path) -> None:
    path = Path("/dev/shm") / f"blockgz-{uuid.uuid4().hex}"
    body = file_body(path, b"content")
    try:
        store = LocalStore(tmp_path / "archive")
        assert store.put_if_absent("x", body, "attempt") and body_of(store, "x") == b"content"
    finally:
        path.unlink()


def test_every_new_folder_is_made_durable_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(local.atomic_file, "sync_folder", synced.append)
    root = tmp_path / "new" / "archive"
    store = LocalStore(root)
    store.put_if_absent("topic=a/partition=00000/x", b"1", "attempt")
    created = [root.parent, root, root / "topic=a", root / "topic=a" / "partition=00000"]
    assert synced == [folder.parent for folder in created] + [created[-1]]
    synced.clear()
    store.compare_and_swap("topic=a/partition=00000/marker", b"1", None)
    assert synced == [created[-1]]


def broken_disk(_: Path) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("seam", ["sync_file", "sync_folder"])
def test_a_failed_fsync_ends_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: str) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(local.atomic_file, seam, broken_disk)
    for write in (
        lambda: store.put_if_absent("x", b"1", "attempt"),
        lambda: store.compare_and_swap("marker", b"1", None),
    ):
        with pytest.raises(errors.SyncFailed, match="cannot be synced"):
            write()
    if seam == "sync_file":
        assert everything(tmp_path) <= {".marker.lock"}


def test_a_file_whose_fsync_failed_is_copied_when_it_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, store = file_body(tmp_path / "body", b"content"), LocalStore(tmp_path / "archive")
    with monkeypatch.context() as broken:
        broken.setattr(local.atomic_file, "sync_file", broken_disk)
        with pytest.raises(errors.SyncFailed):
            store.put_if_absent("x", body, "attempt")
    assert store.put_if_absent("x", body, "attempt") and body_of(store, "x") == b"content"
    assert (tmp_path / "archive" / "x").stat().st_ino != body.path.stat().st_ino
    with pytest.raises(errors.BufferFailed):
        store.put_if_absent("y", body._replace(sha256="0" * 64), "attempt")


def test_a_folder_whose_fsync_failed_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = LocalStore(tmp_path), list[Path]()
    with monkeypatch.context() as broken:
        broken.setattr(local.atomic_file, "sync_folder", broken_disk)
        with pytest.raises(errors.SyncFailed):
            store.put_if_absent("a/x", b"1", "attempt")
    monkeypatch.setattr(local.atomic_file, "sync_folder", synced.append)
    store.put_if_absent("a/x", b"1", "attempt")
    assert synced == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.StoreFull),
        (errno.EDQUOT, errors.StoreFull),
        (errno.ESTALE, errors.StoreUnavailable),
        (errno.EIO, errors.StoreUnavailable),
        (errno.ETIMEDOUT, errors.StoreUnavailable),
        (errno.EMFILE, errors.StoreUnavailable),
        (errno.EROFS, errors.AccessDenied),
        (errno.EACCES, errors.AccessDenied),
        (errno.ENAMETOOLONG, errors.StoreError),
    ],
)
def test_what_a_file_system_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    store = LocalStore(tmp_path)

    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(kind) as caught:
        store.compare_and_swap("marker", b"1", None)
    assert type(caught.value) is kind and os.strerror(number) in str(caught.value.why)


def test_a_full_disk(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for write in (
            lambda: store.put_if_absent("x", bytes(5000), "attempt"),
            lambda: store.compare_and_swap("marker", bytes(5000), None),
        ):
            with pytest.raises(errors.StoreError) as caught:
                write()
            assert caught.value.why and "free space" in caught.value.remedy
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert everything(tmp_path) <= {".marker.lock"}


@pytest.mark.parametrize("place", ["file", "file/below", "file/below/deep", "/proc/none/archive"])
def test_a_folder_that_cannot_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((errors.StoreError, errors.AccessDenied)) as caught:
        LocalStore(tmp_path / place)
    assert caught.value.why and caught.value.remedy
    assert (tmp_path / "file").read_bytes() == b""


def test_a_key_below_a_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("x", b"1", "attempt")
    for use in (
        lambda: store.get("x/below"),
        lambda: store.head("x/below"),
        lambda: store.put_if_absent("x/below", b"1", "attempt"),
        lambda: store.compare_and_swap("x/below", b"1", None),
    ):
        with pytest.raises(errors.StoreError):
            use()


HOLDER = """
import fcntl, os, signal, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
if sys.argv[2] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_marker_that_another_process_keeps_locked(tmp_path: Path, state: str) -> None:
    patient = LocalStore(tmp_path)
    etag = patient.compare_and_swap("a/marker", b"one", None)
    hasty = LocalStore(tmp_path, lock_deadline_seconds=0.05)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a" / ".marker.lock"), state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        try:
            with pytest.raises(errors.StoreUnavailable, match="stays locked") as caught:
                hasty.compare_and_swap("a/marker", b"two", etag)
            assert "fuser" in caught.value.remedy
            assert body_of(hasty, "a/marker") == b"one", "readers need no lock"
        finally:
            holder.kill()
    assert hasty.compare_and_swap("a/marker", b"two", etag), "the lock died with its holder"


# S3


class Broken(NamedTuple):
    """A store whose server says what the script says."""

    store: S3Store
    script: Script


@pytest.fixture(scope="module")
def broken_server(_credentials: None) -> Iterator[Broken]:
    with scripted_server() as script:
        store = S3Store(S3Address("bucket", "p/"), S3Settings(script.endpoint_url), attempts=1)
        yield Broken(store, script)
        store.close()


@pytest.fixture
def broken(broken_server: Broken) -> Broken:
    broken_server.script.requests.clear()
    return broken_server


OPERATIONS: dict[str, Callable[[S3Store], Any]] = {
    "get": lambda store: store.get("x"),
    "head": lambda store: store.head("x"),
    "put": lambda store: store.put_if_absent("x", b"body", "attempt"),
    "create": lambda store: store.compare_and_swap("x", b"body", None),
    "swap": lambda store: store.compare_and_swap("x", b"body", '"etag"'),
    "list": lambda store: keys_of(store, ""),
    "delete": lambda store: store.delete("x"),
}
each_operation = pytest.mark.parametrize("use", OPERATIONS.values(), ids=OPERATIONS)
each_write = pytest.mark.parametrize(
    "use", [OPERATIONS[name] for name in ("put", "create", "swap")], ids=["put", "create", "swap"]
)


@each_operation
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(403, "AccessDenied"), errors.AccessDenied),
        (Answer(403, "SignatureDoesNotMatch"), errors.AccessDenied),
        (Answer(403, "InvalidAccessKeyId"), errors.AccessDenied),
        (Answer(401), errors.AccessDenied),
        (Answer(403, body=b"<html>proxy</html>"), errors.AccessDenied),
        (Answer(500, "InternalError"), errors.StoreBusy),
        (Answer(503, "SlowDown"), errors.StoreBusy),
        (Answer(503, body=b"<html>maintenance"), errors.StoreBusy),
        (Answer(504), errors.StoreBusy),
        (Answer(429), errors.StoreBusy),
        (CLOSE, errors.StoreUnavailable),
        (Answer(400, "InvalidRequest"), errors.StoreError),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Answer) else None,
)
def test_errors_are_typed(broken: Broken, answer: Answer, kind: type[Exception], use: Callable[[S3Store], Any]) -> None:
    broken.script.answer = answer
    with pytest.raises((kind, errors.AccessDenied)) as caught:
        use(broken.store)
    has_no_body = broken.script.requests[-1].startswith("HEAD")
    assert type(caught.value) is (errors.AccessDenied if has_no_body and answer.status == 400 else kind)


def test_a_request_is_tried_as_often_as_asked_for(broken: Broken) -> None:
    broken.script.answer = Answer(503, "SlowDown")
    with pytest.raises(errors.StoreUnavailable):
        broken.store.get("x")
    assert broken.script.requests == ["GET /bucket/p/x"]


def test_denied_says_what_to_grant(broken: Broken) -> None:
    broken.script.answer = Answer(403, "AccessDenied")
    with pytest.raises(errors.AccessDenied) as caught:
        broken.store.get("x")
    assert "s3:ListBucket" in caught.value.why and "s3:PutObject" in caught.value.remedy
    assert caught.value.exit_code == 12


@each_write
def test_412_means_another_version(broken: Broken, use: Callable[[S3Store], Any]) -> None:
    for answer in (Answer(412, "PreconditionFailed"), Answer(412)):
        broken.script.answer = answer
        assert not use(broken.store)


@each_write
@pytest.mark.parametrize("answer", [Answer(501, "NotImplemented"), Answer(501), Answer(304)], ids=lambda it: it.status)
def test_a_store_without_conditional_writes_is_named(
    broken: Broken, answer: Answer, use: Callable[[S3Store], Any]
) -> None:
    broken.script.answer = answer
    with pytest.raises(
        errors.StoreUnfit, match=f"answers {answer.code or answer.status} to a conditional write"
    ) as caught:
        use(broken.store)
    assert "--single-writer" in caught.value.remedy


def test_a_writer_without_conditions_notices_that_another_one_was_faster(
    s3_stores: dict[str, tuple[S3Store, S3Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = s3_stores["s3-single"]
    first = store.compare_and_swap("marker", b"first", None)
    reads = iter([store.get("marker"), StoredObject(b"theirs", ContentTag('"theirs"'))])
    monkeypatch.setattr(store, "get", lambda _key: next(reads))
    assert store.compare_and_swap("marker", b"mine", first) is None, "another body is there after the write"
    monkeypatch.undo()
    heads = iter([None, ObjectHead(6, "another attempt")])
    monkeypatch.setattr(store, "head", lambda _key: next(heads))
    assert not store.put_if_absent("chunk", b"mine", "attempt"), "another attempt is there after the write"
    monkeypatch.undo()
    for key in keys_of(store, ""):
        store.delete(key)


@each_write
def test_409_is_asked_again(broken: Broken, use: Callable[[S3Store], Any]) -> None:
    for answer in (Answer(409, "ConditionalRequestConflict"), Answer(409), Answer(409, "OperationAborted")):
        broken.script.answer = answer
        with pytest.raises(errors.StoreUnavailable):
            use(broken.store)


def test_404_of_a_key_is_none_and_of_a_bucket_an_error(broken: Broken) -> None:
    broken.script.answer = Answer(404, "NoSuchKey")
    assert broken.store.get("x") is None and broken.store.head("x") is None
    assert broken.store.compare_and_swap("x", b"body", '"etag"') is None
    broken.script.answer = Answer(404, "NoSuchBucket")
    for use in (OPERATIONS["get"], OPERATIONS["put"], OPERATIONS["create"], OPERATIONS["list"]):
        with pytest.raises(errors.StoreError, match="no bucket 'bucket'"):
            use(broken.store)


def test_a_body_that_is_cut_short_is_asked_for_again(broken: Broken) -> None:
    broken.script.answer = Answer(200, body=b"half", promised=8)
    with pytest.raises(errors.StoreUnavailable):
        broken.store.get("x")


def test_an_interrupted_upload_of_parts_is_given_back(tmp_path: Path, broken: Broken) -> None:
    body = file_body(tmp_path / "body", bytes(PART_BYTES + 1))
    broken.script.answer = Answer(
        200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    )
    changed = body._replace(sha256="0" * 64)
    with pytest.raises(errors.BufferFailed):
        broken.store.put_if_absent("x", changed, "attempt")
    assert [request.split()[0] for request in broken.script.requests] == ["POST", "DELETE"]


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1])
def test_a_large_body_is_never_held_in_memory(tmp_path: Path, broken: Broken, size: int) -> None:
    body = file_body(tmp_path / "body", bytes(size))
    broken.script.answer = Answer(
        200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    )
    tracemalloc.start()
    try:
        assert broken.store.put_if_absent("x", body, "attempt")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024**2


def test_a_missing_bucket(endpoint_url: str) -> None:
    store = S3Store(S3Address("no-such-bucket", ""), S3Settings(endpoint_url))
    for use in (OPERATIONS["get"], OPERATIONS["put"], OPERATIONS["create"], OPERATIONS["list"]):
        with pytest.raises(errors.StoreError, match="there is no bucket 'no-such-bucket'") as caught:
            use(store)
        assert "aws s3 mb s3://no-such-bucket" in caught.value.remedy
    store.close()


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = S3Store(S3Address("bucket", ""), S3Settings(url), attempts=1)
        for use in OPERATIONS.values():
            with pytest.raises(errors.StoreUnavailable) as caught:
                use(store)
            assert "--endpoint-url" in caught.value.remedy
        store.close()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(S3Address("bucket", ""), S3Settings("http://127.0.0.1:9", "us-east-1"))
    with pytest.raises(errors.AccessDenied, match="no usable AWS credentials") as caught:
        store.get("x")
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy
    store.close()


def test_a_profile_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(errors.UsageError, match="cannot be set up") as caught:
        S3Store(S3Address("bucket", ""), S3Settings())
    assert "no-such-profile" in caught.value.why


def test_an_endpoint_that_is_not_a_url() -> None:
    with pytest.raises(errors.UsageError, match="cannot be set up"):
        S3Store(S3Address("bucket", ""), S3Settings("localhost:9000"))


# Opening


def test_addresses_choose_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = open_store("./archive", S3Settings())
    assert isinstance(here, LocalStore) and here.url == (tmp_path / "archive").as_uri()
    there = open_store(f"file://{tmp_path}/other", S3Settings())
    assert isinstance(there, LocalStore) and (tmp_path / "other").is_dir()
    away = open_store("s3://bucket/a/b", S3Settings("http://127.0.0.1:9"))
    assert isinstance(away, S3Store)
    assert (away.url, away.prefix) == ("s3://bucket/a/b", "a/b/")
    away.close()


def test_a_local_archive_keeps_its_buffer_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_buffer_root(str(tmp_path)) == tmp_path / ".buffer"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_buffer_root("s3://bucket/x") == Path("~/.cache/blockgz/buffer").expanduser()


@pytest.mark.parametrize("status", [404, 500])
def test_an_error_that_is_cut_off_is_not_a_fault_of_the_program(broken: Broken, status: int) -> None:
    broken.script.answer = Answer(status, "InternalError", promised=100_000, is_reset=True)
    with pytest.raises(errors.StoreUnavailable):
        broken.store.get("x")
