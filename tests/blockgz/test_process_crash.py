"""What a process prints that ends by a fault of a library in C."""

import subprocess
import sys

import pytest

from index_format.kernel_choice import KERNEL

PROGRAM = "from blockgz.process import explain_crashes; explain_crashes(); import faulthandler; {}"


def crashed(end: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(end)]
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
