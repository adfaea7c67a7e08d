"""What is set for S3, as it arrives there: shown by moto, or by the requests where moto ignores it."""

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
from blockgz.errors import AccessDenied, StoreError, StoreUnavailable, UnresolvedReference, UsageError
from blockgz.store import writer
from blockgz.store.address import S3Address, S3Settings
from blockgz.store.customer_key import fingerprint_of, load_customer_key
from blockgz.store.opening import open_existing_store, open_reader
from blockgz.store.s3_writer import S3Store
from blockgz.store.writer import FileBody
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.recording_proxy import RecordingProxy
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

PART = 64 * 1024
ROLE = "arn:aws:iam::123456789012:role/archiver"


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def proxy(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with RecordingProxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def bucket(upstream: str) -> Iterator[Bucket]:
    bucket = Bucket(upstream, f"b-{uuid.uuid4().hex}")
    yield bucket
    bucket.close()


def both_ways(bucket: Bucket, s3: S3Settings, name: str = "x") -> bytes:
    """Writes an object with the writer's client, and reads it with the reader's."""
    address = S3Address(bucket.name, "")
    store = S3Store(address, s3, attempts=1)
    try:
        assert store.put_if_absent(name, b"content", "1")
    finally:
        store.close()

    async def read() -> bytes:
        async with open_reader(address, s3) as reader:
            return await reader.get(name, 100)

    return asyncio.run(read())


def test_everything_goes_through_the_proxy(proxy: RecordingProxy, bucket: Bucket) -> None:
    s3 = S3Settings("http://nowhere.invalid:9000", "us-east-1", proxy_url=proxy.endpoint_url)
    assert both_ways(bucket, s3) == b"content"
    assert {each.path for each in proxy.requests} == {f"http://nowhere.invalid:9000/{bucket.name}/x"}


def test_a_role_is_assumed_with_its_external_id(
    proxy: RecordingProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.endpoint_url)
    s3 = S3Settings(proxy.endpoint_url, "us-east-1", role_arn=ROLE, external_id="kafka-backup")
    assert both_ways(bucket, s3) == b"content"
    assumed = [each for each in proxy.requests if b"AssumeRole" in each.body]
    assert len(assumed) == 2  # once by each client, and kept by it
    assert all(b"ExternalId=kafka-backup" in each.body and b"role%2Farchiver" in each.body for each in assumed)
    of_s3 = [each for each in proxy.requests if each not in assumed]
    assert of_s3 and all("x-amz-security-token" in each.headers for each in of_s3)
    assert all("Credential=testing/" not in each.headers["authorization"] for each in of_s3)


def test_two_accounts_in_one_process(
    proxy: RecordingProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("s\n")
    monkeypatch.setenv("OTHER_ID", "OTHER")
    named = S3Settings(
        proxy.endpoint_url,
        "us-east-1",
        access_key_id="${env:OTHER_ID}",
        secret_access_key=f"${{file:{tmp_path}/secret}}",
    )
    assert both_ways(bucket, named) == b"content"
    accounts = [each.headers["authorization"] for each in proxy.requests]
    assert accounts and all("Credential=OTHER/" in each for each in accounts)
    del proxy.requests[:]
    both_ways(bucket, S3Settings(proxy.endpoint_url, "us-east-1"), "y")
    accounts = [each.headers["authorization"] for each in proxy.requests]
    assert accounts and all("Credential=testing/" in each for each in accounts)


@pytest.mark.slow
def test_a_session_token_and_a_role_with_keys_of_its_own(
    proxy: RecordingProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.endpoint_url)
    keys = {"ID": "OTHER", "SECRET": "s", "TOKEN": "temporary"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    named = {"access_key_id": "${env:ID}", "secret_access_key": "${env:SECRET}", "session_token": "${env:TOKEN}"}
    assert both_ways(bucket, S3Settings(proxy.endpoint_url, "us-east-1", **named)) == b"content"
    assert {each.headers["x-amz-security-token"] for each in proxy.requests} == {"temporary"}
    del proxy.requests[:]
    both_ways(bucket, S3Settings(proxy.endpoint_url, "us-east-1", role_arn=ROLE, **named), "y")
    assumed = [each.headers["authorization"] for each in proxy.requests if b"AssumeRole" in each.body]
    assert len(assumed) == 2 and all("Credential=OTHER/" in each for each in assumed)


def test_a_key_that_is_not_on_this_machine(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ID", "x")
    s3 = S3Settings(
        "http://127.0.0.1:9", "us-east-1", access_key_id="${env:ID}", secret_access_key="${env:NO_SUCH_SECRET}"
    )
    with pytest.raises(UnresolvedReference, match="secret_access_key"):
        both_ways(bucket, s3)


def test_a_role_that_cannot_be_assumed(proxy: RecordingProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.endpoint_url)
    proxy.refuses_roles = True
    s3 = S3Settings(proxy.endpoint_url, "us-east-1", role_arn=ROLE)
    with pytest.raises(AccessDenied) as caught:
        both_ways(bucket, s3)
    assert caught.value.what == "the role cannot be assumed"


def test_a_role_needs_credentials_to_begin_with(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match="no usable AWS credentials"):
        both_ways(bucket, S3Settings("http://127.0.0.1:9", "us-east-1", role_arn=ROLE))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"proxy_url": "proxy:3128"}, "proxy_url is not the URL of a proxy"),
        ({"proxy_url": "socks5://proxy:3128"}, "proxy_url is not"),
        ({"proxy_url": "http://user:secret@"}, "proxy_url is not"),
        ({"role_arn": "archiver"}, "arn:aws:iam::ACCOUNT:role/NAME"),
        ({"external_id": "x"}, "set role_arn too"),
        ({"customer_key": "c2VjcmV0"}, "${file:/path}"),
        ({"access_key_id": "AKIA", "secret_access_key": "hidden"}, "${file:/path}"),
        ({"access_key_id": "${env:ID}"}, "an id and a secret"),
        ({"session_token": "${env:TOKEN}"}, "set access_key_id too"),
        ({"access_key_id": "${env:ID}", "secret_access_key": "${env:S}", "profile": "p"}, "both are credentials"),
        ({"customer_key": "${env:KEY}", "sse": "AES256"}, "one kind of encryption"),
        ({"customer_key": "${env:KEY}", "endpoint_url": "http://s3.example.com"}, "https://"),
        ({"customer_key": "${env:KEY}", "endpoint_url": "HTTP://localhost.example.com/["}, "https://"),
        ({"sse": "kms"}, "aws:kms"),
        ({"sse": "AES256", "kms_key_id": "alias/x"}, "only KMS keys have an id"),
        ({"kms_key_id": "alias/x"}, "set sse to aws:kms"),
        ({"storage_class": "GLACIER"}, "GLACIER_IR"),
        ({"storage_class": "DEEP_ARCHIVE"}, "takes hours"),
        ({"storage_class": "COLD"}, "STANDARD_IA"),
        ({"acl": "open"}, "bucket-owner-full-control"),
        ({"checksum_algorithm": "MD5"}, "CRC32"),
        ({"object_tags": "team"}, "team=data"),
        ({"object_tags": "team=a&b"}, "letters"),
        ({"object_tags": ","}, "1 to 10 tags"),
        ({"object_tags": "a=1,a=2"}, "repeated"),
        ({"object_tags": ",".join(f"t{n}=1" for n in range(11))}, "1 to 10 tags"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        S3Settings(**given)
    error = caught.value
    assert words in f"{error.what} {error.why} {error.remedy}" and error.why and error.remedy
    text = f"{error.what} {error.why} {error.remedy}"
    assert not any(value in text for value in ("user:secret", "hidden", "c2VjcmV0"))


def test_a_password_of_a_proxy_is_not_shown(
    proxy: RecordingProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = S3Settings(proxy.endpoint_url, "us-east-1", proxy_url="http://user:secret@127.0.0.1:9")
    assert "user:secret" not in repr(s3)
    monkeypatch.setattr("blockgz.store.s3_client.REQUEST_ATTEMPTS", 1)

    async def read() -> None:
        async with open_reader(S3Address(bucket.name, ""), s3) as reader:
            await reader.get("x", 100)

    for attempt in (lambda: S3Store(S3Address(bucket.name, ""), s3, attempts=1).head("x"), lambda: asyncio.run(read())):
        with pytest.raises(StoreUnavailable) as caught:
            attempt()
        assert "secret" not in f"{caught.value} {caught.value.why}" and "127.0.0.1:9" in caught.value.why


def test_a_chunk_that_was_moved_to_a_slow_class_is_named(proxy: RecordingProxy, bucket: Bucket) -> None:
    bucket.put("x", b"content", StorageClass="GLACIER")

    async def read() -> None:
        async with open_reader(S3Address(bucket.name, ""), S3Settings(proxy.endpoint_url, "us-east-1")) as reader:
            await reader.get("x", 100)

    with pytest.raises(StoreError, match="has to be restored") as caught:
        asyncio.run(read())
    assert "restore-object" in caught.value.remedy


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PART_BYTES", PART)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)


def written(bucket: Bucket, s3: S3Settings, folder: Path) -> None:
    """One object in each of the ways that the archiver has."""
    store = S3Store(S3Address(bucket.name, ""), s3, attempts=1)
    try:
        assert store.put_if_absent("index", b"index", "1")
        for name, size in (("data", 100), ("parts", 3 * PART)):
            path = folder / name
            path.write_bytes(bytes(size))
            assert store.put_if_absent(name, FileBody(path, size, hashlib.sha256(bytes(size)).hexdigest()), "1")
        tag = store.compare_and_swap("marker", b"1", None)
        assert tag is not None and store.compare_and_swap("marker", b"2", tag)
        assert (found := store.get("marker")) is not None and found.body == b"2"
    finally:
        store.close()


def test_a_bucket_with_object_lock_gets_checksums_and_others_none(
    proxy: RecordingProxy, bucket: Bucket, upstream: str, tmp_path: Path, small_parts: None
) -> None:
    locked = Bucket(upstream, f"b-{uuid.uuid4().hex}", ObjectLockEnabledForBucket=True)
    locked.retain_for_days(1)
    s3 = S3Settings(proxy.endpoint_url, "us-east-1")
    written(bucket, s3, tmp_path)
    assert not any("checksum" in name or "md5" in name for each in proxy.requests for name in each.headers)
    proxy.requests.clear()
    written(locked, s3, tmp_path)
    _refused, *sent = proxy.sent("PutObject") + proxy.sent("UploadPart")
    assert {each.headers.get("x-amz-sdk-checksum-algorithm") for each in sent} == {"CRC32"}
    assert locked.head("data")["ChecksumCRC32"]
    locked.close()


def test_objects_are_encrypted_tagged_and_granted_as_set(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, small_parts: None
) -> None:
    written(
        bucket,
        S3Settings(
            proxy.endpoint_url,
            "us-east-1",
            sse="aws:kms",
            kms_key_id="alias/backup",
            acl="public-read",
            object_tags="team=data, env=a b",
        ),
        tmp_path,
    )
    for key in ("index", "data", "parts", "marker"):
        head = bucket.head(key)
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/backup"), key
        assert bucket.tags(key) == {"team": "data", "env": "a b"}, key
        assert "AllUsers READ" in bucket.grants(key), key


def test_only_the_data_of_chunks_is_of_the_storage_class(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, small_parts: None
) -> None:
    written(bucket, S3Settings(proxy.endpoint_url, "us-east-1", storage_class="STANDARD_IA"), tmp_path)
    classes = {key: bucket.head(key).get("StorageClass", "STANDARD") for key in ("index", "data", "parts", "marker")}
    assert classes == {"index": "STANDARD", "data": "STANDARD_IA", "parts": "STANDARD_IA", "marker": "STANDARD"}


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_a_checksum_goes_with_the_content(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, small_parts: None, algorithm: str
) -> None:
    written(bucket, S3Settings(proxy.endpoint_url, "us-east-1", checksum_algorithm=algorithm), tmp_path)
    for key in ("index", "marker"):
        assert f"Checksum{algorithm}" in bucket.head(key), key
    header = f"x-amz-checksum-{algorithm.lower()}"
    sent = [*proxy.sent("PutObject"), *proxy.sent("UploadPart")]
    assert all(header in each.headers or header in each.headers.get("x-amz-trailer", "") for each in sent)
    (begun,), (completed,) = proxy.sent("CreateMultipartUpload"), proxy.sent("CompleteMultipartUpload")
    assert begun.headers["x-amz-checksum-algorithm"] == algorithm
    assert completed.body.count(f"<Checksum{algorithm}>".encode()) == 3


def test_nothing_is_sent_that_was_not_set(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, small_parts: None
) -> None:
    written(bucket, S3Settings(proxy.endpoint_url, "us-east-1"), tmp_path)
    words = ("encryption", "checksum", "storage-class", "acl", "tagging")
    assert not {name for each in proxy.requests for name in each.headers if any(word in name for word in words)}


KEY, OTHER_KEY = bytes(range(32)), bytes(32)
FINGERPRINT = hashlib.sha256(KEY).hexdigest()[:16]
DIGEST = "x-amz-server-side-encryption-customer-key-md5"


@pytest.fixture
def keyed_proxy(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProxy]:
    for name, value in {**CREDENTIALS, "KEY": encoded(KEY), "OTHER": encoded(OTHER_KEY)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(writer, "PART_BYTES", PART)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    with RecordingProxy(upstream) as keyed_proxy:
        yield keyed_proxy


@pytest.fixture
def address(upstream: str) -> Iterator[S3Address]:
    bucket = Bucket(upstream, f"b-{uuid.uuid4().hex}")
    yield S3Address(bucket.name, "archive/")
    bucket.close()


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def settings(keyed_proxy: RecordingProxy, key: str | None = "${env:KEY}") -> S3Settings:
    return S3Settings(keyed_proxy.endpoint_url, "us-east-1", customer_key=key)


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
    keyed_proxy: RecordingProxy, address: S3Address, tmp_path: Path
) -> None:
    store = S3Store(address, settings(keyed_proxy), attempts=1)
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
        async with open_reader(address, settings(keyed_proxy)) as reader:
            return await reader.get("marker", 9), await reader.get_range("marker", 0, 1), await reader.size("marker")

    assert asyncio.run(read()) == (b"2", b"2", 1)
    with_content = [each for each in keyed_proxy.requests if each.method != "DELETE" and "list-type" not in each.path]
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
    keyed_proxy: RecordingProxy, address: S3Address, given: str | None, words: str
) -> None:
    store = S3Store(address, settings(keyed_proxy), attempts=1)
    open_archive(store, layout="topic", cluster_id=None, customer_key=FINGERPRINT)
    store.compare_and_swap("marker", b"1", None)
    store.close()

    async def read(operation: str) -> None:
        async with open_reader(address, settings(keyed_proxy, given)) as reader:
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
        open_existing_store(str(address), settings(keyed_proxy, given))
    with pytest.raises(AccessDenied, match="customer key"):
        opened = S3Store(address, settings(keyed_proxy, given), attempts=1)
        open_archive(opened, layout="topic", cluster_id=None, customer_key=fingerprint_of(given))


def test_an_archive_without_a_key_takes_none(keyed_proxy: RecordingProxy, address: S3Address) -> None:
    store = S3Store(address, settings(keyed_proxy, None), attempts=1)
    open_archive(store, layout="seed", cluster_id=None)
    store.close()
    with pytest.raises(UsageError, match="is not encrypted with a customer key"):
        open_existing_store(str(address), settings(keyed_proxy))


@pytest.mark.slow
def test_both_programs(keyed_proxy: RecordingProxy, address: S3Address, tmp_path: Path) -> None:
    copied(tmp_path / "archive", keyed_proxy, address)
    where = ["-a", str(address), "--endpoint-url", keyed_proxy.endpoint_url, "--region", "us-east-1"]

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


def copied(root: Path, keyed_proxy: RecordingProxy, address: S3Address) -> None:
    """An archive with this key."""
    ArchiveWriter(root, customer_key=FINGERPRINT).partition("orders", 0).commit(records(range(30)))
    store = S3Store(address, settings(keyed_proxy), attempts=1)
    for path in filter(Path.is_file, root.rglob("*")):
        assert store.put_if_absent(str(path.relative_to(root)), path.read_bytes(), "1")
    store.close()
