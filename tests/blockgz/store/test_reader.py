"""A store that does not answer is named while it is waited for."""

import asyncio
from pathlib import Path

import pytest

from blockgz.store import reader as reader_module
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import WatchedReader


class Hanging(LocalReader):
    """Answers once somebody was told."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalAddress(str(root)))
        self.told: list[str] = []
        self.answers = asyncio.Event()

    def tell(self, text: str) -> None:
        self.told.append(text)
        self.answers.set()

    async def folders(self, prefix: str) -> tuple[str, ...]:
        await self.answers.wait()
        return await super().folders(prefix)


def test_who_waits_is_told_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "SILENT_SECONDS", 0.01)

    async def listed() -> list[str]:
        store = Hanging(tmp_path)
        watched = WatchedReader(store, store.tell)
        async with asyncio.timeout(10):
            await watched.folders("")
            store.answers.clear()
            asyncio.get_running_loop().call_later(0.05, store.answers.set)
            await watched.folders("")
        return store.told

    assert asyncio.run(listed()) == [f"waiting for file://{tmp_path}: no answer for 0.01 s"]


def test_a_store_that_answers_is_not_named(tmp_path: Path) -> None:
    told: list[str] = []
    assert asyncio.run(WatchedReader(LocalReader(LocalAddress(str(tmp_path))), told.append).folders("")) == ()
    assert told == []
