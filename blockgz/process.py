"""The process: allocators, libraries kept out of its start, open files, the signals that end it, and its end."""

import _thread
import atexit
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from blockgz.errors import UsageError
from index_format.kernel_choice import KERNEL

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM)

# Variable, number of the parameter in glibc's malloc.h, and value; sizes in bytes.
_HEAP_SETTINGS = (
    ("MALLOC_ARENA_MAX", -8, 2),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 * 1024**2),  # glibc's own upper bound
    ("MALLOC_TRIM_THRESHOLD_", -1, 64 * 1024**2),
)


def share_heaps() -> None:
    """Make all threads share heaps, unless the user chose by variables; to be called before they start."""
    # Here, because the shortest commands get by without it.
    import pyarrow as pa  # noqa: PLC0415

    # Like glibc, mimalloc gives each thread a heap that keeps what it once needed, and threads drop others' batches.
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    # glibc gives a block's worth of memory back once it is free, so that the next is paid for in page faults again:
    # half of the time of encoding. `give_back` is for that.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for variable, parameter, value in _HEAP_SETTINGS:
        if mallopt is not None and variable not in os.environ:
            mallopt(parameter, value)


def without_math_threads() -> None:
    """Keep numpy's OpenBLAS from starting a thread for each processor; to be called before its import."""
    # They take a tenth of a short command, and nothing here multiplies matrices. A user may choose otherwise.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def give_back() -> None:
    """Return free memory to the system: it lies between what open blocks hold for minutes. Takes milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def explain_crashes() -> None:
    """Make a fault of a library in C print every thread's stack, and how to run without ours if that is in use."""
    if KERNEL:
        KERNEL.module.explain_crashes()
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def run_to_exit(main: Callable[[], object], leave: Callable[[int], object]) -> None:
    """Call `main`, which ends by SystemExit, run exit handlers, flush output, and `leave` by `os._exit`."""
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # the interpreter knows what to say, and the exit code
            raise end from None
        # Taking modules and objects apart takes a sixth of a short command, and `main` has waited for all it must.
        leave(end.code or 0)


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Hide a library from imports in the block, unless it is loaded already."""

    def find_spec(fullname: str, *_: object) -> None:
        if fullname == name:
            raise ModuleNotFoundError("not for this program", name=name)

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def pandas_refused() -> AbstractContextManager[None]:
    """Hide pandas: pyarrow looks for it once, with its first conversion, 0.4 s of a start and 30 MB for nothing."""
    return refused("pandas")


Handler = Callable[[int, FrameType | None], object]
RETRY_SECONDS = 0.02


def _after_imports(handler: Handler) -> Handler:
    """Return a handler that calls `handler` once the main thread is not importing."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            # Raised inside an import, an exception ends in a fault (orjson) or an error that blames the library
            # (pydantic-core): their initialisation in C calls Python. So the signal is sent again a moment later.
            # Not a threading.Thread: its start takes locks that the interrupted code may hold.
            _thread.start_new_thread(_send_again, (number,))
        else:
            handler(number, frame)

    return on_signal


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _send_again(number: int) -> None:
    time.sleep(RETRY_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


_interrupt = _after_imports(signal.default_int_handler)


@contextmanager
def interrupted_by_signals() -> Iterator[set[int]]:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt; yield a set that holds SIGTERM once it came."""
    received: set[int] = set()

    def on_terminate(number: int, _: FrameType | None) -> None:
        received.add(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell script
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():  # others cannot have handlers
        yield received
        return
    # Inside `run_async` the first one only cancels the task. Services install handlers of their own that set flags.
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        # Raising is what ends the blocking calls of short commands; it is safe outside of imports only.
        signal.signal(signal.SIGTERM, _after_imports(on_terminate))
        if before[signal.SIGINT] in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signal.SIGINT, _interrupt)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, inside `interrupted_by_signals` or without it."""
    # Here, because not every command needs it.
    import asyncio  # noqa: PLC0415

    if signal.getsignal(signal.SIGINT) is not _interrupt:
        return asyncio.run(work)

    async def guarded() -> T:
        cancel = signal.getsignal(signal.SIGINT)
        if callable(cancel):
            signal.signal(signal.SIGINT, _after_imports(cancel))  # a second signal raises
        return await work

    # asyncio replaces no other handler than this one by its own, which cancels the task.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return asyncio.run(guarded())
    finally:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def loop_signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Call these handlers in the running event loop, each for its signal; at the end the previous ones are back."""
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous)


@contextmanager
def ended_soon_after_signals(
    codes: Mapping[int, int], seconds: float = 2.0, leave: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """End the process within `seconds` of the first handled signal, with its code; for the main thread."""
    # A write to a pipe that nobody reads continues after a signal, and so does the last flush.
    heeded = {number: handler for number in codes if callable(handler := signal.getsignal(number))}
    came: list[int] = []
    # A handler may run while its thread holds any lock of `threading`: it takes none.
    called = _thread.allocate_lock()
    called.acquire()

    def watch() -> None:
        called.acquire()
        if came:
            time.sleep(seconds)
            leave(codes[came[0]])

    def call() -> None:
        with suppress(RuntimeError):  # it is called already
            called.release()

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        call()
        heeded[number](number, frame)

    threading.Thread(target=watch, name="ending", daemon=True).start()
    for number in heeded:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
        call()


def stop_on_signals(stop: Callable[[], None]) -> set[int]:
    """Call `stop` on SIGINT and SIGTERM; return the set of received signals. Signals that were held back come now."""
    received: set[int] = set()

    def on_signal(number: int, _: FrameType | None) -> None:
        received.add(number)
        stop()

    for number in ENDING:
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return received


def call_on_hangup(function: Callable[[], None]) -> None:
    """Call a function on SIGHUP, unless a terminal sends it when it is closed, or nohup has it ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not os.isatty(0):
        signal.signal(signal.SIGHUP, lambda _number, _frame: function())


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold signals back until the block ends; a process that is forked in it gets them once it stops on them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def every(seconds: float, report: Callable[[], None]) -> Iterator[None]:
    """Call `report` every `seconds` in a thread of its own."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            report()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def ended_in_time(
    ending: threading.Event, seconds: float, report: Callable[[float], int], leave: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """End the process `seconds` after `ending`, by the exit code of `report`, unless the block ends first."""
    # A request on the wire can be neither taken back nor waited for. What it was to commit is committed or not,
    # as after a SIGKILL, and the next owner finds out.
    ended = threading.Event()

    def watch() -> None:
        ending.wait()
        if not ended.wait(seconds):
            code = 1
            with suppress(Exception):  # such as if nobody reads the report any longer
                code = report(seconds)
                sys.stdout.flush()
            leave(code)

    threading.Thread(target=watch, name="ending", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def allow_open_files(needed: int) -> None:
    """Let the process open this many files; raises UsageError if the hard limit forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"this process may open at most {hard} files",
            why=f"it needs about {needed}, for connections to brokers and for the archive",
            remedy=f"raise the limit: ulimit -n {needed}, or LimitNOFILE= in a systemd unit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
