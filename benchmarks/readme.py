"""The figures and the goals of docs/performance.md, made from a result. Pure."""

from collections.abc import Sequence

from benchmarks.figures import Json
from benchmarks.goals import judged
from benchmarks.tables import Table, as_markdown, times

BEGIN, END = "<!-- figures: python -m benchmarks --figures -->", "<!-- end of figures -->"
"""The lines around the figures in docs/performance.md."""
GOALS_BEGIN, GOALS_END = "<!-- goals: python -m benchmarks --goals -->", "<!-- end of goals -->"
"""The lines around the goals in docs/performance.md."""

HEADLINES: Sequence[tuple[str, str]] = (
    ("1 KB: archive json", "archive, json, 1 KB"),
    ("200 B: archive json", "archive, json, 200 B"),
    ("1 KB: archive arrow", "archive, arrow, 1 KB"),
    ("1 KB: replay json", "replay, 1 KB"),
    ("200 B: replay json", "replay, 200 B"),
)
"""Row of the section `peers`, and its name on the page."""


def figures_table(result: Json) -> str:
    """The headline figures, as markdown with a line about where they come from."""
    return "\n\n".join([_where(result), as_markdown(_headlines(result))])


def goals_table(result: Json) -> str:
    """Every goal with what was measured, as markdown."""
    return "\n\n".join([_where(result), as_markdown(judged(result))])


def _where(result: Json) -> str:
    facts = result["machine"]
    return f"Measured on {facts['date']}: {facts['cpu']}, {facts['memory']}, Python {facts['python']}."


def _headlines(result: Json) -> Table:
    peers = result["sections"].get("peers", {"rows": {}, "ratios": {}})
    rows = []
    for name, title in HEADLINES:
        if row := peers["rows"].get(name):
            rate, peak = row["records"] / row["seconds"], row["peak_bytes"] / 1e6
            volume = row["raw_bytes"] / 1e6 / row["seconds"]
            ratio = times(peers["ratios"].get(f"{name} / kafka-backup"))
            rows.append((title, f"{rate:,.0f}", f"{volume:,.0f}", f"{peak:,.0f}", ratio))
    return Table("Whole programs, start-up included", ("", "records/s", "MB/s", "peak MB", "kafka-backup's rate"), rows)
