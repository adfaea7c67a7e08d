"""SSE-C: the key goes with every object but one, and a key that is missing or wrong is named."""

import asyncio
import base64
import hashlib
import logging
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver
from archiver.commit.archive import open_archive
from blockgz.errors import AccessDenied, UnresolvedReference, UsageError
from blockgz.store import s3_writer, writer
from blockgz.store.address import S3Address
from blockgz.store.customer_key import fingerprint_of, load_customer_key
from blockgz.store.opening import open_existing_store, open_reader
from blockgz.store.s3_settings import S3Settings
from blockgz.store.s3_writer import S3Store
from blockgz.store.writer import FileBody
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.recording_proxy import RecordingProxy
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

PART = 64 * 1024
KEY, OTHER_KEY = bytes(range(32)), bytes(32)
FINGERPRINT = hashlib.sha256(KEY).hexdigest()[:16]
DIGEST = "x-amz-server-side-encryption-customer-key-md5"


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def proxy(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProxy]:
    for name, value in {**CREDENTIALS, "KEY": encoded(KEY), "OTHER": encoded(OTHER_KEY)}.items():
        monkeypatch.setenv(name, value)
    for module in (s3_writer, writer):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    with RecordingProxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def address(upstream: str) -> Iterator[S3Address]:
    bucket = Bucket(upstream, f"b-{uuid.uuid4().hex}")
    yield S3Address(bucket.name, "archive/")
    bucket.close()


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def settings(proxy: RecordingProxy, key: str | None = "${env:KEY}") -> S3Settings:
    return S3Settings(proxy.endpoint_url, "us-east-1", customer_key=key)


def test_a_key_is_found_in_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", encoded(KEY))
    file = tmp_path / "key"
    file.write_text(encoded(KEY) + "\n")
    for reference in ("${env:KEY}", f"${{file:{file}}}"):
        assert fingerprint_of(reference) == FINGERPRINT
        assert repr(load_customer_key(reference)) == "CustomerKey()"
    assert fingerprint_of(None) is None


def test_a_key_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_text(encoded(KEY))
    for mode, count in ((0o600, 0), (0o640, 0), (0o644, 1)):
        file.chmod(mode)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                load_customer_key(f"${{file:{file}}}")
        assert len(caplog.messages) == count, stat.filemode(file.stat().st_mode)
        assert all("chmod o-r" in message and encoded(KEY) not in message for message in caplog.messages)


@pytest.mark.parametrize("text", ["", "c2hvcnQ=", "not base64!", "schlüssel", encoded(bytes(33))])
def test_what_is_no_key(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", text)
    with pytest.raises(UsageError, match="holds no customer key") as caught:
        load_customer_key("${env:KEY}")
    assert "openssl rand -base64 32" in caught.value.remedy and (not text or text not in str(caught.value))


def test_a_reference_that_leads_nowhere() -> None:
    with pytest.raises(UnresolvedReference, match="customer_key: the environment variable NO_SUCH is not set"):
        load_customer_key("${env:NO_SUCH}")


@pytest.mark.slow
def test_the_key_goes_with_every_object_but_the_archives_own(
    proxy: RecordingProxy, address: S3Address, tmp_path: Path
) -> None:
    store = S3Store(address, settings(proxy), attempts=1)
    assert open_archive(store, layout="topic", cluster_id=None, customer_key=FINGERPRINT).customer_key == FINGERPRINT
    path = tmp_path / "parts"
    path.write_bytes(bytes(3 * PART))
    body = FileBody(path, 3 * PART, hashlib.sha256(bytes(3 * PART)).hexdigest())
    assert store.put_if_absent("data", body, "1")
    assert (tag := store.compare_and_swap("marker", b"1", None)) and store.compare_and_swap("marker", b"2", tag)
    assert (found := store.get("marker")) and found.body == b"2"
    assert store.get_range("data", 5, 9) == bytes(4) and store.head("data")
    store.delete("data")
    store.close()

    async def read() -> tuple[bytes, bytes, int]:
        async with open_reader(address, settings(proxy)) as reader:
            return await reader.get("marker", 9), await reader.get_range("marker", 0, 1), await reader.size("marker")

    assert asyncio.run(read()) == (b"2", b"2", 1)
    with_content = [each for each in proxy.requests if each.method != "DELETE" and "list-type" not in each.path]
    for each in with_content:
        assert (DIGEST in each.headers) == (not each.path.endswith("_archive.json")), (each.operation, each.path)
    assert {"UploadPart", "CompleteMultipartUpload"} <= {each.operation for each in with_content}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, f"is encrypted with a customer key: its fingerprint is {FINGERPRINT}, and no key was given"),
        ("${env:OTHER}", f"has another customer key: its fingerprint is {FINGERPRINT}"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_named(
    proxy: RecordingProxy, address: S3Address, given: str | None, words: str
) -> None:
    store = S3Store(address, settings(proxy), attempts=1)
    open_archive(store, layout="topic", cluster_id=None, customer_key=FINGERPRINT)
    store.compare_and_swap("marker", b"1", None)
    store.close()

    async def read(operation: str) -> None:
        async with open_reader(address, settings(proxy, given)) as reader:
            calls = {"get": reader.get("marker", 9), "range": reader.get_range("marker", 0, 1)}
            calls["size"] = reader.size("marker")
            wanted = calls.pop(operation)
            for other in calls.values():
                other.close()  # type: ignore[attr-defined]
            await wanted

    for operation in ("get", "range", "size"):
        with pytest.raises(AccessDenied, match="customer key") as caught:
            asyncio.run(read(operation))
        assert words in f"{caught.value.what}: {caught.value.why}" and "${file:/path}" in caught.value.remedy
    with pytest.raises(AccessDenied, match="customer key"):
        open_existing_store(str(address), settings(proxy, given))
    with pytest.raises(AccessDenied, match="customer key"):
        opened = S3Store(address, settings(proxy, given), attempts=1)
        open_archive(opened, layout="topic", cluster_id=None, customer_key=fingerprint_of(given))


def test_an_archive_without_a_key_takes_none(proxy: RecordingProxy, address: S3Address) -> None:
    store = S3Store(address, settings(proxy, None), attempts=1)
    open_archive(store, layout="seed", cluster_id=None)
    store.close()
    with pytest.raises(UsageError, match="is not encrypted with a customer key"):
        open_existing_store(str(address), settings(proxy))


@pytest.mark.slow
def test_both_programs(proxy: RecordingProxy, address: S3Address, tmp_path: Path) -> None:
    copied(tmp_path / "archive", proxy, address)
    where = ["-a", str(address), "--endpoint-url", proxy.endpoint_url, "--region", "us-east-1"]

    def run(program: object, *words: str) -> Result:
        return CliRunner().invoke(program, [*words, *where])  # type: ignore[arg-type]

    with_key, other = ("--customer-key", "${env:KEY}"), ("--customer-key", "${env:OTHER}")
    got = run(replayer, "get", "orders:0:17", *with_key, "--json", "--no-cache")
    assert (got.exit_code, '"offset":17' in got.stdout) == (0, True), got.output
    assert run(replayer, "verify", "--deep", *with_key).exit_code == 0
    assert run(archiver, "status", *with_key).exit_code == 0
    for program, words in ((replayer, ("get", "orders:0:17", "--no-cache")), (archiver, ("status",))):
        for key in ((), other):
            refused = run(program, *words, *key)
            assert refused.exit_code == 12 and FINGERPRINT in refused.stderr, refused.output
            assert "--customer-key" in refused.stderr and encoded(OTHER_KEY) not in refused.output
    file = tmp_path / "config.yaml"
    file.write_text("customer_key: ${env:KEY}\n")
    for program, words in ((replayer, ("get", "orders:0:17", "--no-cache")), (archiver, ("status",))):
        assert run(program, *words, "-C", str(file)).exit_code == 0
    plain = run(replayer, "get", "orders:0:17", "--customer-key", encoded(KEY))
    assert plain.exit_code == 2 and encoded(KEY) not in plain.output


def copied(root: Path, proxy: RecordingProxy, address: S3Address) -> None:
    """An archive with this key."""
    ArchiveWriter(root, customer_key=FINGERPRINT).partition("orders", 0).commit(records(range(30)))
    store = S3Store(address, settings(proxy), attempts=1)
    for path in filter(Path.is_file, root.rglob("*")):
        assert store.put_if_absent(str(path.relative_to(root)), path.read_bytes(), "1")
    store.close()
