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
    "json, 2 workers": ("--workers", "2"),
    "arrow, 2 workers": ("--record-format", "arrow", "--workers", "2"),
}
REPLAYED = ("json",)
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
        ratios |= {f"{name}: {key}": ratio for key, ratio in _ratios(mine).items()}
    return {"rows": rows, "ratios": ratios, "version": peer.version}


def _compared(site: Site, peer: KafkaBackup, shape: TopicShape) -> Json:
    topic = site.topic(shape)
    folders: dict[str, Path] = {name: site.archived(shape, *options) for name, options in OURS.items()}
    folders[PEER] = site.folder("peer")
    peer.backup(site.bootstrap, topic, folders[PEER])
    actions: dict[str, Action] = {f"archive {name}": _archiving(site, shape, options) for name, options in OURS.items()}
    actions[f"archive {PEER}"] = lambda: _backed_up(site, peer, topic)
    for name in REPLAYED:
        actions[f"replay {name}"] = lambda name=name: replayed(site=site, shape=shape, folder=folders[name])
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


def _archiving(site: Site, shape: TopicShape, options: tuple[str, ...]) -> Action:
    def action() -> Any:
        folder = site.folder("archive")
        cost = site.archive_to(str(folder), shape, *options).cost
        clear(folder)
        return cost

    return action


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


def _ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
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
    return found


def tables(result: Json) -> list[Table]:
    """For people; none where it was skipped."""
    return [costs(TITLE, result["rows"])] if result["rows"] else []
