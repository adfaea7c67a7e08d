"""What every store of the replayer must do, whatever it is."""

import asyncio
import errno
import os
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from blockgz.errors import AccessDenied, NoArchiveThere, ObjectMissing, ObjectTruncated, StoreUnavailable
from blockgz.store.address import Address, LocalAddress, S3Address, S3Settings
from blockgz.store.opening import open_reader
from blockgz.store.reader import CountingReader, ObjectReader
from index_format.errors import TooLarge
from tests.support.memory_reader import MemoryReader
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

T = TypeVar("T")


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


class Store:
    """A store under test, opened once, with its back door."""

    def __init__(self, opening: AbstractAsyncContextManager[ObjectReader], put: Callable[[str, bytes], None]) -> None:
        self.put = put
        self._runner = asyncio.Runner()
        self._opening = opening
        self._reader = self._runner.run(self._opening.__aenter__())

    def read(self, use: Callable[[ObjectReader], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(use(CountingReader(self._reader)))

    def close(self) -> None:
        self._runner.run(self._opening.__aexit__(None, None, None))
        self._runner.close()


@contextmanager
def opened(address: Address, endpoint_url: str | None, put: Callable[[str, bytes], None]) -> Iterator[Store]:
    with used(open_reader(address, S3Settings(endpoint_url)), put) as store:
        yield store


@contextmanager
def used(opening: AbstractAsyncContextManager[ObjectReader], put: Callable[[str, bytes], None]) -> Iterator[Store]:
    store = Store(opening, put)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture(params=["local", "memory", "s3", "s3-prefix"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, endpoint_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    if request.param == "local":

        def put(key: str, body: bytes) -> None:
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / key).write_bytes(body)

        with opened(LocalAddress(str(tmp_path)), None, put) as store:
            yield store
        return
    if request.param == "memory":
        objects: dict[str, bytes] = {}
        with used(nullcontext(MemoryReader(objects)), objects.__setitem__) as store:
            yield store
        return
    bucket = Bucket(endpoint_url, f"b-{uuid.uuid4().hex}")
    prefix = "" if request.param == "s3" else "a/b/"
    bucket.put("outside", b"not of the archive")
    address = S3Address(bucket.name, prefix)
    with opened(address, endpoint_url, lambda key, body: bucket.put(prefix + key, body)) as store:
        yield store
    bucket.close()


def nothing(key: str, body: bytes) -> None:
    """For stores that nobody can write to."""


async def keys(reader: ObjectReader, prefix: str) -> list[str]:
    return [key async for key in reader.list(prefix) if key != "outside"]


def test_get_returns_the_whole_object(store: Store) -> None:
    store.put("topic=a/x", b"content")
    assert store.read(lambda reader: reader.get("topic=a/x", 7)) == b"content"


def test_get_returns_an_empty_object(store: Store) -> None:
    store.put("x", b"")
    assert store.read(lambda reader: reader.get("x", 0)) == b""


def test_get_refuses_more_than_the_bound(store: Store) -> None:
    store.put("x", b"content")
    with pytest.raises(TooLarge):
        store.read(lambda reader: reader.get("x", 6))


@pytest.mark.parametrize("key", ["missing", "folder", "x/below"])
def test_what_is_missing_is_reported_as_missing(store: Store, key: str) -> None:
    store.put("folder/x", b"1")
    store.put("x", b"1")
    for use in (
        lambda reader: reader.get(key, 10),
        lambda reader: reader.get_range(key, 0, 1),
        lambda reader: reader.size(key),
    ):
        with pytest.raises(ObjectMissing):
            store.read(use)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 10), (3, 7), (9, 10)])
def test_get_range_returns_exactly_those_bytes(store: Store, start: int, end: int) -> None:
    body = bytes(range(10))
    store.put("x", body)
    assert store.read(lambda reader: reader.get_range("x", start, end)) == body[start:end]


@pytest.mark.parametrize(("start", "end"), [(0, 11), (9, 11), (10, 11), (50, 60)])
def test_a_range_past_the_end_is_refused(store: Store, start: int, end: int) -> None:
    store.put("x", bytes(10))
    with pytest.raises(ObjectTruncated):
        store.read(lambda reader: reader.get_range("x", start, end))


def test_size_is_in_bytes(store: Store) -> None:
    store.put("x", bytes(1234))
    assert store.read(lambda reader: reader.size("x")) == 1234


def test_list_gives_all_keys_below_a_prefix_in_order(store: Store) -> None:
    for key in ("t/b", "t/a/2", "t/a/10", "t-x", "u"):
        store.put(key, b"1")
    assert store.read(lambda reader: keys(reader, "t/")) == ["t/a/10", "t/a/2", "t/b"]
    assert store.read(lambda reader: keys(reader, "t")) == ["t-x", "t/a/10", "t/a/2", "t/b"]
    assert store.read(lambda reader: keys(reader, "")) == ["t-x", "t/a/10", "t/a/2", "t/b", "u"]
    assert store.read(lambda reader: keys(reader, "none/")) == []


def test_list_begins_after_a_key_which_need_not_be_there(store: Store) -> None:
    for key in ("t/b", "t/a/2", "t/a/10", "t/_c/x", "t-x", "u"):
        store.put(key, b"1")

    async def listed(reader: ObjectReader, prefix: str, after: str) -> list[str]:
        return [key async for key in reader.list(prefix, after) if key != "outside"]

    for prefix, after, expected in (
        ("t/", "t/a/10", ["t/a/2", "t/b"]),
        ("t/", "t/_d", ["t/a/10", "t/a/2", "t/b"]),
        ("t/", "a", ["t/_c/x", "t/a/10", "t/a/2", "t/b"]),
        ("t/", "t0", []),
        ("", "t/b", ["u"]),
        ("", "", ["t-x", "t/_c/x", "t/a/10", "t/a/2", "t/b", "u"]),
    ):
        assert store.read(lambda reader, p=prefix, a=after: listed(reader, p, a)) == expected, (prefix, after)


@pytest.mark.slow
def test_list_gives_more_keys_than_one_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    expected = [f"many/{number:04d}" for number in range(31)]
    for key in expected:
        store.put(key, b"")
    assert store.read(lambda reader: keys(reader, "many/")) == expected

    async def half(reader: ObjectReader) -> list[str]:
        return [key async for key in reader.list("many/", expected[14])]

    assert store.read(half) == expected[15:]


def test_folders_gives_the_next_level_only(store: Store) -> None:
    for key in ("topic=b/partition=00000/x", "topic=a/_topic.json", "topic=a/partition=00001/x", "_archive.json"):
        store.put(key, b"1")
    assert store.read(lambda reader: reader.folders("")) == ("topic=a", "topic=b")
    assert store.read(lambda reader: reader.folders("topic=a/")) == ("partition=00001",)
    assert store.read(lambda reader: reader.folders("topic=none/")) == ()


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = tmp_path / "topic=a" / "partition=00001"
    denied.mkdir(parents=True)
    (denied.with_name("partition=00000")).mkdir()
    (denied.with_name("partition=00000") / "x").write_bytes(b"1")
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path) == denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with opened(LocalAddress(str(tmp_path)), None, nothing) as store:
        for use in (lambda reader: reader.folders("topic=a/"), lambda reader: keys(reader, "")):
            with pytest.raises(AccessDenied, match="may not be read"):
                store.read(use)


@pytest.mark.slow
def test_many_ranges_at_once(store: Store) -> None:
    body = bytes(range(200))
    store.put("x", body)

    async def ranges(reader: ObjectReader) -> list[bytes]:
        return await asyncio.gather(*(reader.get_range("x", start, start + 2) for start in range(198)))

    assert store.read(ranges) == [body[start : start + 2] for start in range(198)]


def test_a_bucket_that_is_not_there(endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with (
        opened(S3Address("no-such-bucket", ""), endpoint_url, nothing) as store,
        pytest.raises(NoArchiveThere, match="no bucket no-such-bucket"),
    ):
        store.read(lambda reader: reader.get("x", 10))


def test_no_credentials(endpoint_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with (
        opened(S3Address("bucket", ""), endpoint_url, nothing) as store,
        pytest.raises(AccessDenied, match="no usable AWS credentials"),
    ):
        store.read(lambda reader: reader.get("x", 10))


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("blockgz.store.s3_client.REQUEST_ATTEMPTS", 1)
    with (
        opened(S3Address("bucket", ""), "http://127.0.0.1:9", nothing) as store,
        pytest.raises(StoreUnavailable, match="does not answer"),
    ):
        store.read(lambda reader: reader.get("x", 10))
