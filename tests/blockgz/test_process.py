"""Asked of processes of their own: how they end, crash, allocate and import; tasks that hang."""

import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from blockgz import elastic_pool
from blockgz.elastic_pool import STALLED_SECONDS, ElasticPool
from blockgz.process import ended_in_time, give_back, share_heaps
from index_format.kernel_choice import KERNEL

PROGRAM = """
import atexit, os, sys, threading
from blockgz.process import run_to_exit
atexit.register(print, "handlers run")
threading.Thread(target=threading.Event().wait).start()
def main():
    sys.stdout.write("x" * 1_000_000)
    print("said", file=sys.stderr)
    sys.exit({code})
run_to_exit(main, os._exit)
"""


def ran(program: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30, check=False)


@pytest.mark.parametrize(("code", "exit_code"), [("", 0), (0, 0), (3, 3)])
def test_all_is_written_handlers_run_and_a_thread_that_waits_keeps_nobody(code: object, exit_code: int) -> None:
    done = ran(PROGRAM.format(code=code))
    assert (done.returncode, done.stderr) == (exit_code, "said\n")
    assert done.stdout == "x" * 1_000_000 + "handlers run\n"


def test_output_that_cannot_be_written_is_not_a_success() -> None:
    program = "\n".join(line for line in PROGRAM.format(code=0).splitlines() if "Thread(" not in line)
    with Path("/dev/full").open("w") as full:
        done = ran(program, stdout=full)
    assert done.returncode not in (0, None)
    assert "No space left" in done.stderr


@pytest.mark.parametrize(("end", "said"), [("1 / 0", "ZeroDivisionError"), ("sys.exit('why')", "why")])
def test_other_ends_are_the_interpreters(end: str, said: str) -> None:
    program = PROGRAM.format(code="0").replace("sys.exit(0)", end)
    program = "\n".join(line for line in program.splitlines() if "Thread(" not in line)
    done = ran(program)
    assert (done.returncode, said in done.stderr) == (1, True)


CRASHING_PROGRAM = "from blockgz.process import explain_crashes; explain_crashes(); import faulthandler; {}"


def crashed(end: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CRASHING_PROGRAM.format(end)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("end", ["faulthandler._sigsegv()", "faulthandler._sigabrt()", "faulthandler._sigfpe()"])
def test_it_prints_its_stacks_and_blames_no_extension_that_is_not_on_the_stack(end: str) -> None:
    run = crashed(end)
    assert run.returncode < 0
    assert "Fatal Python error" in run.stderr
    assert 'File "<string>", line 1 in <module>' in run.stderr
    assert "BLOCKGZ_NO_KERNEL" not in run.stderr


IN_OURS = """
from index_format.kernel_choice import KERNEL
class Batch:
    def __arrow_c_array__(self):
        {}
KERNEL.module.canonical_stream(Batch())
"""


@pytest.mark.skipif(not KERNEL or sys.platform != "linux", reason="needs the extension, and glibc's backtrace")
@pytest.mark.parametrize("end", ["faulthandler._sigsegv()", "faulthandler._sigabrt()", "faulthandler._sigfpe()"])
def test_it_says_how_to_run_without_the_extension_that_is_on_the_stack(end: str) -> None:
    run = crashed(IN_OURS.format(end))
    assert run.returncode < 0
    assert "Fatal Python error" in run.stderr
    assert "BLOCKGZ_NO_KERNEL=1" in run.stderr.splitlines()[-1]


SECONDS = 10


def test_what_still_waits_when_the_time_is_over_is_left_behind() -> None:
    ending, left, codes = threading.Event(), threading.Event(), list[int]()

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    with ended_in_time(ending, 0.01, lambda _: 3, leave):
        assert not codes, "nobody has asked for the end yet"
        ending.set()
        assert left.wait(SECONDS)
    assert codes == [3]


def test_an_end_inside_its_time_is_nobodys_business() -> None:
    ending, codes = threading.Event(), list[int]()
    with ended_in_time(ending, SECONDS, lambda _: 3, codes.append):
        ending.set()
    (watching,) = [thread for thread in threading.enumerate() if thread.name == "ending"]
    watching.join(SECONDS)
    assert not watching.is_alive()
    assert not codes


def test_a_report_that_cannot_be_made_does_not_keep_the_process() -> None:
    ending, left, codes = threading.Event(), threading.Event(), list[int]()
    ending.set()

    def report(_: float) -> int:
        raise BrokenPipeError

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    with ended_in_time(ending, 0.01, report, leave):
        assert left.wait(SECONDS)
    assert codes == [1]


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


CONVERSIONS = """
import sys
import pyarrow as pa
{first}
pa.array([b"a"]).to_numpy(zero_copy_only=False)
pa.array([1, 2]).filter(pa.array([True, False]))
print("pandas" in sys.modules)
"""
REFUSED = """
from blockgz.process import pandas_refused
with pandas_refused():
    pa.array([])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "comes"), [("", True), (REFUSED, False)], ids=["as it is", "kept out"])
def test_pandas_comes_with_the_first_conversion_unless_it_is_kept_out(first: str, *, comes: bool) -> None:
    assert _printed(CONVERSIONS.format(first=first)) == str(comes)


@pytest.mark.slow
def test_who_asks_for_pandas_still_gets_it() -> None:
    program = "import pyarrow as pa\n" + REFUSED
    assert _printed(program + "print(len(pa.table({'a': [1, 2]}).to_pandas()))") == "2"


def _printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


AT_ONCE = 4


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Until it is set, whoever waits for it hangs."""
    event = threading.Event()
    yield event
    event.set()


def running(tasks: list[Future[bool]]) -> int:
    return sum(each.running() for each in tasks)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline


def test_as_many_at_once_as_it_says() -> None:
    with ElasticPool(AT_ONCE, "test") as pool:
        begun, most, guard = 0, 0, threading.Lock()

        def work(number: int) -> int:
            nonlocal begun, most
            with guard:
                begun += 1
                most = max(most, begun)
            with guard:
                begun -= 1
            return number

        answers = [pool.submit(work, number) for number in range(200)]
        assert [answer.result(SECONDS) for answer in answers] == list(range(200))
    assert 1 <= most <= AT_ONCE


def test_tasks_that_stall_hold_up_nobody(clock: Clock, hanging: threading.Event) -> None:
    with ElasticPool(AT_ONCE, "test", clock) as pool:
        sick = [pool.submit(hanging.wait) for _ in range(3 * AT_ONCE)]
        healthy = pool.submit(lambda: "done")
        pool.grow()
        until(lambda: running(sick) == AT_ONCE)
        assert not healthy.running(), "until they stall they count"
        for _ in range(3):
            clock.now += STALLED_SECONDS
            pool.grow()
        assert healthy.result(SECONDS) == "done"
        assert not any(each.done() for each in sick)
        hanging.set()


def test_it_grows_by_itself(monkeypatch: pytest.MonkeyPatch, hanging: threading.Event) -> None:
    monkeypatch.setattr(elastic_pool, "STALLED_SECONDS", 0.01)
    monkeypatch.setattr(elastic_pool, "GROW_SECONDS", 0.01)
    with ElasticPool(1, "test") as pool:
        for _ in range(3):
            pool.submit(hanging.wait)
        assert pool.submit(lambda: "done").result(SECONDS) == "done"
        hanging.set()


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch, clock: Clock, hanging: threading.Event) -> None:
    monkeypatch.setattr(elastic_pool, "MOST_THREADS", 6)
    with ElasticPool(AT_ONCE, "test", clock) as pool:
        sick = [pool.submit(hanging.wait) for _ in range(10)]
        for _ in range(5):
            clock.now += STALLED_SECONDS
            pool.grow()
        until(lambda: running(sick) == 6)
        hanging.set()
        wait(sick, SECONDS)


def test_an_error_is_the_futures() -> None:
    def fails() -> None:
        raise KeyError("x")

    with ElasticPool(AT_ONCE, "test") as pool:
        assert isinstance(pool.submit(fails).exception(SECONDS), KeyError)


def test_shut_down(hanging: threading.Event) -> None:
    pool = ElasticPool(1, "test")
    running: Future[bool] = pool.submit(hanging.wait)
    waiting = pool.submit(hanging.wait)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and not running.done()
    with pytest.raises(RuntimeError):
        pool.submit(hanging.wait)
    hanging.set()
    pool.shutdown()
    assert running.result() is True
