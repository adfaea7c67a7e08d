"""How long a start takes by the number of partitions: the first one, one over markers, and one after a SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import TopicShape
from benchmarks.figures import Json, row
from benchmarks.measure import Cost, program
from benchmarks.site import Site, clear
from benchmarks.tables import Table

TITLE = "Start-up and recovery of `archiver run --once`, seconds, by the number of partitions (8 records in each)"
PARTITIONS = (1, 100, 1000)
RECORDS_IN_EACH = 8
_PATIENCE_SECONDS = 120


def measure(site: Site) -> Json:
    shapes = {count: TopicShape(count * RECORDS_IN_EACH, 200, partitions=count) for count in PARTITIONS}
    costs: dict[str, list[Cost]] = {}
    for _ in range(site.settings.runs):
        for count, shape in shapes.items():
            for name, cost in _life(site, shape):
                costs.setdefault(f"{count} {name}", []).append(cost)
            site.say(f"{count} partitions: {costs[f'{count} first'][-1].seconds:.1f} s")
    return {"rows": {name: row(each) for name, each in costs.items()}, "ratios": {}}


def _life(site: Site, shape: TopicShape) -> Iterator[tuple[str, Cost]]:
    """One archive from its first start on, and another whose archiver was killed."""
    folder = site.folder("startup")
    yield "first", site.archive_to(str(folder), shape).cost
    yield "again", _again(site, folder, shape, 0)
    yield "lookup", program("replayer", "get", f"{shape.name}:0:3", "-a", folder).cost
    yield "describe", program("replayer", "describe", shape.name, "-a", folder).cost
    clear(folder)
    yield "killed", _after_kill(site, shape)


def _again(site: Site, folder: Path, shape: TopicShape, expected: int) -> Cost:
    """Takes every partition over from its marker."""
    where = ("-a", folder, "-b", site.bootstrap)
    done = program("archiver", "run", shape.name, *where, "--once", "--json")
    archived = sum(each["records"] for each in done.json["partitions"])
    if archived != expected:
        raise SystemExit(f"{archived} instead of {expected} records of {shape.name} were archived")
    return done.cost


def _after_kill(site: Site, shape: TopicShape) -> Cost:
    """A follower is killed once it has claimed every partition, its chunks still open; then a run drains all."""
    folder = site.folder("killed")
    command = [sys.executable, "-m", "archiver", "run", site.topic(shape), "-a", str(folder), "-b", site.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while sum(1 for _ in folder.rglob("last_chunk_index.json")) < shape.partitions:
                if running.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the archiver did not claim {shape.partitions} partitions")
                time.sleep(0.05)
        finally:
            os.kill(running.pid, signal.SIGKILL)
    try:
        return _again(site, folder, shape, shape.records)
    finally:
        clear(folder)


def tables(result: Json) -> list[Table]:
    head = ("partitions", "first start", "over markers", "after SIGKILL", "peak MB", "`get`", "`describe`")
    rows = result["rows"]
    lines = [
        (
            f"{count:,}",
            *(f"{rows[f'{count} {name}']['seconds']:.2f}" for name in ("first", "again", "killed")),
            f"{rows[f'{count} first']['peak_bytes'] / 1e6:,.0f}",
            *(f"{rows[f'{count} {name}']['seconds']:.2f}" for name in ("lookup", "describe")),
        )
        for count in PARTITIONS
    ]
    return [Table(TITLE, head, lines)]
