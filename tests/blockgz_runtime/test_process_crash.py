"""What a process prints that ends by a fault of a library in C."""

import os
import subprocess
import sys

import pytest

from index_format.kernel_choice import KERNEL

PROGRAM = "from blockgz_runtime.process import explain_crashes; explain_crashes(); import faulthandler; {}"


def crashed(end: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(end)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("end", ["faulthandler._sigsegv()", "faulthandler._sigabrt()", "faulthandler._sigfpe()"])
def test_it_prints_its_stacks_and_how_to_run_without_the_extension(end: str) -> None:
    run = crashed(end)
    assert run.returncode < 0
    assert "Fatal Python error" in run.stderr
    assert 'File "<string>", line 1 in <module>' in run.stderr
    assert ("BLOCKGZ_NO_KERNEL=1" in run.stderr.splitlines()[-1]) == bool(KERNEL)


def test_it_does_not_name_an_extension_that_was_not_in_use() -> None:
    run = crashed("faulthandler._sigsegv()", BLOCKGZ_NO_KERNEL="1")
    assert "Fatal Python error" in run.stderr
    assert "BLOCKGZ_NO_KERNEL" not in run.stderr
