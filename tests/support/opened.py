"""An archive in a folder, as the tests of reading open it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from blockgz.archive.archive import ArchiveReader
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import CountingReader

T = TypeVar("T")


class Opened:
    """An archive in a directory, read afresh by each use, its requests counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts = CountingReader(LocalReader(LocalAddress(str(root))))

    def read(self, use: Callable[[ArchiveReader], Awaitable[T]]) -> T:
        self.counts = CountingReader(LocalReader(LocalAddress(str(self.root))))

        async def used() -> T:
            return await use(ArchiveReader(self.counts))

        return asyncio.run(used())
