"""S3 and its work-alikes: conditional PUTs, and multipart uploads completed on a condition.

If-None-Match and If-Match are those of RFC 9110 as S3 documents them for PutObject and CompleteMultipartUpload.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.credentials import DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError
from botocore.session import Session
from s3transfer.utils import ReadFileChunk

from blockgz.elastic_pool import ElasticPool
from blockgz.errors import AccessDenied, BlockgzError, ShuttingDown, StoreError, StoreUnavailable
from blockgz.store import s3_client, writer
from blockgz.store.address import CHECKSUMS, S3Address, S3Settings
from blockgz.store.customer_key import load_customer_key

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client
    from types_boto3_s3.type_defs import CompletedPartTypeDef

ATTEMPT = "blockgz-attempt"
NO_UPLOAD = "NoSuchUpload"
PARTS_AT_ONCE = 4
# A larger body is sent from its file: botocore holds one that is given as bytes twice over.
WHOLE_BYTES = 1024 * 1024
MAX_CONNECTIONS = 128
RENEWED_SECONDS = 30.0
PERMISSIONS = "s3:GetObject, s3:PutObject and s3:ListBucket"
# Fields of the answer to each part that completing an upload repeats.
COMPLETED_FIELDS = {"ETag", *(f"Checksum{algorithm}" for algorithm in CHECKSUMS)}


W = TypeVar("W", bound=Callable[..., Any])


def _with_required_checksum(write: W) -> W:
    """Repeat a write with a checksum if the bucket refuses it without one, and send one from then on.

    Buckets with Object Lock and a default retention do. Other stores may not know the header, so it is not sent to all.
    """

    @wraps(write)
    def checked(store: "S3Store", *args: Any) -> Any:
        try:
            return write(store, *args)
        except StoreError as error:
            if "Content-MD5" not in error.why or store._s3.checksum_algorithm:
                raise
            store._s3 = replace(store._s3, checksum_algorithm=CHECKSUMS[0])
            return write(store, *args)

    return cast(W, checked)


class S3Store:
    """An archive under a prefix of a bucket."""

    def __init__(
        self,
        address: S3Address,
        s3: S3Settings,
        *,
        attempts: int = s3_client.REQUEST_ATTEMPTS,
        is_conditional: bool = True,
    ) -> None:
        """Open the store.

        `attempts`: how often one request is tried before it fails as StoreUnavailable. `is_conditional=False` is for
        stores that refuse or ignore conditions: the store then asks before each write and compares after it, which
        keeps a single writer exact and does not keep two writers apart.
        """
        self._is_conditional = is_conditional
        self._bucket = address.bucket
        self.prefix = address.prefix
        self._address = address
        self._s3 = s3
        self._key = load_customer_key(s3.customer_key)
        self._new_client = partial(_client, s3, attempts)
        self._latest_client = self._new_client()
        self._guard = threading.Lock()
        self._is_refused = False
        self._renewed_at = -math.inf
        self._parts = ElasticPool(PARTS_AT_ONCE, "upload-part")
        self._abandoned = threading.Event()

    @property
    def url(self) -> str:
        return str(self._address)

    def get(self, key: str) -> writer.StoredObject | None:
        with self._errors(key), _PassingOver(s3_client.MISSING):
            return self._read(key)
        return None

    def head(self, key: str) -> writer.ObjectHead | None:
        with self._errors(key), _PassingOver(s3_client.MISSING):
            answer = self._client.head_object(**self._content_of(key))
            return writer.ObjectHead(answer["ContentLength"], answer.get("Metadata", {}).get(ATTEMPT))
        return None

    @_with_required_checksum
    def put_if_absent(self, key: str, body: writer.Body, attempt: str) -> bool:
        """See Store; bodies over one part go up in parallel parts that appear together."""
        where = self._content_of(key)
        settings = self._s3.of_objects
        if isinstance(body, writer.FileBody):  # a chunk's data
            body.check_size()
            settings |= {} if self._s3.storage_class is None else {"StorageClass": self._s3.storage_class}
        if not self._is_conditional and self.head(key) is not None:
            return False
        with self._errors(key), _contested(key), _PassingOver(s3_client.CONDITION_FAILED):
            if writer.in_parts(body):
                self._upload_parts(where, settings, body, attempt)
            else:
                with _content(body) as content:
                    self._client.put_object(
                        **where, **settings, Body=content, **self._if_absent, Metadata={ATTEMPT: attempt}
                    )
            return self._is_conditional or self._holds_attempt(key, attempt)
        return False

    @_with_required_checksum
    def compare_and_swap(self, key: str, body: bytes, expected: writer.ContentTag | None) -> writer.ContentTag | None:
        if not self._is_conditional:
            return self._compare_then_swap(key, body, expected)
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        with self._errors(key), _contested(key), _PassingOver(s3_client.CONDITION_FAILED | s3_client.MISSING):
            answer = self._client.put_object(**self._content_of(key), **self._s3.of_objects, Body=body, **condition)
            return writer.ContentTag(answer["ETag"])
        return None

    def _compare_then_swap(self, key: str, body: bytes, expected: writer.ContentTag | None) -> writer.ContentTag | None:
        """Swap without a condition; the body that is read back shows whether another writer was faster."""
        before = self.get(key)
        if (before.etag if before is not None else None) != expected:
            return None
        with self._errors(key):
            self._client.put_object(**self._content_of(key), **self._s3.of_objects, Body=body)
        after = self.get(key)
        return after.etag if after is not None and after.body == body else None

    def _holds_attempt(self, key: str, attempt: str) -> bool:
        # Stores that know no conditions may lose an object's metadata, too; a writer of ours always sends some.
        head = self.head(key)
        return head is not None and head.attempt in (attempt, None)

    @property
    def _if_absent(self) -> dict[str, Any]:
        return {"IfNoneMatch": "*"} if self._is_conditional else {}

    def list(self, prefix: str) -> Iterator[writer.ListedObject]:
        for page in self._pages("list_objects_v2", prefix):
            for item in page.get("Contents", []):
                key = item["Key"].removeprefix(self.prefix)
                yield writer.ListedObject(key, item["Size"], item["LastModified"].timestamp())

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._errors(key), _PassingOver(s3_client.PAST_THE_END):
            return self._read(key, Range=f"bytes={start}-{end - 1}").body
        return b""

    @s3_client.retried((IncompleteReadError, ResponseStreamingError))
    def _read(self, key: str, **more: Any) -> writer.StoredObject:
        answer = self._client.get_object(**self._content_of(key), **more)
        return writer.StoredObject(answer["Body"].read(), writer.ContentTag(answer["ETag"]))

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages("list_objects_v2", prefix, Delimiter="/"):
            for item in page.get("CommonPrefixes", []):
                name = item["Prefix"].removeprefix(self.prefix + prefix).rstrip("/")
                if not name.startswith("."):
                    yield name

    def delete(self, key: str) -> None:
        with self._errors(key):
            self._client.delete_object(**self._where(key))

    def abandon_uploads(self) -> None:
        """See Store; each upload ends after the parts that are on the wire."""
        self._abandoned.set()

    def close(self) -> None:
        """Let go of connections and threads; for tests and tools, as a process keeps its store to the end."""
        self._parts.shutdown()
        self._client.close()

    def clock(self) -> float:
        """See ToolStore: the Date of an answer, to the second."""
        with self._errors(""):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self.prefix, MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise StoreError(f"{self.url} does not report its time", why=f"its answer is dated {date!r}") from None

    def leftovers(self) -> Iterator[writer.Leftover]:
        """See ToolStore: objects of probes, and uploads that nobody completed, including those of other programs."""
        for found in self.list(".probe-"):
            if writer.PROBE_FOLDER.match(found.key):
                yield writer.Leftover("probe object", found.key, found.size, found.modified, "")
        for page in self._pages("list_multipart_uploads", ""):
            for upload in page.get("Uploads", []):
                key = upload["Key"].removeprefix(self.prefix)
                begun = upload["Initiated"].timestamp()
                yield writer.Leftover("unfinished upload", key, None, begun, upload["UploadId"])

    def discard(self, leftover: writer.Leftover) -> None:
        if not leftover.token:
            self.delete(leftover.key)
            return
        with self._errors(leftover.key), _PassingOver(s3_client.MISSING | {NO_UPLOAD}):
            self._client.abort_multipart_upload(**self._where(leftover.key), UploadId=leftover.token)

    def restoring(self, key: str, sha256: str) -> str | None:
        """See ToolStore: a copy of the version becomes the current one, also in place of a delete marker."""
        name = self.prefix + key
        for page in self._pages("list_object_versions", key):
            for version in page.get("Versions", []):
                if version["Key"] == name and not version["IsLatest"]:
                    with self._errors(key):
                        body = self._read(key, VersionId=version["VersionId"]).body
                    if hashlib.sha256(body).hexdigest() == sha256:
                        source = f"'{self._bucket}/{name}?versionId={version['VersionId']}'"
                        return f"aws s3api copy-object --bucket {self._bucket} --key {name} --copy-source {source}"
        return None

    def expires_uploads(self) -> bool:
        """See ToolStore: by an enabled lifecycle rule that covers the prefix."""
        rules = []
        with self._errors(""), _PassingOver({"NoSuchLifecycleConfiguration"}):
            rules = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)["Rules"]
        return any(
            rule["Status"] == "Enabled"
            and "AbortIncompleteMultipartUpload" in rule
            and self.prefix.startswith(rule.get("Filter", {}).get("Prefix", rule.get("Prefix", "")))
            for rule in rules
        )

    def _upload_parts(
        self, where: dict[str, Any], settings: dict[str, Any], body: writer.FileBody, attempt: str
    ) -> None:
        self._check_not_abandoned()
        upload = self._client.create_multipart_upload(**where, **settings, Metadata={ATTEMPT: attempt})["UploadId"]
        parts: list[Future[CompletedPartTypeDef]] = []
        try:
            _check_file(body)
            parts += [
                self._parts.submit(self._upload_part, where, upload, body.path, number)
                for number in range(1, -(-body.size // writer.PART_BYTES) + 1)
            ]
            uploaded = [part.result() for part in parts]
            self._check_not_abandoned()
            self._client.complete_multipart_upload(
                **where, UploadId=upload, MultipartUpload={"Parts": uploaded}, **self._if_absent
            )
        except BaseException:
            # A part that arrives after the abort would stay, and cost, forever.
            for part in parts:
                part.cancel()
            wait(parts)
            self._abort({"Bucket": where["Bucket"], "Key": where["Key"]}, upload)
            raise

    def _check_not_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise ShuttingDown("the upload was abandoned", why="the program is ending")

    def _upload_part(self, where: dict[str, Any], upload: str, path: Path, number: int) -> "CompletedPartTypeDef":
        self._check_not_abandoned()
        part: Any = ReadFileChunk.from_filename(str(path), (number - 1) * writer.PART_BYTES, writer.PART_BYTES)
        with part:
            answer = self._client.upload_part(
                **where, **self._s3.of_content, UploadId=upload, PartNumber=number, Body=part
            )
        completed = {name: value for name, value in answer.items() if name in COMPLETED_FIELDS}
        return cast("CompletedPartTypeDef", {**completed, "PartNumber": number})

    def _abort(self, where: dict[str, Any], upload: str) -> None:
        """Give the parts back; what cannot be given back now is left to `archiver gc` or a lifecycle rule."""
        try:
            self._client.abort_multipart_upload(**where, UploadId=upload)
        except (BotoCoreError, ClientError):
            return

    def _where(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self.prefix + key}

    def _content_of(self, key: str) -> dict[str, Any]:
        """Return arguments of requests that write or read the object's content."""
        return self._where(key) | (self._key.of_object(key) if self._key else {})

    def _pages(
        self,
        operation: Literal["list_objects_v2", "list_multipart_uploads", "list_object_versions"],
        prefix: str,
        **options: str,
    ) -> Iterator[Any]:
        paginator: Any = self._client.get_paginator(operation)
        with self._errors(prefix):
            yield from paginator.paginate(Bucket=self._bucket, Prefix=self.prefix + prefix, **options)

    @property
    def _client(self) -> "S3Client":
        """The client; after a refusal a new one, now and then: it reads credentials that were replaced in files."""
        with self._guard:
            now = time.monotonic()
            if self._is_refused and now - self._renewed_at >= RENEWED_SECONDS:
                self._is_refused, self._renewed_at = False, now
                with suppress(BlockgzError):
                    self._latest_client = self._new_client()
            return self._latest_client

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            with s3_client.s3_errors(self._address, key, PERMISSIONS):
                yield
        except AccessDenied:
            self._is_refused = True
            raise


def _client(s3: S3Settings, attempts: int) -> "S3Client":
    """Raise as `setup_errors` does; takes about a second."""
    config = Config(**s3_client.client_options(s3, connections=MAX_CONNECTIONS, attempts=attempts))
    with s3_client.setup_errors(s3):
        session = s3_client.open_session(Session, s3, _assumed)
        return boto3.session.Session(botocore_session=session).client(
            "s3", endpoint_url=s3.endpoint_url, region_name=s3.region, config=config
        )


def _assumed(s3: S3Settings) -> DeferredRefreshableCredentials:
    return DeferredRefreshableCredentials(s3_client.role_fetcher(s3), "assume-role")


class _PassingOver:
    """A context that passes over S3's errors of these codes."""

    def __init__(self, codes: Set[str]) -> None:
        self._codes = codes

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> bool:
        return isinstance(error, ClientError) and s3_client.error_code(error) in self._codes


@contextmanager
def _contested(key: str) -> Iterator[None]:
    """Raise StoreUnavailable for a write that met a concurrent one: it may be tried again."""
    try:
        yield
    except ClientError as error:
        if s3_client.error_code(error) in s3_client.CONFLICT | {NO_UPLOAD}:
            raise StoreUnavailable(f"{key} was being written by another request", why=str(error)) from error
        raise


@contextmanager
def _content(body: writer.Body) -> Iterator[bytes | BinaryIO]:
    """Yield the content to send: the bytes given, those of a small file, or a file to read from."""
    if isinstance(body, bytes):
        yield body
    elif body.size <= WHOLE_BYTES:
        with body.reading():
            content = body.path.read_bytes()
        body.check_content(hashlib.sha256(content).hexdigest())
        yield content
    else:
        _check_file(body)
        with body.reading():
            file = body.path.open("rb")
        with file:
            yield file


def _check_file(body: writer.FileBody) -> None:
    with body.reading(), body.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    body.check_content(found)
