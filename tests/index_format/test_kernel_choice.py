"""Whether the C extension is used, and why not."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from index_format.kernel_choice import KERNEL, chosen


def failing(error: ImportError) -> Any:
    def load() -> Any:
        raise error

    return load


def test_a_module_of_the_known_interface_is_used() -> None:
    module = SimpleNamespace(INTERFACE=3)
    assert chosen(lambda: module, 3) == (module, "")
    assert chosen(lambda: module, 3)


@pytest.mark.parametrize("module", [SimpleNamespace(INTERFACE=2), SimpleNamespace()])
def test_one_of_another_interface_is_not(module: Any) -> None:
    kernel = chosen(lambda: module, 3)
    assert not kernel
    assert "built from other sources" in kernel.why_not


def test_why_it_cannot_be_imported_is_kept() -> None:
    assert chosen(failing(ImportError("undefined symbol: x")), 1) == (None, "undefined symbol: x")
    assert "no C compiler" in chosen(failing(ModuleNotFoundError("no module")), 1).why_not


@pytest.mark.skipif(not KERNEL, reason=KERNEL.why_not)
@pytest.mark.parametrize(("value", "is_used"), [("1", False), ("yes", False), ("0", True), ("", True)])
@pytest.mark.parametrize("module", ["index_format.kernel_choice", "blockgz.kafka.fetching"])
def test_the_user_can_leave_it_out(module: str, value: str, is_used: bool) -> None:
    program = f"from {module} import KERNEL; print(bool(KERNEL), KERNEL.why_not)"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BLOCKGZ_NO_KERNEL": value},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout.strip() == ("True" if is_used else "False BLOCKGZ_NO_KERNEL is set")
