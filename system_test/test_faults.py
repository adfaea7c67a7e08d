"""A short shard of the fault campaign; the long one is `make faults`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from system_test.faults.schedule import FaultKind, schedule

SEED = os.environ.get("BLOCKGZ_SEED", "shard")
DISRUPTIONS = 54
STORE_FAULTS = 300
OF_OTHERS = {"broker-kill", "broker-freeze", "store-kill", "recreate", "grow", "truncate", "retention"}


def test_the_schedule_is_a_function_of_the_seed() -> None:
    first, again, other = (
        [str(fault) for fault in itertools.islice(schedule(seed, 2.0), 200)] for seed in ("a", "a", "b")
    )
    assert first == again != other


def test_a_short_schedule_has_every_kind() -> None:
    kinds = {fault.kind for fault in itertools.islice(schedule(SEED, 2.0), DISRUPTIONS)}
    assert kinds == set(FaultKind)


@pytest.mark.timeout(600)
def test_every_record_is_archived_once_whatever_fails(server_programs: None, tmp_path: Path) -> None:
    enough = ("--faults", DISRUPTIONS + STORE_FAULTS, "--disruptions", DISRUPTIONS, "--a-round", DISRUPTIONS)
    arguments = (*enough, "--gap", 2.2, "--store-rate", 0.25, "--seed", SEED)
    command = [sys.executable, "-m", "system_test.faults", *map(str, arguments), "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "state.json").read_text())["rounds"]
    of_archivers = sum(count for kind, count in figures["by_kind"].items() if kind not in OF_OTHERS)
    assert of_archivers >= 40
    assert figures["store_faults"] >= STORE_FAULTS
    assert figures["archived_records"] > 0
