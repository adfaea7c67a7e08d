"""An S3 bucket, or another store with its API, as a store of the replayer.

A range read that is slow for its size is requested twice: the first answer wins, the other request is cancelled. A
store answers one request in a hundred ten times as slowly as the others; a second one is mostly answered at once. The
share of second requests is bounded, so that a store that is slow altogether is not asked twice as much.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioDeferredRefreshableCredentials
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError, ResponseStreamingError

from blockgz.errors import NoArchiveThere, ObjectChanged, ObjectMissing, ObjectTruncated, TooLarge
from blockgz.store import s3_client
from blockgz.store.address import S3Address, S3Settings
from blockgz.store.customer_key import CustomerKey, load_customer_key
from blockgz.store.reader import ObjectReader, PassingReader

MAX_CONNECTIONS = 64
# Seconds that a server may send nothing; with all attempts, a store that hangs is given up after about a minute.
READ_SECONDS = 20
PIECE_BYTES = 1024 * 1024
PERMISSIONS = "s3:GetObject and s3:ListBucket"

QUANTILE = 0.95
REMEMBERED_READS = 128
# How many reads of about the same size must be known before one can be called slow.
FEWEST_READS = 20
# Seconds below which a second request cannot help.
SHORTEST_PATIENCE = 0.05
# Second requests by requests, in the long run.
EXTRA_SHARE = 0.05
# How many second requests may be saved up.
BURST = 4.0

_BROKEN_BODY = (aiohttp.ClientError, asyncio.TimeoutError, HTTPClientError, IncompleteReadError, ResponseStreamingError)


@asynccontextmanager
async def open_s3(address: S3Address, s3: S3Settings) -> AsyncIterator["S3Reader"]:
    """Yield a reader on one client, closed at the end."""
    options = s3_client.client_options(
        s3, connections=MAX_CONNECTIONS, attempts=s3_client.REQUEST_ATTEMPTS, read_seconds=READ_SECONDS
    )
    config = AioConfig(**options)
    with s3_client.setup_errors(s3):
        session = s3_client.open_session(AioSession, s3, _assumed)
        client = await session.create_client(
            "s3", endpoint_url=s3.endpoint_url, region_name=s3.region, config=config
        ).__aenter__()
    try:
        yield S3Reader(address, client, load_customer_key(s3.customer_key))
    finally:
        await client.close()


async def _assumed(s3: S3Settings) -> AioDeferredRefreshableCredentials:
    fetch = await asyncio.to_thread(s3_client.role_fetcher, s3)
    return AioDeferredRefreshableCredentials(partial(asyncio.to_thread, fetch), "assume-role")


class S3Reader:
    """A reader of the objects under a prefix of a bucket."""

    def __init__(self, address: S3Address, client: Any, key: CustomerKey | None = None) -> None:
        self._address = address
        self._key = key
        self._client = client

    @property
    def address(self) -> str:
        return str(self._address)

    async def get(self, key: str, max_bytes: int) -> bytes:
        @s3_client.retried(_BROKEN_BODY)
        async def whole() -> bytes:
            response = await self._client.get_object(**self._where(key))
            length = response["ContentLength"]
            async with response["Body"] as body:
                if length > max_bytes:
                    raise TooLarge(f"{key} has {length} bytes", why=f"such objects have at most {max_bytes} bytes")
                content: bytes = await body.read()
                return content

        with _errors(self._address, key):
            return await whole()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        pieces: list[bytes] = []
        reached = start
        condition: dict[str, str] = {}

        @s3_client.retried(_BROKEN_BODY)
        async def advance() -> None:
            """Read on from the byte reached, of the same version, until the end or until the body breaks off again."""
            nonlocal reached, condition
            response = await self._client.get_object(
                **self._where(key), Range=f"bytes={reached}-{end - 1}", **condition
            )
            async with response["Body"] as body:
                if response["ContentLength"] != end - reached:
                    raise ObjectTruncated(key, start, end)
                condition, begin = {"IfMatch": response["ETag"]}, reached
                try:
                    while piece := await body.read(PIECE_BYTES):
                        pieces.append(piece)
                        reached += len(piece)
                except _BROKEN_BODY:
                    if reached == begin:
                        raise

        with _errors(self._address, key, wanted=(start, end)):
            while reached < end:
                await advance()
        return b"".join(pieces)

    async def size(self, key: str) -> int:
        with _errors(self._address, key):
            response = await self._client.head_object(**self._where(key))
        length: int = response["ContentLength"]
        return length

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        async for page in self._pages(prefix, {"StartAfter": self._address.prefix + after} if after else {}):
            for entry in page.get("Contents", ()):
                key: str = entry["Key"].removeprefix(self._address.prefix)
                if key > after:  # not every store knows StartAfter
                    yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        whole = self._address.prefix + prefix
        names = []
        async for page in self._pages(prefix, {"Delimiter": "/"}):
            names += [entry["Prefix"].removeprefix(whole).rstrip("/") for entry in page.get("CommonPrefixes", ())]
        return tuple(sorted(names))

    def _where(self, key: str) -> dict[str, Any]:
        encryption = self._key.of_object(key) if self._key else {}
        return {"Bucket": self._address.bucket, "Key": self._address.prefix + key, **encryption}

    async def _pages(self, prefix: str, options: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._address.bucket, Prefix=self._address.prefix + prefix, **options
        )
        with _errors(self._address, prefix):
            async for page in pages:
                yield page


@contextmanager
def _errors(address: S3Address, key: str, wanted: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Raise the client's errors as those of ObjectReader; `wanted` is the requested range."""
    with s3_client.s3_errors(address, key, PERMISSIONS, no_answer=(aiohttp.ClientError,)):
        try:
            yield
        except ClientError as error:
            code = s3_client.error_code(error)
            if code == "NoSuchBucket":
                raise NoArchiveThere(
                    f"there is no bucket {address.bucket}",
                    why=str(error),
                    remedy="check the name, --endpoint-url and --region",
                ) from error
            if code in s3_client.MISSING:
                raise ObjectMissing(key) from error
            if code in s3_client.CONDITION_FAILED:
                raise ObjectChanged(key) from error
            if code in s3_client.PAST_THE_END:
                raise ObjectTruncated(key, *wanted) from error
            raise


class SlowReads:
    """The durations of recent reads by size, and the second requests that they allow. No clock: seconds are given."""

    def __init__(self) -> None:
        self._seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED_READS))
        self._allowance = 0.0

    def patience(self, num_bytes: int) -> float | None:
        """Seconds after which a read of that size is slow; None while that is not known. Called once for each read."""
        self._allowance = min(self._allowance + EXTRA_SHARE, BURST)
        known = sorted(self._seconds[_size_class(num_bytes)])
        if len(known) < FEWEST_READS:
            return None
        return max(known[int(len(known) * QUANTILE)], SHORTEST_PATIENCE)

    def took(self, num_bytes: int, seconds: float) -> None:
        """Remember what a read took."""
        self._seconds[_size_class(num_bytes)].append(seconds)

    def spend(self) -> bool:
        """Return whether a second request may be made now, and count it if so."""
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


class HedgingReader(PassingReader):
    """A reader that requests slow ranges twice, and passes everything else on."""

    def __init__(
        self, reader: ObjectReader, slow_reads: SlowReads | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(reader)
        self._slow_reads = SlowReads() if slow_reads is None else slow_reads
        self._clock = clock
        self.second_requests = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        began = self._clock()
        patience = self._slow_reads.patience(end - start)
        tasks = [asyncio.create_task(self._reader.get_range(key, start, end))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=patience)
            if not done and self._slow_reads.spend():
                self.second_requests += 1
                tasks.append(asyncio.create_task(self._reader.get_range(key, start, end)))
            body = await _first_answer(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._slow_reads.took(end - start, self._clock() - began)
        return body


async def _first_answer(tasks: list[asyncio.Task[bytes]]) -> bytes:
    """Return the result of the first request to succeed; if all fail, raise the error of the first one."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task.result()
    return tasks[0].result()


def _size_class(num_bytes: int) -> int:
    """Sizes within a factor of four are alike."""
    return num_bytes.bit_length() // 2
