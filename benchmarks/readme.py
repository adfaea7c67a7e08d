"""The README's table, out of a result. Pure."""

from collections.abc import Sequence

from benchmarks.figures import Json
from benchmarks.goals import judged
from benchmarks.tables import Table, as_markdown, percent

BEGIN, END = "<!-- figures: python -m benchmarks --readme -->", "<!-- end of figures -->"
"""What stands around the table in the README."""

HEADLINES: Sequence[tuple[str, str, str]] = (
    ("archive", "base", "archive, json, 1 KB"),
    ("archive", "arrow", "archive, arrow, 1 KB"),
    ("archive", "200 B", "archive, json, 200 B"),
    ("archive", "200 B, arrow", "archive, arrow, 200 B"),
    ("archive", "to S3", "archive, json, 1 KB, to S3"),
    ("replay", "1 KB: idempotent", "replay, 1 KB"),
    ("replay", "1 KB: transactional", "replay, 1 KB, transactional"),
    ("replay", "200 B: idempotent", "replay, 200 B"),
    ("verify", "1 KB", "verify --deep, 1 KB"),
    ("peers", "1 KB: archive json", "beside kafka-backup: archive, json, 1 KB"),
    ("peers", "1 KB: archive arrow", "beside kafka-backup: archive, arrow, 1 KB"),
    ("peers", "1 KB: archive json, 2 workers", "beside kafka-backup: archive, json, 1 KB, two workers"),
    ("peers", "1 KB: archive arrow, 2 workers", "beside kafka-backup: archive, arrow, 1 KB, two workers"),
    ("peers", "1 KB: archive kafka-backup", "kafka-backup: backup, 1 KB"),
    ("peers", "200 B: archive json", "beside kafka-backup: archive, json, 200 B"),
    ("peers", "200 B: archive arrow", "beside kafka-backup: archive, arrow, 200 B"),
    ("peers", "200 B: archive json, 2 workers", "beside kafka-backup: archive, json, 200 B, two workers"),
    ("peers", "200 B: archive arrow, 2 workers", "beside kafka-backup: archive, arrow, 200 B, two workers"),
    ("peers", "200 B: archive kafka-backup", "kafka-backup: backup, 200 B"),
    ("peers", "1 KB: replay json", "beside kafka-backup: replay, 1 KB"),
    ("peers", "1 KB: replay kafka-backup", "kafka-backup: restore, 1 KB"),
    ("peers", "200 B: replay json", "beside kafka-backup: replay, 200 B"),
    ("peers", "200 B: replay kafka-backup", "kafka-backup: restore, 200 B"),
)
"""Section, row, and how the README calls it."""


def readme_table(result: Json | None) -> str:
    """The headline figures and the goals, as markdown with a line about where they come from."""
    assert result is not None
    facts = result["machine"]
    where = f"Measured on {facts['date']}: {facts['cpu']}, {facts['memory']}, Python {facts['python']}."
    return "\n\n".join([where, as_markdown(_headlines(result)), as_markdown(judged(result))])


def _headlines(result: Json) -> Table:
    rows = []
    for section, name, title in HEADLINES:
        row = result["sections"].get(section, {}).get("rows", {}).get(name)
        if row is not None:
            rate, peak = row["records"] / row["seconds"], row["peak_bytes"] / 1e6
            volume = row["raw_bytes"] / 1e6 / row["seconds"]
            rows.append((title, f"{rate:,.0f}", f"{volume:,.0f}", f"{peak:,.0f}", percent(row.get("share"))))
    return Table("Whole programs, start-up included", ("", "records/s", "MB/s", "peak MB", "of its limit"), rows)
