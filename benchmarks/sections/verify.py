"""`verify --deep`, against reading, hashing and inflating the same files on two threads."""

from benchmarks.data import TopicShape
from benchmarks.figures import Json, faster, row
from benchmarks.measure import Action, interleaved, program
from benchmarks.site import Site, clear
from benchmarks.tables import Table, costs

TITLE = "verify --deep; the limit is sha256 and inflate of the same files on two threads"


def measure(site: Site) -> Json:
    """1 KB and 200 B, json and arrow, gzip and zstd."""
    shape = site.settings.shape
    return compared(
        site,
        {
            "1 KB": (shape(), ()),
            "200 B": (shape(200), ()),
            "1 KB, arrow": (shape(), ("--record-format", "arrow")),
            "1 KB, zstd": (shape(), ("--codec", "zstd")),
        },
    )


def compared(site: Site, cases: dict[str, tuple[TopicShape, tuple[str, ...]]]) -> Json:
    """Each case and its limit, interleaved."""
    folders = {name: site.archived(shape, *options) for name, (shape, options) in cases.items()}
    actions: dict[str, Action] = {}
    for name, folder in folders.items():
        command = ("replayer", "verify", "--deep", "-a", folder, "--json")
        actions[name] = lambda command=command: program(*command).cost
        actions[f"{name}: limit"] = lambda folder=folder: site.bare("verify", archive=folder)
    measured = interleaved(actions, site.settings.runs, site.say)
    rows, ratios = {}, {}
    for name, (shape, _) in cases.items():
        for each in (name, f"{name}: limit"):
            rows[each] = row(measured[each], records=shape.records, raw_bytes=shape.raw_bytes)
        rows[name]["share"] = ratios[f"{name}: of its limit"] = faster(rows[name], rows[f"{name}: limit"])
        clear(folders[name])
    return {"rows": rows, "ratios": ratios}


def tables(result: Json) -> list[Table]:
    return [costs(TITLE, result["rows"])]
