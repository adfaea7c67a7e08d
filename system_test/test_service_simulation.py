"""Schedules of the real service in virtual time: what it fetched is kept, and one sick part stops nothing else.

A violation prints its seed and its schedule; `python -m tests.support.service_simulation --schedules 1 --seed N` runs
it again. In a process of its own: the order in which sets are walked is part of a schedule.
"""

import os
import subprocess
import sys

import pytest

from tests.support.sampling import mostly_long

FIRST_SEED = 40_000_000
A_PART = 60


def simulate(*options: str) -> None:
    command = [sys.executable, "-m", "tests.support.service_simulation", *options]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("part", mostly_long(range(4)))
def test_what_was_fetched_is_kept(part: int) -> None:
    simulate("--schedules", str(A_PART), "--seed", str(FIRST_SEED + part * A_PART))


def test_a_tenth_of_200_partitions_stops_no_other() -> None:
    simulate("--wide", "--schedules", "3", "--seed", str(FIRST_SEED))
