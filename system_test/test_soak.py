"""A short soak: sixty partitions for two minutes; the hour with two thousand is `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from system_test.soak.measuring import floors, slope_per_hour
from tests.support.sampling import in_long_run

MINUTES = "2"
RECORDS_A_SECOND = 1_200
"""What a small machine manages beside other work; half of the maximum is too much for a machine that is not idle."""
MOST_GROWTH_MIB = 32
"""Over the time after warm-up: a short run cannot tell a slope an hour from the size of its chunks, nor from
what the heaps keep free (`blockgz/process.py`: up to 64 MiB)."""


def test_waves_are_not_growth_and_what_leaks_below_them_is() -> None:
    wave = [200.0 + (60 if 100 <= second % 300 < 220 and second > 900 else 0) for second in range(3000)]
    leak = [value + second / 3600 * 6 for second, value in enumerate(wave)]
    flat, growing = (slope_per_hour(floors(list(enumerate(each)), 300)) for each in (wave, leak))
    assert (round(flat, 3), round(growing, 3)) == (0, 6)


def test_a_window_that_is_not_whole_has_no_floor() -> None:
    assert floors([(10.0 + second, 5.0 - second) for second in range(7)], 3) == [(10.0, 3.0), (13.0, 0.0)]


@in_long_run
@pytest.mark.timeout(900)
def test_many_partitions_stay_inside_the_memory_budget(server_programs: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "system_test.soak", "--partitions", "60", "--minutes", MINUTES, "--lenient"]
    where = ["--rate", str(RECORDS_A_SECOND), "--home", str(tmp_path)]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "soak.json").read_text())
    before, after = figures["rss_mib_first_and_last_minute"]
    assert after - before < MOST_GROWTH_MIB
    fewest, most = figures["descriptors_min_max"]
    assert most - fewest <= 32, "a descriptor for each connection at most"
