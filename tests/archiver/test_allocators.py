"""The choice of allocators."""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from archiver.allocators import give_back, share_heaps


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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give memory back by rules of their own")
def test_what_is_free_between_what_is_held_goes_back() -> None:
    pool = pa.system_memory_pool()
    buffers = [pa.allocate_buffer(64 * 1024, memory_pool=pool) for _ in range(512)]
    for buffer in buffers:
        memoryview(buffer).cast("B")[:] = bytes(64 * 1024)
    del buffer, buffers[::2]
    before = _resident_bytes()
    give_back()
    assert before - _resident_bytes() > 8 * 1024**2


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
