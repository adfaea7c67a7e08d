"""Which allocators the process uses, so that what it takes from the system stays near what it holds."""

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
_libc = ctypes.CDLL(None)
_mallopt = getattr(_libc, "mallopt", None)
_malloc_trim = getattr(_libc, "malloc_trim", None)


def share_heaps() -> None:
    """Make all threads share heaps, which keep what is used again at once; to be called before they start.

    glibc gives each thread a heap of its own, up to eight times the number of processors, and Arrow's mimalloc does the
    same; each heap keeps what it once needed. Batches here are made by one thread and dropped by others. On the other
    hand glibc gives a block's worth of memory back as soon as it is free, so that each block is paid for in page faults
    again: half of the time of encoding. `give_back` is for that. What the user chose by ARROW_DEFAULT_MEMORY_POOL or
    glibc's variables stands. Other C libraries than glibc are left as they are.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    for variable, parameter, value in _HEAP_SETTINGS:
        if _mallopt is not None and variable not in os.environ:
            _mallopt(parameter, value)


def give_back() -> None:
    """Return free memory to the system: it lies between what open blocks hold for minutes. Takes milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)
