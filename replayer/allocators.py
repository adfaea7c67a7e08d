"""How the process gets its memory: for programs whose batches are made in many threads and dropped in others."""

import ctypes
import os

import pyarrow as pa

MOST_ARENAS = 2
LARGEST_IN_HEAP_BYTES = 32 * 1024**2
"""glibc's own upper bound."""
KEPT_FREE_BYTES = 64 * 1024**2
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""glibc's malloc.h."""
_HEAP_SETTINGS = (
    ("MALLOC_ARENA_MAX", _M_ARENA_MAX, MOST_ARENAS),
    ("MALLOC_MMAP_THRESHOLD_", _M_MMAP_THRESHOLD, LARGEST_IN_HEAP_BYTES),
    ("MALLOC_TRIM_THRESHOLD_", _M_TRIM_THRESHOLD, KEPT_FREE_BYTES),
)


def share_heaps() -> None:
    """Makes all threads share heaps, which keep what is used again at once; to be called before they start.

    glibc gives each thread a heap of its own, up to eight times the number of processors, and Arrow's mimalloc does the
    same; each heap keeps what it once needed. On the other hand glibc gives a block's worth of memory back as soon as
    it is free, so that each block is paid for in page faults again. What the user chose by ARROW_DEFAULT_MEMORY_POOL
    or glibc's variables stands. Other C libraries than glibc are left as they are.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for variable, parameter, value in _HEAP_SETTINGS:
        if mallopt is not None and variable not in os.environ:
            mallopt(parameter, value)
