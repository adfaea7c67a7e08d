"""`python -m benchmarks.restore`: many topics restored side by side, and one after another.

The archive has 200 topics with 10 partitions each. Times are of whole commands, the CPU is that of the restore alone;
the broker works beside it on the same machine. A proof is part of each run.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.measure import Cost, measured_on, program
from benchmarks.tables import Table, as_markdown
from system_test.support.kafka_broker import KafkaBroker
from tests.support.archives import ArchiveWriter, records

TOPICS, PARTITIONS, RECORDS, VALUE_BYTES = 200, 10, 100, 500
AT = "2026-01-01"
GOALS = "goals: plan under 10 s, memory under 1 GB"


def make_archive(root: Path, topics: int) -> None:
    writer = ArchiveWriter(root)
    for topic in range(topics):
        for partition in range(PARTITIONS):
            made = records(range(RECORDS), value_bytes=VALUE_BYTES)
            writer.partition(f"topic-{topic:03}", partition).commit(made, block_bytes=1 << 20)


def run(*arguments: object, home: Path) -> Cost:
    return program("replayer", *arguments, env={"XDG_STATE_HOME": str(home)}).cost


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


def shown(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.seconds:.1f}", f"{cost.cpu_seconds:.1f}", f"{cost.peak_bytes / 1e6:.0f}"


if __name__ == "__main__":
    main()
