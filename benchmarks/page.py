"""`python -m benchmarks.page`: how long the server of `replayer serve` takes for each page, and its memory.

The archive has a partition of 100,000 chunks, a topic of 5,000 partitions, and 1,000 more topics. Cold is the first
request of a new server, until the page and not its progress is answered; warm the median of those that follow.
"""

import argparse
import re
import statistics
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.request import urlopen

from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from system_test.support.pages import Served, serving
from system_test.support.programs import Running
from tests.support.archives import ArchiveWriter, records

CHUNKS, PARTITIONS, TOPICS = 100_000, 5_000, 1_000
GOAL_MS = 300
PAGES = {
    "topics": "/",
    "coverage by time, 100,000 chunks": "/topics/long",
    "coverage by offset, 100,000 chunks": "/topics/long?scale=offset",
    "coverage, 5,000 partitions": "/topics/wide",
    "records, 100,000 chunks before them": "/topics/long/0",
    "one record": f"/topics/long/0/{CHUNKS + 20}",
    "jobs": "/jobs",
    "coverage by the API": "/api/v1/topics/long/coverage?slices=150",
}


def make_archive(root: Path) -> None:
    """All but the newest chunks are in the chain alone: no page reads them."""
    writer = ArchiveWriter(root, has_inventory=False)
    long = writer.partition("long", 0)
    long.pretend(range(CHUNKS))
    long.commit(records(range(CHUNKS, CHUNKS + 60)))
    for number in range(PARTITIONS):
        writer.partition("wide", number).commit(records(range(3)))
    for number in range(TOPICS):
        writer.partition(f"topic-{number:04}", 0).commit(records(range(3)))


def served(root: Path) -> AbstractContextManager[Served]:
    homes = {f"XDG_{kind}_HOME": str(root / kind) for kind in ("CACHE", "STATE")}
    return serving(root / "archive", env=homes)


def milliseconds(url: str) -> float:
    """The time until the page is answered, pages of progress counted with it."""
    begun = time.perf_counter()
    while True:
        with urlopen(url) as answer:
            if b"Reading the archive" not in answer.read():
                return (time.perf_counter() - begun) * 1000


def peak_bytes(program: Running) -> int:
    status = Path(f"/proc/{program.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def rows(root: Path, rounds: int) -> tuple[list[tuple[str, ...]], int]:
    """For each page its first time and the median of the others; and the peak of the one server that answers all."""
    cold = {}
    for name, path in PAGES.items():
        with served(root) as server:
            cold[name] = milliseconds(server.url + path)
    with served(root) as server:
        warm = {}
        for name, path in PAGES.items():
            milliseconds(server.url + path)
            warm[name] = statistics.median(milliseconds(server.url + path) for _ in range(rounds))
        peak = peak_bytes(server.program)
    return [(name, f"{cold[name]:,.0f}", f"{warm[name]:,.0f}") for name in PAGES], peak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="requests of each page; the median counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blockgz-page-") as folder:
        root = Path(folder)
        make_archive(root / "archive")
        found, peak = rows(root, given.rounds)
    print(f"{measured_on()}\n")
    print(as_markdown(Table(f"Milliseconds of a page (goal: {GOAL_MS} warm)", ("", "cold", "warm"), found)))
    print(f"\nPeak memory of the server that answered all of them: {peak / 1e6:,.0f} MB.")


if __name__ == "__main__":
    main()
