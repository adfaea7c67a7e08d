"""Archiving: one base case, and from it one thing changed at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import TopicShape
from benchmarks.figures import Json, faster, processor_bound, row
from benchmarks.measure import Action, Cost, interleaved
from benchmarks.site import Site, clear, stored_bytes
from benchmarks.tables import Table, costs

TITLE = "Archive a topic (base: json, gzip by ISA-L level 1, folder, 1 KB, 4 partitions, producer with lz4)"
CORES = 2


@dataclass(frozen=True)
class Variant:
    """One way to archive one topic."""

    shape: TopicShape
    options: tuple[object, ...] = ()
    to_s3: bool = False
    limit: bool = False
    """Whether its limit is measured too."""

    @property
    def codec(self) -> str:
        return "zstd" if "zstd" in self.options else "gzip"


def variants(site: Site) -> dict[str, Variant]:
    shape = site.settings.shape
    base, small, large = shape(), shape(200), shape(102_400)
    arrow = ("--record-format", "arrow")
    return {
        "base": Variant(base, limit=True),
        "arrow": Variant(base, arrow, limit=True),
        "text, no keys": Variant(shape(keys=False), ("--record-format", "text")),
        "200 B": Variant(small, limit=True),
        "200 B, arrow": Variant(small, arrow, limit=True),
        "100 KB": Variant(large),
        "100 KB, arrow": Variant(large, arrow),
        "1 partition": Variant(shape(partitions=1)),
        "64 partitions": Variant(shape(partitions=64)),
        "to S3": Variant(base, to_s3=True),
        "gzip level 0": Variant(base, ("--gzip-level", 0)),
        "gzip level 2": Variant(base, ("--gzip-level", 2)),
        "gzip level 3": Variant(base, ("--gzip-level", 3)),
        "gzip by zlib, level 6": Variant(base, ("--gzip-library", "zlib")),
        "zstd": Variant(base, ("--codec", "zstd")),
        "arrow, zstd": Variant(base, (*arrow, "--codec", "zstd")),
        "producer without compression": Variant(shape(compression="none")),
        "producer with zstd": Variant(shape(compression="zstd")),
        "real text": Variant(shape(corpus="text")),
    }


def measure(site: Site) -> Json:
    return compared(site, variants(site))


def compared(site: Site, chosen: Mapping[str, Variant]) -> Json:
    """Variants interleaved with their limits; every archive holds all records, or the run ends."""
    for variant in chosen.values():
        site.topic(variant.shape)
    # An archive to take raw blocks from; the first run, so also a warm-up.
    kept = {name: site.archived(variant.shape, *variant.options) for name, variant in chosen.items() if variant.limit}
    stored: dict[str, int] = {}
    actions: dict[str, Action] = {}
    for name, variant in chosen.items():
        actions[name] = lambda name=name, variant=variant: _archived(site, name, variant, stored)
        if variant.limit:
            actions |= _limits(site, name, variant, kept[name])
    measured = interleaved(actions, site.settings.runs, site.say)
    rows = {name: _row(name, chosen, measured, stored) for name in actions}
    for folder in kept.values():
        clear(folder)
    for name, variant in chosen.items():
        if variant.limit:
            rows[name]["share"] = faster(rows[name], rows[f"{name}: limit"])
            parts = rows[f"{name}: bare consume"], rows[f"{name}: bare deflate"]
            rows[name]["processor_bound_seconds"] = processor_bound(CORES, *parts)
    return {"rows": rows, "ratios": _ratios(rows)}


def tables(result: Json) -> list[Table]:
    return [costs(TITLE, result["rows"])]


def _ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    found = {f"{name}: of its limit": row["share"] for name, row in rows.items() if "share" in row}
    if "to S3" in rows:
        found["to S3 / to a folder"] = faster(rows["to S3"], rows["base"])
    return found


def _archived(site: Site, name: str, variant: Variant, stored: dict[str, int]) -> Cost:
    """One run; notes the bytes of its data in `stored`, where they can be seen."""
    if variant.to_s3:
        return site.archive_to_s3(variant.shape, *variant.options).cost
    folder = site.folder("archive")
    cost = site.archive_to(str(folder), variant.shape, *variant.options).cost
    stored[name] = stored_bytes(folder)
    clear(folder)
    return cost


def _limits(site: Site, name: str, variant: Variant, kept: Path) -> dict[str, Action]:
    level = 3 if variant.codec == "zstd" else 1
    packing = {"archive": kept, "codec": variant.codec, "level": level}
    return {
        f"{name}: bare consume": lambda: site.bare("consume", variant.shape),
        f"{name}: bare deflate": lambda: site.bare("deflate", **packing),
        f"{name}: limit": lambda: site.bare("both", variant.shape, **packing),
        f"{name}: disk write": lambda: _written(site, kept),
    }


def _written(site: Site, kept: Path) -> Cost:
    folder = site.folder("written")
    folder.mkdir()
    cost = site.bare("write", archive=kept, folder=folder)
    clear(folder)
    return cost


def _row(
    name: str, chosen: Mapping[str, Variant], measured: Mapping[str, Sequence[Cost]], stored: Mapping[str, int]
) -> Json:
    variant = chosen[name.partition(":")[0]]
    shape = variant.shape
    facts = {"stored_bytes": stored[name]} if name in stored else {}
    return row(measured[name], records=shape.records, raw_bytes=shape.raw_bytes, **facts)
