"""Range reads of the replayer's S3 store behind a proxy that cuts, holds and fails answers."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from blockgz.errors import ObjectChanged, StoreUnavailable
from blockgz.store.address import S3Address
from blockgz.store.reader import ObjectReader
from blockgz.store.s3_reader import HedgingReader, SlowReads, open_s3
from blockgz.store.s3_settings import S3Settings
from tests.support.fault_proxy import Fault, FaultProxy, Request
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

T = TypeVar("T")
BODY = bytes(range(256)) * 16 * 1024


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("blockgz.store.s3_reader.REQUEST_ATTEMPTS", 1)
    bucket = Bucket(upstream, f"b-{uuid.uuid4().hex}")
    bucket.put("x", BODY)
    yield bucket
    bucket.close()


@pytest.fixture
def proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        yield proxy


def reading(bucket: Bucket, proxy: FaultProxy, use: Callable[[ObjectReader], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_s3(S3Address(bucket.name, ""), S3Settings(proxy.endpoint_url)) as reader:
            return await asyncio.wait_for(use(reader), 60)

    return asyncio.run(run())


class Requests:
    """What the proxy does to the first GETs, in order; it notes the ranges and conditions of all."""

    def __init__(self, *faults: Fault, before: Callable[[int], None] = lambda number: None) -> None:
        self._faults = [*faults]
        self._before = before
        self.ranges: list[tuple[int, int]] = []
        self.conditions: list[str | None] = []

    def __call__(self, request: Request) -> Fault:
        headers = {name.lower(): value for name, value in request.headers.items()}
        first, last = headers["range"].removeprefix("bytes=").split("-")
        self._before(len(self.ranges))
        self.ranges.append((int(first), int(last) + 1))
        self.conditions.append(headers.get("if-match"))
        return self._faults.pop(0) if self._faults else Fault.NONE


@pytest.mark.slow
def test_a_body_that_breaks_off_continues_at_the_byte_reached(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.decide = requests = Requests(*[Fault.CUT] * 6)
    body = reading(bucket, proxy, lambda reader: reader.get_range("x", 1000, len(BODY) - 1000))
    assert body == BODY[1000:-1000]
    starts = [start for start, _ in requests.ranges]
    assert len(starts) == 7, "more cuts than attempts without progress"
    assert starts == sorted(set(starts))
    assert {end for _, end in requests.ranges} == {len(BODY) - 1000}
    assert requests.conditions[0] is None
    assert len(set(requests.conditions[1:])) == 1
    assert requests.conditions[1] is not None


def test_an_object_replaced_in_between_is_never_mixed_in(bucket: Bucket, proxy: FaultProxy) -> None:
    def replace(number: int) -> None:
        if number == 1:
            bucket.put("x", BODY[::-1])

    proxy.decide = Requests(Fault.CUT, before=replace)
    with pytest.raises(ObjectChanged):
        reading(bucket, proxy, lambda reader: reader.get_range("x", 0, len(BODY)))


def test_an_answer_without_a_byte_more_is_not_asked_forever(
    bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockgz.store.s3_reader.BODY_ATTEMPTS", 2)
    proxy.decide = requests = Requests(*[Fault.RESET_BEFORE] * 10)
    with pytest.raises(StoreUnavailable):
        reading(bucket, proxy, lambda reader: reader.get_range("x", 0, 100))
    assert len(requests.ranges) <= 2


def test_a_read_that_hangs_is_asked_again(bucket: Bucket, proxy: FaultProxy) -> None:
    class Impatient(SlowReads):
        def patience(self, num_bytes: int) -> float | None:
            return 0.05

        def spend(self) -> bool:
            return True

    proxy.decide = requests = Requests(Fault.HELD)

    async def use(reader: ObjectReader) -> tuple[bytes, int]:
        hedging = HedgingReader(reader, Impatient())
        return await hedging.get_range("x", 5, 500), hedging.second_requests

    assert reading(bucket, proxy, use) == (BODY[5:500], 1)
    assert requests.ranges == [(5, 500)] * 2
