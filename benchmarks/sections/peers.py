"""The same topic by us and by others, in turn: records a second, memory, size on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import TopicShape
from benchmarks.figures import Json, faster, row
from benchmarks.kafka_backup import KafkaBackup
from benchmarks.measure import Action, interleaved
from benchmarks.sections.replay import replayed
from benchmarks.site import Site, all_bytes, clear
from benchmarks.tables import Table, costs

TITLE = "Against kafka-backup (zstd, its defaults), 4 partitions, one topic, to a folder"
OURS: Mapping[str, tuple[str, ...]] = {
    "json": (),
    "json, zstd": ("--codec", "zstd"),
    "arrow": ("--record-format", "arrow"),
    "arrow, zstd": ("--record-format", "arrow", "--codec", "zstd"),
}
REPLAYED: Mapping[str, tuple[str, ...]] = {"json": (), "json, transactional": ("--transactional",)}
TO_S3 = "json, to S3"
PEER = "kafka-backup"


def measure(site: Site) -> Json:
    """1 KB and 200 B; nothing where no peer was given."""
    program = site.settings.kafka_backup
    if program is None:
        return {"rows": {}, "ratios": {}, "skipped": "kafka-backup: no --kafka-backup PATH was given"}
    peer = KafkaBackup(program, site.home)
    rows: Json = {}
    ratios: dict[str, float] = {}
    for name, shape in {"1 KB": site.settings.shape(), "200 B": site.settings.shape(200)}.items():
        mine = _compared(site, peer, shape)
        rows |= {f"{name}: {key}": each for key, each in mine.items()}
        ratios |= {f"{name}: {key}": ratio for key, ratio in compared(mine).items()}
    return {"rows": rows, "ratios": ratios, "version": peer.version}


def _compared(site: Site, peer: KafkaBackup, shape: TopicShape) -> Json:
    topic = site.topic(shape)
    folders: dict[str, Path] = {name: site.archived(shape, *options) for name, options in OURS.items()}
    folders[PEER] = site.folder("peer")
    peer.backup(site.bootstrap, topic, folders[PEER])
    actions: dict[str, Action] = {
        f"archive {name}": lambda options=options: site.archiving(shape, *options) for name, options in OURS.items()
    }
    actions[f"archive {PEER}"] = lambda: _backed_up(site, peer, topic)
    actions[f"archive {TO_S3}"] = lambda: site.archive_to_s3(shape).cost
    for name, options in REPLAYED.items():
        given: Any = {"site": site, "shape": shape, "folder": folders["json"], "options": options}
        actions[f"replay {name}"] = lambda given=given: replayed(**given)
    actions[f"replay {PEER}"] = lambda: _restored(site, peer, shape, folders[PEER])
    measured = interleaved(actions, site.settings.runs, site.say)
    facts: dict[str, dict[str, int]] = {
        f"archive {name}": {"stored_bytes": all_bytes(folder)} for name, folder in folders.items()
    }
    for folder in folders.values():
        clear(folder)
    return {
        name: row(each, records=shape.records, raw_bytes=shape.raw_bytes, **facts.get(name, {}))
        for name, each in measured.items()
    }


def _backed_up(site: Site, peer: KafkaBackup, topic: str) -> Any:
    folder = site.folder("peer")
    cost = peer.backup(site.bootstrap, topic, folder)
    clear(folder)
    return cost


def _restored(site: Site, peer: KafkaBackup, shape: TopicShape, folder: Path) -> Any:
    with site.target(shape) as target:
        cost = peer.restore(site.bootstrap, shape.name, target, folder)
        site.check_count(target, shape)
    return cost


def compared(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The ratios of the rows of one size of records. Pure."""
    theirs = rows[f"archive {PEER}"]
    found = {}
    for name in OURS:
        ours = rows[f"archive {name}"]
        found[f"archive {name} / {PEER}"] = faster(ours, theirs)
        found[f"archive {name}: {PEER}'s memory / ours"] = theirs["peak_bytes"] / ours["peak_bytes"]
        found[f"archive {name}: {PEER}'s size / ours"] = theirs["stored_bytes"] / ours["stored_bytes"]
    for name in REPLAYED:
        ours, other = rows[f"replay {name}"], rows[f"replay {PEER}"]
        found[f"replay {name} / {PEER}"] = faster(ours, other)
        found[f"replay {name}: {PEER}'s memory / ours"] = other["peak_bytes"] / ours["peak_bytes"]
    found["archive json: to S3 / to a folder"] = faster(rows[f"archive {TO_S3}"], rows["archive json"])
    found["replay json: transactional / not"] = faster(rows["replay json, transactional"], rows["replay json"])
    return found


def tables(result: Json) -> list[Table]:
    """For people; none where it was skipped."""
    return [costs(TITLE, result["rows"])] if result["rows"] else []
