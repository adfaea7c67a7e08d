"""How the process gets its memory: for programs whose batches are made in many threads and dropped in others."""

import ctypes
import os

import pyarrow as pa

MOST_ARENAS = 2
_M_ARENA_MAX = -8
"""glibc's malloc.h."""


def share_heaps() -> None:
    """Makes all threads share heaps; to be called before they start.

    glibc gives each thread a heap of its own, up to eight times the number of processors, and Arrow's mimalloc does the
    same; each heap keeps what it once needed. What the user chose by ARROW_DEFAULT_MEMORY_POOL or MALLOC_ARENA_MAX
    stands. Other C libraries than glibc are left as they are.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, MOST_ARENAS)
