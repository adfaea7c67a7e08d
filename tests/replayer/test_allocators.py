"""The choice of allocators."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from replayer.allocators import share_heaps


@pytest.fixture(autouse=True)
def _pool() -> Iterator[None]:
    before = pa.default_memory_pool()
    yield
    pa.set_memory_pool(before)


def test_arrow_shares_the_heap_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    share_heaps()
    assert pa.default_memory_pool().backend_name == "system"


def test_the_users_choice_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pa.default_memory_pool().backend_name
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", before)
    share_heaps()
    assert pa.default_memory_pool().backend_name == before
