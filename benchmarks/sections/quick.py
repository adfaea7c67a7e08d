"""A few of the ratios in under three minutes, to be compared with those of the last time."""

from benchmarks.figures import Json
from benchmarks.sections import archive, lookups, replay, verify
from benchmarks.sections.growth import planning
from benchmarks.site import Site
from benchmarks.tables import Table, costs

TITLE = "Quick: archive, replay and verify 1 KB records, each beside its limit"


def measure(site: Site) -> Json:
    """The heart of the sections, each with a limit."""
    shape = site.settings.shape()
    arrow = archive.Variant(shape, ("--record-format", "arrow"), limit=True)
    parts = {
        "archive": archive.compared(site, {"json": archive.Variant(shape, limit=True), "arrow": arrow}),
        "replay": replay.compared(site, {"1 KB": shape}),
        "verify": verify.compared(site, {"1 KB": (shape, ())}),
    }
    found = lookups.in_folder(site, shape, ())
    few, many = planning(100), planning(5000)
    rows = {f"{part}: {name}": row for part, result in parts.items() for name, row in result["rows"].items()}
    ratios = {f"{part}: {name}": ratio for part, result in parts.items() for name, ratio in result["ratios"].items()}
    ratios["look up: bare read and inflate / warm p50"] = found["bare_p50"] / found["warm_p50"]
    ratios["planning in 100 chunks / in 5,000"] = few["p50_ms"] / many["p50_ms"]
    return {"rows": rows, "ratios": ratios}


def tables(result: Json) -> list[Table]:
    ratios = [(name, f"{ratio:.2f}") for name, ratio in result["ratios"].items()]
    return [costs(TITLE, result["rows"]), Table("Ratios", ("", "ratio"), ratios)]
