"""What we want to reach, and whether a result does. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.figures import Json
from benchmarks.tables import Table


class Goal(NamedTuple):
    """A ratio of a section that is to be at least `least`."""

    what: str
    section: str
    ratio: str
    least: float


GOALS: Sequence[Goal] = (
    Goal("Archive, json, 1 KB: records/s against kafka-backup", "peers", "1 KB: archive json / kafka-backup", 1.5),
    Goal("Archive, json, 200 B", "peers", "200 B: archive json / kafka-backup", 1.1),
    Goal("Archive, arrow, 1 KB", "peers", "1 KB: archive arrow / kafka-backup", 1.7),
    Goal("Archive, arrow, 200 B", "peers", "200 B: archive arrow / kafka-backup", 1.2),
    Goal("Archive: its peak memory over ours, 1 KB", "peers", "1 KB: archive json: kafka-backup's memory / ours", 3),
    Goal("Archive: its peak memory over ours, 200 B", "peers", "200 B: archive json: kafka-backup's memory / ours", 3),
    Goal("Archive: its size over ours, zstd, 1 KB", "peers",
         "1 KB: archive json, zstd: kafka-backup's size / ours", 1.0),
    Goal("Archive: its size over ours, zstd, 200 B", "peers",
         "200 B: archive json, zstd: kafka-backup's size / ours", 1.0),
    Goal("Archive: to S3 over to a folder, 1 KB", "peers", "1 KB: archive json: to S3 / to a folder", 0.9),
    Goal("Archive: to S3 over to a folder, 200 B", "peers", "200 B: archive json: to S3 / to a folder", 0.9),
    Goal("Replay, 1 KB: records/s against its restore", "peers", "1 KB: replay json / kafka-backup", 1.4),
    Goal("Replay, 200 B", "peers", "200 B: replay json / kafka-backup", 2.0),
    Goal("Replay: transactional over not, 1 KB", "peers", "1 KB: replay json: transactional / not", 0.9),
    Goal("Replay: transactional over not, 200 B", "peers", "200 B: replay json: transactional / not", 0.9),
    Goal("Replay: its peak memory over ours, 1 KB", "peers", "1 KB: replay json: kafka-backup's memory / ours", 3),
    Goal("Replay: its peak memory over ours, 200 B", "peers", "200 B: replay json: kafka-backup's memory / ours", 3),
    Goal("1,000 partitions, batches of 20: in C over without C", "small_batches", "in C / without C", 1.0),
    Goal("1,000 partitions, batches of 20: memory without C over in C", "small_batches",
         "memory without C / in C", 0.95),
    Goal("Archive, json: share of its limit", "archive", "base: of its limit", 0.6),
    Goal("Archive, arrow: share of its limit", "archive", "arrow: of its limit", 0.7),
    Goal("Replay: share of bare produce, 1 KB", "replay", "1 KB: idempotent: of bare produce", 0.7),
    Goal("Replay: share of bare produce, 200 B", "replay", "200 B: idempotent: of bare produce", 0.7),
    Goal("verify --deep: share of sha256 and inflate", "verify", "1 KB: of its limit", 0.8),
    Goal("Look-up, folder: bare work over warm p50", "lookups",
         "folder: json, 1 MiB: bare read and inflate / warm p50", 1 / 2),
    Goal("Look-up, S3: bare work over warm p50", "lookups",
         "S3: json, 1 MiB: bare read and inflate / warm p50", 1 / 1.3),
    Goal("Planning in 100 chunks over 100,000", "growth", "planning in 100 chunks / in 100,000", 1 / 3),
    Goal("Spark, arrow: against spark.read.json", "spark",
         "blockgz, arrow / spark.read.json, schema given: lengths of values", 1.5),
    Goal("Spark, json: against spark.read.json", "spark",
         "blockgz, json / spark.read.json, schema given: lengths of values", 1.0),
)  # fmt: skip


class Exponent(NamedTuple):
    """An exponent of growth that is to lie in [least, most]."""

    what: str
    slope: str
    least: float
    most: float


EXPONENTS: Sequence[Exponent] = (
    Exponent("Archive: exponent of time over records", "records: archive, time", 0.95, 1.05),
    Exponent("Replay: exponent of time over records", "records: replay, time", 0.95, 1.05),
    Exponent("Archive: exponent of memory over records", "records: archive, memory", -0.1, 0.1),
    Exponent("Archive: exponent of memory over chunks", "chunks: archive, memory", -0.1, 0.1),
)


def judged(result: Json) -> Table:
    """Every goal with what was measured; those of sections that were not run are left out."""
    rows = []
    for goal in GOALS:
        ratio = result["sections"].get(goal.section, {}).get("ratios", {}).get(goal.ratio)
        if ratio is not None:
            missed = "" if ratio >= goal.least else f"missed by {1 - ratio / goal.least:.0%}"
            rows.append((goal.what, f"{goal.least:.2f}", f"{ratio:.2f}", missed))
    slopes = result["sections"].get("growth", {}).get("slopes", {})
    for wanted in EXPONENTS:
        if wanted.slope in slopes:
            exponent = slopes[wanted.slope]
            missed = "" if wanted.least <= exponent <= wanted.most else "missed"
            rows.append((wanted.what, f"{wanted.least:g} to {wanted.most:g}", f"{exponent:.2f}", missed))
    return Table("Goals: each ratio is at least", ("", "goal", "measured", ""), rows)
