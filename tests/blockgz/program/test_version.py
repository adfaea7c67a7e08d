"""What `--version` says."""

import os
import subprocess
import sys

import pytest

from blockgz.program.main import kernel_words
from index_format.kernel_choice import KERNEL, Kernel


def test_each_extension_is_named_with_why_it_is_not_in_use() -> None:
    found = {"records": Kernel(object(), ""), "Kafka": Kernel(None, "not built")}
    assert kernel_words(found) == "records in use, Kafka not in use (not built)"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["archiver", "replayer"])
def test_both_programs_say_whether_the_extensions_are_in_use(program: str) -> None:
    def printed(**environment: str) -> list[str]:
        command = [sys.executable, "-m", program, "--version"]
        there = {**os.environ, **environment}
        return subprocess.run(
            command, env=there, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()

    version, extensions = printed(BLOCKGZ_NO_KERNEL="1")
    assert version.startswith(f"{program}, version ")
    assert extensions == "C extensions: " + ", ".join(
        f"{name} not in use ({'BLOCKGZ_NO_KERNEL is set' if KERNEL else KERNEL.why_not})"
        for name in ("records", "Kafka")
    )
    if KERNEL:
        assert "records in use" in printed(BLOCKGZ_NO_KERNEL="")[1]
