"""`python -m system_test.mutants [NAME...]`: puts each fault into a copy of the program and runs the test named for it.

A fault is caught if its test fails. Exit code 1: one is not caught. Exit code 2: a fault no longer fits the program, or
its test fails, or is not found, without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from system_test.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("archiver", "blockgz", "index_format", "replayer", "tests")
FAILED = 1
"""What pytest ends with where a test failed; anything else but 0 is a fault of the list."""
UNUSED_PLUGINS = ("-p", "no:hypothesispytest", "-p", "no:xdist")
"""They take a third of the time of a single test."""


class UnfitError(Exception):
    """The list of faults and the program do not fit each other."""


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if not chosen:
        print(f"error: there is no fault {', '.join(names)}")
        return 2
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            # Other tests that run now write such files and rename them.
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        shutil.copy(ROOT / "setup.cfg", copy)
        try:
            sound = run(copy, sorted({test for mutant in chosen for test in mutant.tests}))
            if sound.returncode:
                raise UnfitError(f"the tests do not pass without any fault\n{sound.stdout[-3000:]}")
            escaped = [mutant for mutant in chosen if not is_caught(copy, mutant)]
        except UnfitError as error:
            print(f"error: {error}")
            return 2
    print(f"{len(chosen) - len(escaped)} of {len(chosen)} faults are caught, in {time.monotonic() - begun:.0f} s")
    return 1 if escaped else 0


def is_caught(copy: Path, mutant: Mutant) -> bool:
    """Whether one of the tests named for a fault fails with it."""
    path = copy / mutant.path
    source = path.read_text()
    path.write_text(mutated(source, mutant))
    try:
        done = run(copy, mutant.tests)
    finally:
        path.write_text(source)
    if done.returncode not in (0, FAILED):
        raise UnfitError(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}")
    print(f"{'caught' if done.returncode else 'NOT CAUGHT':10} {mutant.name}", flush=True)
    return done.returncode == FAILED


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the fault in it; raises UnfitError where its place is not found, or is not the only one."""
    if source.count(mutant.old) != 1:
        raise UnfitError(f"{mutant.name}: {mutant.path} has its text {source.count(mutant.old)} times, not once")
    return source.replace(mutant.old, mutant.new)


def run(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest in the copy, up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *UNUSED_PLUGINS, *tests]
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
