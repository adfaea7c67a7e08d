"""An S3 bucket, or whatever speaks its API, as a store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ResponseStreamingError,
    TokenRetrievalError,
)
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from blockgz_runtime.errors import (
    AccessDenied,
    NoArchiveThere,
    ObjectChanged,
    ObjectMissing,
    ObjectTruncated,
    StoreUnavailable,
    UsageError,
)
from blockgz_runtime.store.address import S3Address
from blockgz_runtime.store.reader import StoredObject
from index_format.errors import BlockgzError, TooLarge

MAX_CONNECTIONS = 64
REQUEST_ATTEMPTS = 4
"""For a request that fails; botocore waits in between."""
BODY_ATTEMPTS = 4
"""For a body that breaks off, which botocore does not repeat; of a range, without a byte more."""
PIECE_BYTES = 1024 * 1024

_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_CREDENTIALS_ERRORS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
_BROKEN_BODY = (
    aiohttp.ClientError,
    asyncio.TimeoutError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)


T = TypeVar("T")


@asynccontextmanager
async def open_s3(address: S3Address, *, endpoint_url: str | None, region: str | None) -> AsyncIterator["S3Reader"]:
    """A reader on one client; with an endpoint of its own, path-style URLs and no checksums beyond the required."""
    options: dict[str, Any] = {
        "max_pool_connections": MAX_CONNECTIONS,
        "retries": {"mode": "standard", "total_max_attempts": REQUEST_ATTEMPTS},
        "connect_timeout": 10,
    }
    if endpoint_url:
        options |= {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    with _mapped(address, ""):
        try:
            creation = get_session().create_client(
                "s3", endpoint_url=endpoint_url, region_name=region, config=AioConfig(**options)
            )
            client = await creation.__aenter__()
        except ValueError as error:
            raise UsageError(
                f"{endpoint_url!r} is not an endpoint", why=str(error), remedy="write --endpoint-url http://HOST:PORT"
            ) from error
    try:
        yield S3Reader(address, client)
    finally:
        await client.close()


class S3Reader:
    """Reads the objects under a prefix of a bucket."""

    def __init__(self, address: S3Address, client: Any) -> None:
        self._address = address
        self._client = client

    @property
    def address(self) -> str:
        """See ObjectReader."""
        return str(self._address)

    async def get(self, key: str, max_bytes: int) -> StoredObject:
        """See ObjectReader."""

        async def attempt() -> StoredObject:
            response = await self._client.get_object(**self._where(key))
            length = response["ContentLength"]
            async with response["Body"] as body:
                if length > max_bytes:
                    raise TooLarge(f"{key} has {length} bytes", why=f"no such object may have over {max_bytes}")
                return StoredObject(await body.read(), response["ETag"])

        with _mapped(self._address, key):
            return await _retried(attempt)

    async def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:
        """See ObjectReader."""
        pieces: list[bytes] = []
        reached, version = start, etag

        async def advance() -> None:
            """Reads on from the byte reached, of the same version, until the end or until the body breaks off again."""
            nonlocal reached, version
            condition = {} if version is None else {"IfMatch": version}
            response = await self._client.get_object(
                **self._where(key), Range=f"bytes={reached}-{end - 1}", **condition
            )
            async with response["Body"] as body:
                if response["ContentLength"] != end - reached:
                    raise ObjectTruncated(key, start, end)
                version, begin = response["ETag"], reached
                try:
                    while piece := await body.read(PIECE_BYTES):
                        pieces.append(piece)
                        reached += len(piece)
                except _BROKEN_BODY:
                    if reached == begin:
                        raise

        with _mapped(self._address, key, wanted=(start, end)):
            while reached < end:
                await _retried(advance)
        return b"".join(pieces)

    async def size(self, key: str) -> int:
        """See ObjectReader."""
        with _mapped(self._address, key):
            response = await self._client.head_object(**self._where(key))
        length: int = response["ContentLength"]
        return length

    async def list(self, prefix: str) -> AsyncIterator[str]:
        """See ObjectReader."""
        async for page in self._pages(prefix, {}):
            for entry in page.get("Contents", ()):
                yield entry["Key"].removeprefix(self._address.prefix)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectReader."""
        whole = self._address.prefix + prefix
        names = []
        async for page in self._pages(prefix, {"Delimiter": "/"}):
            names += [entry["Prefix"].removeprefix(whole).rstrip("/") for entry in page.get("CommonPrefixes", ())]
        return tuple(sorted(names))

    def _where(self, key: str) -> dict[str, str]:
        return {"Bucket": self._address.bucket, "Key": self._address.prefix + key}

    async def _pages(self, prefix: str, options: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._address.bucket, Prefix=self._address.prefix + prefix, **options
        )
        with _mapped(self._address, prefix):
            async for page in pages:
                yield page


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns, tried again where the body broke off."""
    async for trial in AsyncRetrying(
        retry=retry_if_exception_type(_BROKEN_BODY),
        stop=stop_after_attempt(BODY_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    ):
        with trial:
            return await attempt()
    raise AssertionError("a retry without an attempt")


@contextmanager
def _mapped(address: S3Address, key: str, wanted: tuple[int, int] | None = None) -> Iterator[None]:
    """Errors of the client as the seam's."""
    try:
        yield
    except BlockgzError:
        raise
    except ClientError as error:
        raise _from_response(error, address, key, wanted) from error
    except _CREDENTIALS_ERRORS as error:
        raise AccessDenied(
            f"no usable credentials for {address}",
            why=str(error),
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use an instance role",
        ) from error
    except ParamValidationError as error:
        raise UsageError(f"{address} cannot be asked for", why=" ".join(str(error).split())) from error
    except (TimeoutError, BotoCoreError, aiohttp.ClientError) as error:
        raise StoreUnavailable(
            f"the store of {address} does not answer",
            why=str(error) or type(error).__name__,
            remedy="check --endpoint-url, --region and the network",
        ) from error


def _from_response(error: ClientError, address: S3Address, key: str, wanted: tuple[int, int] | None) -> BlockgzError:
    details = error.response.get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    why = f"{code or status}: {message}" if message else f"the answer was {code or status}"
    found_out: BlockgzError | None = {404: ObjectMissing(key), 412: ObjectChanged(key)}.get(status or 0)
    if code == "NoSuchBucket":
        found_out = NoArchiveThere(
            f"there is no bucket {address.bucket}", why=why, remedy="check the name, --endpoint-url and --region"
        )
    if status == 416 and wanted is not None:
        found_out = ObjectTruncated(key, *wanted)
    if found_out is not None:
        return found_out
    if code in _DENIED_CODES or status in (401, 403):
        return AccessDenied(
            f"the store denies {address.prefix}{key} in bucket {address.bucket}",
            why=f"{why}; without s3:ListBucket it answers so for a missing object too",
            remedy="allow s3:GetObject and s3:ListBucket, and check the address and the credentials",
        )
    if status in (301, 307, 400) and code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301"):
        return UsageError(
            f"bucket {address.bucket} is in another region", why=why, remedy="give its region with --region"
        )
    return StoreUnavailable(f"the store of {address} failed", why=why, remedy="try again later")
