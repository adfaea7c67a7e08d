"""Replaying: idempotent and transactional, against a producer that does nothing else."""

from typing import Any

from benchmarks.data import TopicShape
from benchmarks.figures import Json, faster, row
from benchmarks.measure import Action, Cost, interleaved, program
from benchmarks.site import Site, clear
from benchmarks.tables import Table, costs

TITLE = "Replay an archive (json) to a topic; the limit is a bare producer, idempotent with acks=all, values ready"


def measure(site: Site) -> Json:
    return compared(site, {"1 KB": site.settings.shape(), "200 B": site.settings.shape(200)})


def compared(site: Site, shapes: dict[str, TopicShape]) -> Json:
    """Both ways and the bare producer, interleaved."""
    folders = {name: site.archived(shape) for name, shape in shapes.items()}
    actions: dict[str, Action] = {}
    for name, shape in shapes.items():
        given: dict[str, Any] = {"site": site, "shape": shape, "folder": folders[name]}
        actions |= {
            f"{name}: idempotent": lambda given=given: replayed(**given),
            f"{name}: transactional": lambda given=given: replayed(**given, options=("--transactional",)),
            f"{name}: bare produce": lambda shape=shape: produced(site, shape),
        }
    measured = interleaved(actions, site.settings.runs, site.say)
    rows, ratios = {}, {}
    for name, shape in shapes.items():
        kinds = [f"{name}: {kind}" for kind in ("idempotent", "transactional", "bare produce")]
        for kind in kinds:
            rows[kind] = row(measured[kind], records=shape.records, raw_bytes=shape.raw_bytes)
        for kind in kinds[:2]:
            rows[kind]["share"] = faster(rows[kind], rows[kinds[2]])
            ratios[f"{kind}: of bare produce"] = rows[kind]["share"]
        ratios[f"{name}: transactional / idempotent"] = faster(rows[kinds[1]], rows[kinds[0]])
        clear(folders[name])
    return {"rows": rows, "ratios": ratios}


def replayed(*, site: Site, shape: TopicShape, folder: object, options: tuple[str, ...] = ()) -> Cost:
    """`replayer replay` of a whole topic; every record must have been delivered."""
    with site.target(shape) as target:
        where = ["-a", folder, "-b", site.bootstrap, "--to-topic", target]
        done = program("replayer", "replay", shape.name, *where, "--yes", "--json", *options)
    records = done.json["records"]
    if records != shape.records:
        raise SystemExit(f"{records} of {shape.records} records were replayed")
    return done.cost


def produced(site: Site, shape: TopicShape) -> Cost:
    """The same number of records by a bare producer."""
    with site.target(shape) as target:
        return site.bare("produce", shape, topic=target)


def tables(result: Json) -> list[Table]:
    return [costs(TITLE, result["rows"])]
