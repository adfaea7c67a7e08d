"""Where an archive is, and how driver and tasks open it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from blockgz_runtime.store.address import Address
from blockgz_runtime.store.opening import open_reader
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from replayer.read.archive import Archive


class Place(Protocol):
    """An archive's address and what its store needs; credentials come from the environment of each machine."""

    @property
    def address(self) -> Address:
        """The archive's."""

    @property
    def endpoint_url(self) -> str | None:
        """Where the S3 API is, if not at AWS."""

    @property
    def region(self) -> str | None:
        """The bucket's."""

    @property
    def max_block_bytes(self) -> int:
        """Blocks that inflate to more are refused."""


@dataclass(frozen=True)
class ArchivePlace:
    """A place, to be sent to tasks."""

    address: Address
    endpoint_url: str | None = None
    region: str | None = None
    max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Archive]:
    """The archive of a place."""
    async with open_reader(place.address, endpoint_url=place.endpoint_url, region=place.region) as reader:
        yield Archive(reader, place.max_block_bytes)
