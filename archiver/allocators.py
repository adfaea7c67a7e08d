"""Which allocators the process uses, so that what it takes from the system stays near what it holds."""

import ctypes
import os

import pyarrow as pa

MOST_ARENAS = 2
_M_ARENA_MAX = -8
"""glibc's malloc.h."""
_libc = ctypes.CDLL(None)
_mallopt = getattr(_libc, "mallopt", None)
_malloc_trim = getattr(_libc, "malloc_trim", None)


def share_heaps() -> None:
    """Make all threads share heaps; to be called before they start.

    glibc gives each thread a heap of its own, up to eight times the number of processors, and Arrow's mimalloc does the
    same; each heap keeps what it once needed. Batches here are made by one thread and dropped by others. What the user
    chose by ARROW_DEFAULT_MEMORY_POOL or MALLOC_ARENA_MAX stands. Other C libraries than glibc are left as they are.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if _mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        _mallopt(_M_ARENA_MAX, MOST_ARENAS)


def give_back() -> None:
    """Return free memory to the system: it lies between what open blocks hold for minutes. Takes milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)
