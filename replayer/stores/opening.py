"""Choosing the store by the address."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from index_format.addresses import Address, LocalAddress

from . import ObjectReader
from .hedging import HedgingReader
from .local import LocalReader


@asynccontextmanager
async def open_reader(
    address: Address, *, endpoint_url: str | None = None, region: str | None = None
) -> AsyncIterator[ObjectReader]:
    """The store at the address, closed at the end; the keyword arguments are for S3 alone."""
    if isinstance(address, LocalAddress):
        yield HedgingReader(LocalReader(address))
        return
    # Here, because the AWS library takes longer to load than a small command to run.
    from .s3 import open_s3  # noqa: PLC0415

    async with open_s3(address, endpoint_url=endpoint_url, region=region) as reader:
        yield HedgingReader(reader)
