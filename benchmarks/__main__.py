"""`python -m benchmarks`: our programs on a broker of their own, beside the limits of this machine and beside others.

Everything within one run is interleaved and a median; what counts are ratios.
"""

import argparse
import traceback
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Json
from benchmarks.goals import judged
from benchmarks.measure import machine
from benchmarks.readme import figures_table, goals_table
from benchmarks.results import FOLDER, changes, load, merged, newest, store
from benchmarks.sections import QUICK, SECTIONS, Section
from benchmarks.site import Settings, opened
from benchmarks.tables import as_text

QUICK_MB = 60


def main() -> None:
    """Measure the sections that are asked for, store each as it is done, and print the tables."""
    given = _arguments()
    if given.figures or given.goals:
        path = newest(given.results, "full")
        last = load(path) if path else None
        shown = figures_table if given.figures else goals_table
        print(shown(last) if last else "no results yet: run `make bench`")
        return
    sections = QUICK if given.quick else _chosen(given.only)
    mb = given.mb or (QUICK_MB if given.quick else 200)
    settings = Settings(mb=mb, spark_mb=given.spark_mb, runs=given.runs, kafka_backup=given.kafka_backup)
    facts = machine()
    kind = "quick" if given.quick else "full"
    path = given.results / f"{facts['date']}-{kind}.json"
    before = newest(given.results, kind, None if given.quick else path.name)
    last = load(before) if before else None
    result, failed = _measured(sections, settings, facts, path)
    if result is not None:
        if (goals := judged(result)).rows:
            print("\n" + as_text(goals))
        if last is not None:
            _print_changes(last, result, before.name if before else "")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help=f"sections, with commas: {','.join(SECTIONS)}")
    parser.add_argument("--mb", type=int, help="megabytes of values in a topic (200, quick 60)")
    parser.add_argument("--spark-mb", type=int, default=1000, help="megabytes that Spark loads")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement; the median counts")
    parser.add_argument("--kafka-backup", type=Path, metavar="PATH", help="a build of kafka-backup to compare with")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where results go")
    parser.add_argument("--quick", action="store_true", help="a few ratios in under three minutes")
    parser.add_argument(
        "--figures", action="store_true", help="print the figures of docs/performance.md from the newest results"
    )
    parser.add_argument("--goals", action="store_true", help="print the goals of docs/performance.md")
    return parser.parse_args()


def _chosen(only: str) -> Mapping[str, Section]:
    names = only.split(",") if only else list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"no section {', '.join(unknown)}; there is {', '.join(SECTIONS)}")
    return {name: SECTIONS[name] for name in names}


def _measured(
    sections: Mapping[str, Section], settings: Settings, facts: Mapping[str, str], path: Path
) -> tuple[Json | None, list[str]]:
    """Runs the sections one after the other and names those that failed; each is stored as soon as it is done."""
    result, failed = load(path), []
    print(f"{facts['date']}, {facts['cpu']}, {facts['memory']}, Python {facts['python']}")
    sizes = {"mb": settings.mb, "spark_mb": settings.spark_mb, "runs": settings.runs}
    with opened(settings) as site:
        for name, section in sections.items():
            print(f"\n{name}", flush=True)
            try:
                measured = section.measure(site) | {"sizes": sizes}
            except (Exception, SystemExit):  # the others' hours are not lost for one
                traceback.print_exc()
                failed.append(name)
                continue
            result = merged(result, facts, name, measured)
            store(path, result)
            _print(section, measured)
    return result, failed


def _print(section: Section, measured: Json) -> None:
    if "skipped" in measured:
        print(f"skipped: {measured['skipped']}")
    for table in section.tables(measured):
        print("\n" + as_text(table), flush=True)


def _print_changes(last: Json, result: Json, where: str) -> None:
    print(f"\nagainst {where}")
    for change in changes(last, result):
        warning = "  WARNING: fell by more than 20 %" if change.fell else ""
        print(f"  {change.section}: {change.name}: {change.before:.2f} -> {change.now:.2f}{warning}")


if __name__ == "__main__":
    main()
