"""`python -m benchmarks.prototype`: checks that the prototype reads what librdkafka reads, then measures both.

Processor time is what counts: whole runs of all ways take turns, and of each the one that took least is shown.
"""

import argparse
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.data import KEYS, PRODUCER, START_MS, TopicShape, create_topic, delete_topic, send, values
from benchmarks.measure import machine, program
from benchmarks.prototype.equality import check_equal
from benchmarks.prototype.native import Native, compiled
from benchmarks.prototype.parts import PartCost
from benchmarks.prototype.steps import steps
from benchmarks.site import MB, Settings, Site, clear, opened
from benchmarks.tables import Table, as_markdown, as_text

CODECS = ("lz4", "none")
FORMATS = ("arrow", "json")
CHECKED_RECORDS = 20_000
SMALL_BATCH = 20
READS = {"bare": "librdkafka, messages", "archiver": "archiver, columns", "prototype": "prototype, columns"}
FETCHERS = {"archiver": "archiver", "prototype": "prototype's fetching"}
Costs = dict[str, list[Mapping[str, Any]]]


def main() -> None:
    """Check, measure, print."""
    given = _arguments()
    facts = machine()
    print(f"{facts['date']}, {facts['cpu']}, {facts['memory']}, Python {facts['python']}")
    with opened(Settings(mb=given.mb, runs=given.runs)) as site:
        library = compiled(site.home)
        native = Native(library)
        _check(site, native)
        start_ups = _start_ups(site, library)
        reads: list[Sequence[str]] = []
        archives: list[Sequence[str]] = []
        alone: dict[str, dict[str, float]] = {}
        for size in given.sizes:
            for codec in given.codecs:
                shape = TopicShape(int(given.mb * MB / size) // 64 * 64, size, compression=codec)
                name = f"{size} B, {codec}"
                reads += _reads(site, library, site.topic(shape), shape.records, name)
                alone[name] = steps(native, site.bootstrap, site.topic(shape))
                archives += _archives(site, library, shape, name, start_ups)
                site.drop(shape)
        reads += _small_batches(site, library, int(given.mb * MB / 1000))
    heads = ("", "CPU µs/record", "of it the caller's", "of librdkafka's", "s", "peak MB")
    whole = ("", "CPU s", "less start-up, µs/record", "of the archiver's", "s", "of the archiver's", "peak MB")
    tables = (Table("Reading", heads, reads), _steps_table(alone), Table("archiver run --once", whole, archives))
    for table in tables:
        print("\n" + (as_markdown(table) if given.markdown else as_text(table)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prototype", description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of values in a topic")
    parser.add_argument("--runs", type=int, default=5, help="runs of each way")
    parser.add_argument("--sizes", type=_list(int), default=[200, 1024], help="bytes of a value, with commas")
    parser.add_argument("--codecs", type=_list(str), default=list(CODECS), help="of the producer, with commas")
    parser.add_argument("--markdown", action="store_true", help="tables for a page")
    return parser.parse_args()


def _steps_table(alone: Mapping[str, Mapping[str, float]]) -> Table:
    names = list(next(iter(alone.values())))
    rows = [(step, *(f"{costs[step] * 1e6:.3f}" for costs in alone.values())) for step in names]
    return Table("The prototype's steps alone, µs/record", ("", *alone), rows)


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(word) for word in text.split(",")]


def _check(site: Site, native: Native) -> None:
    for codec in ("none", "gzip", "lz4", "zstd"):
        shape = TopicShape(CHECKED_RECORDS, 200, compression=codec)
        equal = check_equal(native, site.bootstrap, site.topic(shape), shape.partitions)
        site.say(f"{codec}: {equal} records are equal")
        site.drop(shape)


def _reads(site: Site, library: Path, topic: str, records: int, name: str) -> list[Sequence[str]]:
    costs = _in_turn(site, {way: partial(_read, site, library, topic, records, way) for way in READS})
    best = {way: min(each, key=lambda cost: cost["cpu_seconds"]) for way, each in costs.items()}
    return [
        (
            f"{name}: {title}",
            f"{best[way]['cpu_seconds'] / records * 1e6:.2f}",
            f"{best[way]['caller_seconds'] / records * 1e6:.2f}",
            f"{best[way]['cpu_seconds'] / best['bare']['cpu_seconds']:.0%}",
            f"{_least(costs[way]):.2f}",
            f"{best[way]['peak_bytes'] / MB:.0f}",
        )
        for way, title in READS.items()
    ]


def _read(site: Site, library: Path, topic: str, records: int, way: str) -> Mapping[str, Any]:
    words = ["benchmarks.prototype.parts", way, "--bootstrap", site.bootstrap, "--library", library, "--topic", topic]
    cost = PartCost(**program(*words).json)
    if cost.records not in (None, records):
        raise SystemExit(f"{cost.records} of {records} records of {topic} came")
    return asdict(cost)


def _small_batches(site: Site, library: Path, records: int) -> list[Sequence[str]]:
    """A topic of records of 200 B whose producer sends few at a time."""
    topic = "small-batches"
    create_topic(site.bootstrap, topic, 4)
    site.say(f"filling {topic}")
    producer = Producer({"bootstrap.servers": site.bootstrap, **PRODUCER, "batch.num.messages": SMALL_BATCH})
    for number, value in enumerate(values(TopicShape(records, 200))):
        # Runs of one partition: the producer would gather the same few otherwise, waiting for them.
        send(producer, topic, value, b"key-%d" % (number % KEYS), number // SMALL_BATCH % 4, START_MS + number)
    producer.flush(120)
    rows = _reads(site, library, topic, records, f"200 B, lz4, batches of {SMALL_BATCH}")
    delete_topic(site.bootstrap, topic)
    return rows


def _start_ups(site: Site, library: Path) -> dict[str, float]:
    """Seconds of processor that each program takes for a topic of a few records."""
    few = TopicShape(64, 200)
    costs = _in_turn(site, {way: partial(_archive, site, library, few, way, "json", set()) for way in FETCHERS})
    return {way: min(cost["cpu_seconds"] for cost in each) for way, each in costs.items()}


def _archives(
    site: Site, library: Path, shape: TopicShape, name: str, start_ups: Mapping[str, float]
) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for record_format in FORMATS:
        seen: set[str] = set()
        costs = _in_turn(
            site, {way: partial(_archive, site, library, shape, way, record_format, seen) for way in FETCHERS}
        )
        if len(seen) != 1:
            raise SystemExit(f"{name}, {record_format}: the archives differ")
        best = {way: min(each, key=lambda cost: cost["cpu_seconds"]) for way, each in costs.items()}
        net = {way: best[way]["cpu_seconds"] - start_ups[way] for way in FETCHERS}
        seconds = {way: _least(costs[way]) for way in FETCHERS}
        rows += [
            (
                f"{name}, {record_format}: {title}",
                f"{best[way]['cpu_seconds']:.2f}",
                f"{net[way] / shape.records * 1e6:.2f}",
                f"{net[way] / net['archiver']:.0%}",
                f"{seconds[way]:.2f}",
                f"{seconds[way] / seconds['archiver']:.0%}",
                f"{best[way]['peak_bytes'] / MB:.0f}",
            )
            for way, title in FETCHERS.items()
        ]
    return rows


def _archive(
    site: Site, library: Path, shape: TopicShape, way: str, record_format: str, seen: set[str]
) -> Mapping[str, Any]:
    """One whole run into a folder; adds the digest of all data to `seen`."""
    folder = site.folder("archive")
    words = ["run", site.topic(shape), "-b", site.bootstrap, "-a", folder, "--once", "--json"]
    words += ["--record-format", record_format]
    modules = {"archiver": ["archiver"], "prototype": ["benchmarks.prototype.archiver_with", library]}
    done = program(*modules[way], *words)
    if (archived := sum(each["records"] for each in done.json["partitions"])) != shape.records:
        raise SystemExit(f"{archived} of {shape.records} records were archived")
    seen.add(_digest(folder))
    clear(folder)
    return asdict(done.cost)


def _digest(folder: Path) -> str:
    files = sorted(folder.rglob("*.gz"))
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def _in_turn(site: Site, ways: Mapping[str, Callable[[], Mapping[str, Any]]]) -> Costs:
    costs: Costs = {name: [] for name in ways}
    for _ in range(site.settings.runs):
        for name, way in ways.items():
            costs[name].append(way())
            site.say(f"{name}: {costs[name][-1]['cpu_seconds']:.2f} s of processor")
    return costs


def _least(costs: Sequence[Mapping[str, Any]]) -> float:
    return min(float(cost["seconds"]) for cost in costs)


if __name__ == "__main__":
    main()
