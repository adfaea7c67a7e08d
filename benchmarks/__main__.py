"""`python -m benchmarks --mb 200`: our programs on a broker of their own, as ratios to what the parts can do alone."""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from system_test.support.kafka_broker import KafkaBroker

from . import limits
from .data import create_topic, fill
from .lookups import measure_lookups
from .measure import Figure, interleaved, machine, program

PARTITIONS = 4
TOPIC = "benchmark"
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure everything once and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of values in the topic")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement; the median counts")
    parser.add_argument("--lookups", type=int, default=300)
    arguments = parser.parse_args()
    with KafkaBroker() as broker, tempfile.TemporaryDirectory(prefix="blockgz-bench-") as folder:
        result = measure(broker.bootstrap, Path(folder), arguments)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{result['machine']['date']}-{arguments.size}B.json").write_bytes(
        orjson.dumps(result, option=orjson.OPT_INDENT_2)
    )
    print_table(result)


def measure(bootstrap: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run."""
    count = arguments.mb * 1_000_000 // arguments.size // PARTITIONS * PARTITIONS
    create_topic(bootstrap, TOPIC, PARTITIONS)
    fill(bootstrap, TOPIC, PARTITIONS, count, arguments.size)
    archive = folder / "archive"
    archive_it = ["archiver", "run", TOPIC, "-b", bootstrap, "-a", str(archive), "--once"]
    program(*archive_it)
    raw = limits.inflate(archive)
    targets = iter(range(1_000_000))

    def archived() -> int:
        shutil.rmtree(archive)
        return program(*archive_it)

    def replayed() -> int:
        target = f"replayed-{next(targets)}"
        create_topic(bootstrap, target, PARTITIONS)
        return program("replayer", "replay", TOPIC, "-a", str(archive), "-b", bootstrap, "--to-topic", target, "--yes")

    def produced() -> None:
        target = f"produced-{next(targets)}"
        create_topic(bootstrap, target, PARTITIONS)
        limits.bare_produce(bootstrap, target, PARTITIONS, count, arguments.size)

    actions: dict[str, Callable[[], int | None]] = {
        "archive to a folder": archived,
        "bare consume": lambda: limits.bare_consume(bootstrap, TOPIC, PARTITIONS),
        "deflate on two threads": lambda: limits.deflate(raw),
        "verify --deep": lambda: program("replayer", "verify", TOPIC, "-a", str(archive), "--deep"),
        "inflate on two threads": lambda: limits.inflate(archive) and None,
        "replay": replayed,
        "bare produce": produced,
    }
    figures = interleaved(actions, arguments.runs)
    lookups = measure_lookups(archive, TOPIC, PARTITIONS, count, arguments.lookups)
    return {
        "machine": machine(),
        "records": count,
        "value_bytes": arguments.size,
        "partitions": PARTITIONS,
        "runs": arguments.runs,
        "raw_bytes": sum(map(len, raw)),
        "stored_bytes": sum(path.stat().st_size for path in archive.rglob("*.gz")),
        "figures": {name: asdict(figure) | {"median": figure.median} for name, figure in figures.items()},
        "ratios": ratios(figures),
        "lookups": asdict(lookups),
    }


def ratios(figures: dict[str, Figure]) -> dict[str, float]:
    """Our figures as a share of what the parts could do without us; whole processes, start-up included."""

    def share(ours: str, limit: float) -> float:
        return limit / figures[ours].median

    consume, deflate = figures["bare consume"].median, figures["deflate on two threads"].median
    return {
        "archive / max(bare consume, deflate)": share("archive to a folder", max(consume, deflate)),
        "verify --deep / inflate": share("verify --deep", figures["inflate on two threads"].median),
        "replay / bare produce": share("replay", figures["bare produce"].median),
    }


def print_table(result: dict[str, Any]) -> None:
    """The figures for people."""
    facts = result["machine"]
    print(f"{facts['date']}, {facts['cpu']}, {facts['memory']}, Python {facts['python']}")
    print(
        f"{result['records']:,} records of {result['value_bytes']:,} B in {result['partitions']} partitions, "
        f"{result['stored_bytes'] / 1e6:,.0f} MB stored, median of {result['runs']} interleaved runs\n"
    )
    print(f"{'':26} {'seconds':>8} {'records/s':>10} {'MB/s':>6} {'peak MB':>8}")
    for name, figure in result["figures"].items():
        peak = f"{max(figure['peak_bytes']) / 1e6:,.0f}" if figure["peak_bytes"] else ""
        rate, volume = result["records"] / figure["median"], result["raw_bytes"] / 1e6 / figure["median"]
        print(f"{name:26} {figure['median']:8.2f} {rate:10,.0f} {volume:6,.0f} {peak:>8}")
    print()
    for name, ratio in result["ratios"].items():
        print(f"{name:40} {ratio:.0%}")
    lookups = result["lookups"]
    print(
        f"\n{lookups['count']} random look-ups: all right, at most {lookups['most_requests']} requests and "
        f"{lookups['data_share']:.2%} of the chunk's bytes; cold p50 {lookups['cold_p50_ms']:.1f} ms, warm p50 "
        f"{lookups['warm_p50_ms']:.1f} ms, p99 {lookups['warm_p99_ms']:.1f} ms, "
        f"bare read and inflate of the block p50 {lookups['bare_p50_ms']:.1f} ms"
    )


if __name__ == "__main__":
    main()
