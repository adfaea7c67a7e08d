"""Status of running archivers: lag, headroom, and partitions that make no progress."""

import asyncio
import os
from collections.abc import Sequence

import aiohttp
import msgspec

from replayer.serve.archive_view import Look

ASK_SECONDS = 3.0
FRESH_SECONDS = 5.0
MAX_STATUS_BYTES = 64 * 1024 * 1024


class ArchivedNow(msgspec.Struct, frozen=True):
    """A partition, as an archiver's `/status` reports it."""

    topic: str
    partition: int
    state: str
    failure: str | None = None
    trouble: str | None = None
    remedy: str | None = None
    stuck: str | None = None
    durable_offset: int | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    retention_headroom: int | None = None
    paused_seconds: float | None = None

    @property
    def objection(self) -> str | None:
        """The reason why nothing is archived; None if nothing is wrong."""
        if self.state in ("released", "gone"):
            return None
        if self.failure or self.stuck:
            return self.failure or self.stuck
        if self.paused_seconds is not None:
            return f"paused for {self.paused_seconds:.0f} s"
        return self.trouble if self.state != "archiving" else None


class ArchiverMaintenance(msgspec.Struct, frozen=True):
    """An archiver's maintenance, as its `/status` reports it."""

    retention_age_seconds: float | None = None
    compaction_age_seconds: float | None = None
    pruned_chunks: int = 0
    merged_chunks: int = 0
    troubles: tuple[str, ...] = ()


class Archiver(msgspec.Struct, frozen=True, kw_only=True):
    """One process as its `/status` reports it, or why it does not answer."""

    url: str = ""
    error: str | None = None
    version: str
    archive: str
    paused: bool
    trouble: str | None = None
    """Why it has not begun yet."""
    partitions: tuple[ArchivedNow, ...]
    maintenance: ArchiverMaintenance | None = None


class Archivers:
    """The archivers, requested when a page needs them; the last answers are kept for a few seconds."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.look = Look(FRESH_SECONDS, share_of_time=1)
        self._known: tuple[Archiver, ...] = ()

    async def all(self, seconds: float | None = None) -> tuple[Archiver, ...]:
        """Return the states of all archivers, in the order of their addresses.

        After `seconds` without new answers, return the last known ones.
        """
        if self.urls and self.look.is_due:
            self.look.begin(self._ask)
        await self.look.wait(seconds)
        return self._known

    async def _ask(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            self._known = tuple(await asyncio.gather(*(_status(session, url) for url in self.urls)))

    async def of_topics(self, seconds: float | None = None) -> dict[str, dict[str, int | float | None]]:
        """Return each topic's total lag, greatest age and least headroom; raise as `all`."""
        topics: dict[str, list[ArchivedNow]] = {}
        for archiver in await self.all(seconds):
            for each in archiver.partitions:
                if each.state not in ("released", "gone"):
                    topics.setdefault(each.topic, []).append(each)
        return {topic: _together(partitions) for topic, partitions in topics.items()}


def _together(partitions: Sequence[ArchivedNow]) -> dict[str, int | float | None]:
    lags = [each.lag_records for each in partitions if each.lag_records is not None]
    ages = [each.lag_seconds for each in partitions if each.lag_seconds is not None]
    headrooms = [each.retention_headroom for each in partitions if each.retention_headroom is not None]
    return {
        "lag_records": sum(lags) if lags else None,
        "lag_seconds": max(ages, default=None),
        "retention_headroom": min(headrooms, default=None),
        "objections": sum(each.objection is not None for each in partitions),
    }


async def _status(session: aiohttp.ClientSession, url: str) -> Archiver:
    try:
        async with session.get(f"{url.rstrip('/')}/status", allow_redirects=False) as answer:
            answer.raise_for_status()
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_STATUS_BYTES:
                    raise ValueError(f"its status has more than {MAX_STATUS_BYTES} bytes")
            return msgspec.structs.replace(msgspec.json.decode(body, type=Archiver), url=url, error=None)
    except aiohttp.ClientConnectorError as error:
        number = error.errno or 0
        # Names that cannot be looked up have numbers below 0, and a text of their own.
        why = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = str(error) or f"no answer for {ASK_SECONDS:g} s"
    return Archiver(url=url, error=why, version="", archive="", paused=False, partitions=())
