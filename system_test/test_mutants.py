"""Faults put into the program are caught by its own tests; `make mutants` is the same on its own."""

import os
import random
import re
import subprocess
import sys

import pytest

from system_test.mutants.__main__ import ROOT, UnfitError, mutated
from system_test.mutants.faults import MUTANTS, Mutant


def test_a_fault_that_no_longer_fits_is_an_error() -> None:
    mutant = Mutant("a fault", "a.py", "old", "new", ())
    assert mutated("an old line", mutant) == "an new line"
    for source in ("nothing", "old and old"):
        with pytest.raises(UnfitError, match=r"a fault: a\.py has its text [02] times"):
            mutated(source, mutant)


def test_every_fault_fits_the_program() -> None:
    for mutant in MUTANTS:
        assert mutated((ROOT / mutant.path).read_text(), mutant)
        for test in mutant.tests:
            path, *names = test.split("::")
            source = (ROOT / path).read_text()
            assert all(re.search(rf"(def|class) {name.partition('[')[0]}\b", source) for name in names), test


@pytest.mark.timeout(900)
def test_one_of_the_faults_is_caught() -> None:
    """All of them take minutes: `make mutants`."""
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    chosen = random.Random(seed).choice(MUTANTS).name
    command = [sys.executable, "-m", "system_test.mutants", chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults are caught" in done.stdout
