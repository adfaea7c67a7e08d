"""Archiving many partitions that were written in small batches, with the C extensions and without them."""

from benchmarks.data import TopicShape
from benchmarks.figures import Json, faster, row
from benchmarks.measure import Action, interleaved
from benchmarks.site import Site
from benchmarks.tables import Table, costs

TITLE = "Archive 1,000 partitions of batches of 20 records of 200 B (json, gzip, to a folder)"
PARTITIONS, BATCH_RECORDS, BATCHES = 1000, 20, 10
WAYS = {"in C": {}, "without C": {"BLOCKGZ_NO_KERNEL": "1"}}


def measure(site: Site) -> Json:
    """Both ways in turn, each a whole program."""
    records = PARTITIONS * BATCH_RECORDS * BATCHES
    shape = TopicShape(records, 200, partitions=PARTITIONS, batch_records=BATCH_RECORDS)
    site.topic(shape)
    actions: dict[str, Action] = {
        name: lambda variables=variables: site.archiving(shape, env=variables) for name, variables in WAYS.items()
    }
    measured = interleaved(actions, site.settings.runs, site.say)
    rows = {name: row(each, records=records, raw_bytes=shape.raw_bytes) for name, each in measured.items()}
    ours, before = rows["in C"], rows["without C"]
    ratios = {
        "in C / without C": faster(ours, before),
        "processor time without C / in C": before["cpu_seconds"] / ours["cpu_seconds"],
        "memory without C / in C": before["peak_bytes"] / ours["peak_bytes"],
    }
    return {"rows": rows, "ratios": ratios}


def tables(result: Json) -> list[Table]:
    return [costs(TITLE, result["rows"])]
