"""A short soak: sixty partitions for two minutes; the hour with two thousand is `make soak`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import in_long_run

MINUTES = "2"
RECORDS_A_SECOND = 1_200
"""What a small machine manages beside other work; half of the maximum is too much for a machine that is not idle."""
MOST_GROWTH_MIB = 32
"""Over the time after warm-up: a short run cannot tell a slope an hour from the size of its chunks, nor from
what the heaps keep free (`blockgz/process.py`: up to 64 MiB)."""


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
