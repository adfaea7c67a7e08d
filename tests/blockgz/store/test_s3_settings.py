"""What is set for S3, as it arrives there: shown by moto, or by the requests where moto ignores it."""

import asyncio
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockgz.errors import AccessDenied, StoreError, StoreUnavailable, UnresolvedReference, UsageError
from blockgz.store import s3_writer, writer
from blockgz.store.address import S3Address
from blockgz.store.opening import open_reader
from blockgz.store.s3_settings import S3Settings
from blockgz.store.s3_writer import S3Store
from blockgz.store.writer import FileBody
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
    monkeypatch.setattr("blockgz.store.s3_reader.REQUEST_ATTEMPTS", 1)

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
    for module in (s3_writer, writer):
        monkeypatch.setattr(module, "PART_BYTES", PART)
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
