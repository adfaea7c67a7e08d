"""The choice of allocators."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from blockgz.process import give_back, share_heaps


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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep memory by rules of their own")
def test_memory_of_a_few_blocks_is_paid_for_once() -> None:
    """Fresh memory comes page by page, each a fault; in a process of its own, whose heap nobody has used."""
    program = """
import resource
import pyarrow as pa
from blockgz.process import share_heaps
share_heaps()
pool = pa.system_memory_pool()
def work():
    blocks = [pa.allocate_buffer(12 << 20, memory_pool=pool) for _ in range(3)]
    for block in blocks:
        memoryview(block).cast("B")[:] = zeros
zeros = bytes(12 << 20)
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, check=True)
    pages = 5 * 3 * (12 << 20) // resource.getpagesize()
    assert int(done.stdout) <= pages / 4
