"""Stores: a folder's, caches, attempts, the probe, and one table of errors for the clients of both programs."""

import asyncio
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoRegionError,
    ProfileNotFound,
    UnauthorizedSSOTokenError,
    UnknownServiceError,
)
from botocore.parsers import ResponseParserError

from archiver.ingest.chunk_builder import BufferFolder
from blockgz import errors
from blockgz.atomic_file import replace_file, write_private
from blockgz.errors import exit_code as exit_code_of
from blockgz.store import reader as reader_module
from blockgz.store import retry
from blockgz.store.address import LocalAddress, S3Address, S3Settings
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.opening import default_buffer_root
from blockgz.store.probe import RACERS, probe
from blockgz.store.reader import SHARE_OF_ONE, DiskCache, WatchedReader, default_folder
from blockgz.store.s3_client import client_options, s3_errors, setup_errors
from blockgz.store.writer import Body, FileBody
from tests.support.memory_store import Kept, MemoryStore, content_of, etag_of


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """Path below the root -> its mode."""
    return {path.relative_to(root).as_posix(): oct(stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}


def written(root: Path) -> LocalStore:
    store = LocalStore(root)
    store.put_if_absent("topic=a/chunk", b"x", "attempt")
    store.compare_and_swap("topic=a/marker", b"{}", None)
    return store


def test_a_new_archive_is_its_owners_alone(tmp_path: Path) -> None:
    written(tmp_path / "new" / "archive")
    assert modes(tmp_path) == {
        "new": "0o700",
        "new/archive": "0o700",
        "new/archive/topic=a": "0o700",
        "new/archive/topic=a/chunk": "0o600",
        "new/archive/topic=a/marker": "0o600",
        "new/archive/topic=a/.marker.lock": "0o600",
    }


def test_below_a_root_that_is_there_its_mode_holds(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    written(tmp_path)
    files = dict.fromkeys(("topic=a/chunk", "topic=a/marker", "topic=a/.marker.lock"), "0o640")
    assert modes(tmp_path) == {"topic=a": "0o2750", **files}


def test_buffers_and_files_beside_archives_are_private(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path / "a" / "buffer")
    assert set(modes(tmp_path / "a").values()) <= {"0o700", "0o600"}
    buffer.close()
    write_private(tmp_path / "report", b"")
    replace_file(tmp_path / "state", b"")
    assert {modes(tmp_path)[name] for name in ("report", "state")} == {"0o600"}


def test_the_buffer_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_buffer_root("s3://bucket/prefix") == tmp_path / "blockgz" / "buffer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_buffer_root("s3://bucket/prefix") == tmp_path / ".cache" / "blockgz" / "buffer"


def test_names_of_up_to_255_bytes_are_stored_and_longer_ones_are_not_called_a_full_disk(tmp_path: Path) -> None:
    store, name = LocalStore(tmp_path), "x" * 255
    assert store.put_if_absent(name, b"body", "attempt-1")
    assert [found.key for found in store.list("")] == [name]
    with pytest.raises(errors.StoreError) as raised:
        store.put_if_absent(name + "x", b"body", "attempt-1")
    assert "255 bytes" in str(raised.value.remedy) and "free space" not in str(raised.value.remedy)


def test_a_pipe_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    store = written(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    reader = LocalReader(LocalAddress(str(tmp_path)))
    for read in (
        lambda: store.get("pipe"),
        lambda: store.get_range("pipe", 0, 1),
        lambda: asyncio.run(reader.get("pipe", 10)),
        lambda: asyncio.run(reader.get_range("pipe", 0, 1)),
    ):
        with pytest.raises(errors.StoreError) as caught:
            read()
        assert "a pipe or a device" in caught.value.why


class Hanging(LocalReader):
    """Answers once somebody was told."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalAddress(str(root)))
        self.told: list[str] = []
        self.answers = asyncio.Event()

    def tell(self, text: str) -> None:
        self.told.append(text)
        self.answers.set()

    async def folders(self, prefix: str) -> tuple[str, ...]:
        await self.answers.wait()
        return await super().folders(prefix)


def test_who_waits_is_told_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "SILENT_SECONDS", 0.01)

    async def listed() -> list[str]:
        store = Hanging(tmp_path)
        watched = WatchedReader(store, store.tell)
        async with asyncio.timeout(10):
            await watched.folders("")
            store.answers.clear()
            asyncio.get_running_loop().call_later(0.05, store.answers.set)
            await watched.folders("")
        return store.told

    assert asyncio.run(listed()) == [f"waiting for file://{tmp_path}: no answer for 0.01 s"]


def test_a_store_that_answers_is_not_named(tmp_path: Path) -> None:
    told: list[str] = []
    assert asyncio.run(WatchedReader(LocalReader(LocalAddress(str(tmp_path))), told.append).folders("")) == ()
    assert told == []


UNFINISHED = f".k.{0:032x}.tmp"


class Source:
    """Objects of 800 bytes, by key, and how often they were fetched."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def read(self, cache: DiskCache, key: str, sha256: str | None = None, archive_id: str = "a") -> bytes:
        body = key.encode().ljust(800, b".")

        async def fetch() -> bytes:
            self.fetched.append(key)
            return body

        return asyncio.run(cache.through(archive_id, key, sha256 or hashlib.sha256(body).hexdigest(), fetch))


def test_an_object_is_fetched_once_by_all_programs(tmp_path: Path) -> None:
    source = Source()
    first, second = DiskCache(tmp_path / "c"), DiskCache(tmp_path / "c")
    assert source.read(first, "k") == source.read(first, "k") == source.read(second, "k")
    assert source.fetched == ["k"]
    assert (first.hits, second.hits, second.bytes_found) == (1, 1, 800)
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0
    source.read(first, "k", archive_id="another archive")
    assert source.fetched == ["k", "k"]


@pytest.mark.parametrize("damage", [b"", b"an index", b"." * 800])
def test_a_damaged_file_is_fetched_anew(tmp_path: Path, damage: bytes) -> None:
    source = Source()
    whole = source.read(DiskCache(tmp_path), "k")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert source.read(DiskCache(tmp_path), "k") == whole
    assert source.read(DiskCache(tmp_path), "k") == whole
    assert source.fetched == ["k", "k"]


def test_what_is_not_what_the_archive_says_is_not_kept(tmp_path: Path) -> None:
    source = Source()
    source.read(DiskCache(tmp_path), "k", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_it_is_bounded_and_forgets_the_longest_unused(tmp_path: Path) -> None:
    source = Source()
    cache = DiskCache(tmp_path, max_bytes=8000)
    (tmp_path / UNFINISHED).write_bytes(b"x")
    os.utime(tmp_path / UNFINISHED, (0, 0))
    for number in range(30):
        source.read(cache, str(number))
        source.read(cache, "0")
        for file in tmp_path.iterdir():
            stat = file.stat()
            os.utime(file, (stat.st_atime - 1, stat.st_mtime - 1))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 8000
    assert source.fetched == [str(number) for number in range(30)], "what is used again and again stays"
    assert not (tmp_path / UNFINISHED).exists()
    source.read(DiskCache(tmp_path, max_bytes=800 * SHARE_OF_ONE - 1), "too large")
    assert "too large" in source.fetched
    assert not any(file.read_bytes().startswith(b"too large") for file in tmp_path.iterdir())


def test_a_disk_that_cannot_be_used_costs_requests_only(tmp_path: Path) -> None:
    source = Source()
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "folder")
    assert source.read(cache, "k") == source.read(cache, "k")
    assert source.fetched == ["k", "k"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_folder() == Path("/var/cache/me/blockgz/objects")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_folder() == Path.home() / ".cache/blockgz/objects"


def test_waits_double_up_to_the_longest_however_long_an_outage_lasts() -> None:
    waits = [retry.backoff_seconds(attempt) for attempt in (0, 1, 2, 7, 8, 10**6)]
    assert waits[:4] == [retry.FIRST_BACKOFF_SECONDS * factor for factor in (1, 2, 4, 128)]
    assert waits[4:] == [retry.LONGEST_BACKOFF_SECONDS] * 2


@pytest.mark.parametrize("cause", [errors.AccessDenied("403"), errors.StoreFull("507")])
def test_what_waits_for_a_person_is_tried_again_every_few_minutes(cause: errors.BlockgzError) -> None:
    assert retry.backoff_seconds(3, cause) == retry.backoff_seconds(3, "no answer") == 8 * retry.FIRST_BACKOFF_SECONDS
    assert retry.backoff_seconds(10**6, cause) == retry.LONGEST_REFUSAL_SECONDS >= 120


def test_a_run_that_ends_cuts_a_wait_short() -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(errors.ShuttingDown) as caught:
        retry.StoreBackoff("s3://bucket", abandoned, None)(10**6, "no answer")
    assert caught.value.why == "no answer"


def test_who_has_little_time_left_tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockgz.store.retry.random.uniform", lambda _, longest: longest)
    hurried, waits = threading.Event(), list[float]()
    waiting = threading.Thread(
        target=lambda: retry.StoreBackoff("s3://bucket", NotAbandoned(waits), None)(10**6, "no answer", hurried)
    )
    waiting.start()
    hurried.set()
    waiting.join(5)
    assert not waiting.is_alive() and waits == [retry.HURRIED_SECONDS]


class NotAbandoned(threading.Event):
    """Notes how long it is waited for, and does not take that long."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self.waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return False


def test_a_bounded_run_gives_up() -> None:
    with pytest.raises(errors.StoreUnavailable, match="s3://bucket failed 31 times in a row"):
        retry.StoreBackoff("s3://bucket", threading.Event(), 30)(31, "no answer")


def test_a_command_gives_up_and_says_that_it_can_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockgz.store.retry.random.uniform", lambda *_: 0.0)
    back_off = retry.bounded_backoff("s3://bucket")
    for attempt in range(1, retry.TRIES_OF_COMMANDS + 1):
        back_off(attempt, "no answer")
    with pytest.raises(errors.StoreUnavailable, match="s3://bucket failed 9 times in a row") as caught:
        back_off(retry.TRIES_OF_COMMANDS + 1, "no answer")
    assert (caught.value.why, "run it again" in caught.value.remedy) == ("no answer", True)


def is_busy(error: BaseException) -> bool:
    return isinstance(error, errors.StoreBusy)


class BusyStore:
    """Says that it is busy so many times."""

    def __init__(self, times: int, error: errors.StoreUnavailable) -> None:
        self.times = times
        self.error = error
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return "answer"


def test_a_store_that_is_busy_at_the_start_is_asked_again() -> None:
    store = BusyStore(2, errors.StoreBusy("s3://bucket answered 429"))
    assert retry.retry_while_busy(store, threading.Event(), is_busy) == "answer"
    assert store.asked == 3


def test_a_store_that_is_not_there_is_reported_at_once() -> None:
    store = BusyStore(1, errors.StoreUnavailable("s3://bucket does not answer"))
    with pytest.raises(errors.StoreUnavailable, match="does not answer"):
        retry.retry_while_busy(store, threading.Event(), is_busy)
    assert store.asked == 1


def test_an_order_to_end_is_heeded_while_the_store_is_busy() -> None:
    ended = threading.Event()
    ended.set()
    with pytest.raises(errors.StoreBusy):
        retry.retry_while_busy(BusyStore(10**6, errors.StoreBusy("s3://bucket answered 429")), ended, is_busy)


class IgnoresConditions(MemoryStore):
    """Answers 200 to everything, as some S3 work-alikes do."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        self.objects[key] = Kept(content_of(body), attempt)
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self.objects[key] = Kept(body, None)
        return etag_of(body)


class IgnoresStaleEtags(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if expected is None:
            return super().compare_and_swap(key, body, None)
        self.objects[key] = Kept(body, None)
        return etag_of(body)


class CreatesOverMarkers(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if expected is None:
            self.delete(key)
        return super().compare_and_swap(key, body, expected)


class RefusesEverySwap(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        return None if expected else super().compare_and_swap(key, body, expected)


class RefusesToCreate(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return False


class CompletesPartsOverObjects(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if isinstance(body, FileBody):
            self.delete(key)
        return super().put_if_absent(key, body, attempt)


class LetsTwoWin(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return super().put_if_absent(key, body, attempt) or (key.endswith("race") and attempt.endswith("9"))


class LetsNobodyWin(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return not key.endswith("race") and super().put_if_absent(key, body, attempt)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (IgnoresConditions, "ignored If-None-Match"),
        (IgnoresStaleEtags, "ignored a stale If-Match"),
        (CreatesOverMarkers, "ignored If-None-Match"),
        (RefusesEverySwap, "refused If-Match with the object's own ETag"),
        (RefusesToCreate, "refused to create"),
        (CompletesPartsOverObjects, "CompleteMultipartUpload"),
        (LetsTwoWin, f"of {RACERS} concurrent"),
        (LetsNobodyWin, f"none of {RACERS}"),
    ],
)
def test_a_broken_promise_is_named(broken: Callable[[], MemoryStore], fault: str) -> None:
    store = broken()
    with pytest.raises(errors.StoreUnfit, match=fault) as caught:
        probe(store, multipart=True)
    assert "--single-writer" in caught.value.remedy and exit_code_of(caught.value) == 1
    assert not store.objects, "the probe cleans up behind itself"


def test_a_sound_store_passes_and_is_left_clean() -> None:
    store = MemoryStore()
    probe(store, multipart=True)
    assert not store.objects


def test_a_local_folder_passes_and_is_left_clean(tmp_path: Path) -> None:
    probe(LocalStore(tmp_path / "archive"), multipart=False)
    assert not list((tmp_path / "archive").rglob("*"))


class IsBusy(MemoryStore):
    """Tells all but one of many that write at once to come again, as S3 does."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if not super().put_if_absent(key, body, attempt):
            if key.endswith("race"):
                raise errors.StoreUnavailable("being written by another request")
            return False
        return True


class LosesTheAnswerOfTheWinner(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        won = super().put_if_absent(key, body, attempt)
        if won and key.endswith("race"):
            raise errors.StoreUnavailable("no answer")
        return won


@pytest.mark.parametrize("busy", [IsBusy, LosesTheAnswerOfTheWinner])
def test_a_race_that_a_sound_store_answers_roughly_is_not_a_fault(busy: Callable[[], MemoryStore]) -> None:
    probe(busy(), multipart=True)


class KeepsWhatItHas(MemoryStore):
    def delete(self, key: str) -> None:
        raise errors.AccessDenied("deleting is not granted")


class IgnoresAndKeeps(IgnoresConditions, KeepsWhatItHas):
    pass


def test_a_writer_that_may_not_delete_passes() -> None:
    probe(KeepsWhatItHas(), multipart=True)


def test_a_refused_delete_hides_no_fault() -> None:
    with pytest.raises(errors.StoreUnfit):
        probe(IgnoresAndKeeps(), multipart=True)


class IsAway(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        raise errors.StoreUnavailable("no answer")

    def delete(self, key: str) -> None:
        raise errors.StoreUnavailable("no answer to that either")


def test_a_store_that_does_not_answer_is_not_called_unfit() -> None:
    with pytest.raises(errors.StoreUnavailable, match=r"^no answer$"):
        probe(IsAway(), multipart=True)


ADDRESS = S3Address("bucket", "p/")


def raised(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, s3_errors(ADDRESS, "x", "s3:GetObject", (aiohttp.ClientError,)):
        raise error
    return caught.value


def answer(code: str, status: int) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "GetObject")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("TokenRefreshRequired", 400, errors.AccessDenied),
        ("ExpiredToken", 400, errors.AccessDenied),
        ("400", 400, errors.AccessDenied),
        ("XAdminUserNotFound", 403, errors.AccessDenied),
        ("", 401, errors.AccessDenied),
        ("AuthorizationHeaderMalformed", 400, errors.UsageError),
        ("PermanentRedirect", 301, errors.UsageError),
        ("RequestTimeTooSkewed", 403, errors.AccessDenied),
        ("SignatureDoesNotMatch", 403, errors.AccessDenied),
        ("403", 403, errors.AccessDenied),
        ("KMS.DisabledException", 400, errors.AccessDenied),
        ("KMS.KMSInvalidStateException", 400, errors.AccessDenied),
        ("KMS.ThrottlingException", 400, errors.StoreBusy),
        ("KMS.KMSInternalException", 500, errors.StoreBusy),
        ("RequestTimeout", 400, errors.StoreBusy),
        ("InternalError", 500, errors.StoreBusy),
        ("OfItsOwn", 503, errors.StoreBusy),
        ("OfItsOwn", 403, errors.AccessDenied),
        ("XMinioStorageFull", 507, errors.StoreFull),
        ("NotImplemented", 501, errors.StoreError),
        ("NoSuchBucket", 404, errors.StoreError),
        ("SlowDown", 503, errors.StoreBusy),
        ("", 502, errors.StoreBusy),
        ("InvalidRequest", 400, errors.StoreError),
    ],
)
def test_answers(code: str, status: int, kind: type[Exception]) -> None:
    assert type(raised(answer(code, status))) is kind


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("RequestTimeTooSkewed", "clock"), ("ExpiredToken", "renew"), ("KMS.DisabledException", "key"), ("403", "grant")],
)
def test_what_to_do_about_a_refusal(code: str, remedy: str) -> None:
    caught = raised(answer(code, 403))
    assert isinstance(caught, errors.AccessDenied) and remedy in caught.remedy


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CredentialRetrievalError(provider="none", error_msg="it failed"), errors.AccessDenied),
        (UnauthorizedSSOTokenError(), errors.AccessDenied),
        (RuntimeError("the refreshed credentials are still expired."), errors.AccessDenied),
        (RuntimeError("cannot schedule new futures"), RuntimeError),
        (ResponseParserError("invalid XML received"), errors.StoreUnavailable),
        (NoRegionError(), errors.UsageError),
        (TimeoutError(), errors.StoreUnavailable),
        (aiohttp.ServerDisconnectedError(), errors.StoreUnavailable),
        (UnknownServiceError(service_name="s4", known_service_names=""), errors.StoreError),
    ],
)
def test_errors_of_the_client(error: Exception, kind: type[Exception]) -> None:
    assert type(raised(error)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CredentialRetrievalError(provider="none", error_msg="it failed"), errors.AccessDenied),
        (ProfileNotFound(profile="none"), errors.UsageError),
        (ValueError("Invalid endpoint: x"), errors.UsageError),
    ],
)
def test_clients_that_cannot_be_made(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, setup_errors(S3Settings("x")):
        raise error
    assert type(caught.value) is kind


def test_our_own_errors_pass() -> None:
    error = errors.StoreUnavailable("down")
    assert raised(error) is error


@pytest.mark.parametrize(("endpoint_url", "style"), [(None, "auto"), ("http://127.0.0.1:9000", "path")])
def test_checksums_are_optional_wherever_the_store_is(endpoint_url: str | None, style: str) -> None:
    options = client_options(S3Settings(endpoint_url), connections=1, attempts=1)
    assert options["s3"] == {"addressing_style": style}
    assert options["request_checksum_calculation"] == options["response_checksum_validation"] == "when_required"
