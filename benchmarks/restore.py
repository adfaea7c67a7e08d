"""`python -m benchmarks.restore`: many topics restored side by side, and one after another.

The archive has 200 topics with 10 partitions each. Times are of whole commands, the CPU is that of the restore alone;
the broker works beside it on the same machine. A proof is part of each run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from system_test.support.kafka_broker import KafkaBroker
from tests.support.archives import ArchiveWriter, records

TOPICS, PARTITIONS, RECORDS, VALUE_BYTES = 200, 10, 100, 500
AT = "2026-01-01"
GOALS = "goals: plan under 10 s, memory under 1 GB"


class Ran(NamedTuple):
    """One command: its time and its CPU time in seconds, and its peak memory in bytes."""

    seconds: float
    cpu: float
    peak: int


def make_archive(root: Path, topics: int) -> None:
    writer = ArchiveWriter(root)
    for topic in range(topics):
        for partition in range(PARTITIONS):
            made = records(range(RECORDS), value_bytes=VALUE_BYTES)
            writer.partition(f"topic-{topic:03}", partition).commit(made, block_bytes=1 << 20)


def run(*arguments: object, home: Path) -> Ran:
    command = [sys.executable, "-m", "replayer", *map(str, arguments)]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "XDG_STATE_HOME": str(home)}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Ran(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blockgz-restore-") as folder, KafkaBroker() as broker:
        root = Path(folder)
        make_archive(root / "archive", given.topics)
        place = ("--at", AT, "-a", root / "archive", "-b", broker.bootstrap)
        plan = run("restore", *place, "--dry-run", home=root / "plan")
        rows = [("plan (--dry-run)", *shown(plan))]
        for name, workers in (("side by side", None), ("one after another", 1)):
            more = ("--workers", workers) if workers else ()
            prefix = f"{'w' if workers is None else 'o'}."
            ran = run("restore", *place, "--map", rf"(.*)={prefix}\1", "--yes", *more, home=root / name)
            rows.append((name, *shown(ran)))
    title = f"{given.topics} topics, {given.topics * PARTITIONS:,} partitions, "
    title += f"{given.topics * PARTITIONS * RECORDS:,} records of {VALUE_BYTES} B ({GOALS})"
    print(f"{measured_on()}\n")
    print(as_markdown(Table(title, ("", "seconds", "CPU seconds", "peak MB"), rows)))


def shown(ran: Ran) -> tuple[str, str, str]:
    return f"{ran.seconds:.1f}", f"{ran.cpu:.1f}", f"{ran.peak / 1e6:.0f}"


if __name__ == "__main__":
    main()
