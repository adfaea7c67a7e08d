"""Faults put into the program are caught by its own tests; `make mutants` is the same on its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from system_test.mutants.__main__ import UnfitError, mutated
from system_test.mutants.faults import MUTANTS, Mutant


def test_a_fault_that_no_longer_fits_is_an_error() -> None:
    mutant = Mutant("a fault", "a.py", "old", "new", ())
    assert mutated("an old line", mutant) == "an new line"
    for source in ("nothing", "old and old"):
        with pytest.raises(UnfitError, match=r"a fault: a\.py has its text [02] times"):
            mutated(source, mutant)


@pytest.mark.timeout(900)
def test_every_fault_is_caught() -> None:
    command = [sys.executable, "-m", "system_test.mutants"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} faults are caught" in done.stdout
