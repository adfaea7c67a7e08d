"""An S3 bucket, or whatever speaks its API, as a store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError, ResponseStreamingError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from blockgz_runtime.errors import NoArchiveThere, ObjectChanged, ObjectMissing, ObjectTruncated
from blockgz_runtime.store.address import S3Address
from blockgz_runtime.store.reader import FetchedObject, VersionTag
from blockgz_runtime.store.s3_client import (
    CONDITION_FAILED,
    MISSING,
    PAST_THE_END,
    REQUEST_ATTEMPTS,
    client_options,
    error_code,
    s3_errors,
    setup_errors,
)
from index_format.errors import TooLarge

MAX_CONNECTIONS = 64
BODY_ATTEMPTS = 4
"""For a body that breaks off, which botocore does not repeat; of a range, without a byte more."""
PIECE_BYTES = 1024 * 1024
PERMISSIONS = "s3:GetObject and s3:ListBucket"

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
    """A reader on one client, closed at the end."""
    config = AioConfig(**client_options(endpoint_url, connections=MAX_CONNECTIONS, attempts=REQUEST_ATTEMPTS))
    with setup_errors(endpoint_url):
        client = (
            await get_session()
            .create_client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
            .__aenter__()
        )
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

    async def get(self, key: str, max_bytes: int) -> FetchedObject:
        """See ObjectReader."""

        async def attempt() -> FetchedObject:
            response = await self._client.get_object(**self._where(key))
            length = response["ContentLength"]
            async with response["Body"] as body:
                if length > max_bytes:
                    raise TooLarge(f"{key} has {length} bytes", why=f"no such object may have over {max_bytes}")
                return FetchedObject(await body.read(), VersionTag(response["ETag"]))

        with _errors(self._address, key):
            return await _retried(attempt)

    async def get_range(self, key: str, start: int, end: int, version: VersionTag | None = None) -> bytes:
        """See ObjectReader."""
        pieces: list[bytes] = []
        reached, pinned = start, version

        async def advance() -> None:
            """Reads on from the byte reached, of the same version, until the end or until the body breaks off again."""
            nonlocal reached, pinned
            condition = {} if pinned is None else {"IfMatch": pinned}
            response = await self._client.get_object(
                **self._where(key), Range=f"bytes={reached}-{end - 1}", **condition
            )
            async with response["Body"] as body:
                if response["ContentLength"] != end - reached:
                    raise ObjectTruncated(key, start, end)
                pinned, begin = VersionTag(response["ETag"]), reached
                try:
                    while piece := await body.read(PIECE_BYTES):
                        pieces.append(piece)
                        reached += len(piece)
                except _BROKEN_BODY:
                    if reached == begin:
                        raise

        with _errors(self._address, key, wanted=(start, end)):
            while reached < end:
                await _retried(advance)
        return b"".join(pieces)

    async def size(self, key: str) -> int:
        """See ObjectReader."""
        with _errors(self._address, key):
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
        with _errors(self._address, prefix):
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
def _errors(address: S3Address, key: str, wanted: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Raises the client's errors as those of ObjectReader; `wanted` is the range that was asked for."""
    with s3_errors(address, key, PERMISSIONS, no_answer=(aiohttp.ClientError,)):
        try:
            yield
        except ClientError as error:
            code = error_code(error)
            if code == "NoSuchBucket":
                raise NoArchiveThere(
                    f"there is no bucket {address.bucket}",
                    why=str(error),
                    remedy="check the name, --endpoint-url and --region",
                ) from error
            if code in MISSING:
                raise ObjectMissing(key) from error
            if code in CONDITION_FAILED:
                raise ObjectChanged(key) from error
            if code in PAST_THE_END:
                raise ObjectTruncated(key, *wanted) from error
            raise
