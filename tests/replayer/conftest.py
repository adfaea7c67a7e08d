import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import CountingReader
from replayer.read.archive import Archive
from tests.support.archives import ArchiveWriter

T = TypeVar("T")


class Opened:
    """An archive in a directory, read afresh by each use, its requests counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts = CountingReader(LocalReader(LocalAddress(str(root))))

    def read(self, use: Callable[[Archive], Awaitable[T]]) -> T:
        self.counts = CountingReader(LocalReader(LocalAddress(str(self.root))))

        async def used() -> T:
            return await use(Archive(self.counts))

        return asyncio.run(used())


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


@pytest.fixture
def writer(tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs under test keep nothing where others would find it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
