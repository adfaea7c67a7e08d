"""The files of ours that run for a look-up, a replay, an erase and an archiver's pass over the demo's data."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from archiver.demo import MEAN_SPACING_MS, PARTITIONS, demo_records, mock_cluster, produce

ROOT = Path(__file__).parent.parent
RECORDS = 2000
PROFILED = """
import atexit, json, os, runpy, sys, threading
codes = set()
def note(frame, event, _):
    code = frame.f_code
    # Bodies of classes and modules run without CO_OPTIMIZED; comprehensions run while a module is imported.
    if event == "call" and code.co_flags & 1 and (code.co_name[0] != "<" or code.co_name == "<lambda>"):
        codes.add(code.co_filename)
atexit.register(lambda: json.dump(sorted(codes), open(os.environ["CALLED"], "w")))
threading.setprofile(note)
sys.setprofile(note)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def programs_files() -> Mapping[str, list[str]]:
    """Return, for each command, the files with at least one function called in it; importing alone does not count."""
    with tempfile.TemporaryDirectory() as scratch, mock_cluster() as cluster:
        kafka = ("-b", cluster.properties["bootstrap.servers"])
        archive = ("-a", f"{scratch}/archive")
        start_ms = int(time.time() * 1000) - (RECORDS + 20) * MEAN_SPACING_MS
        produce(cluster.properties, cluster.topic, demo_records(RECORDS, PARTITIONS, start_ms))
        commands = {
            "archive": ("archiver", "run", cluster.topic, *kafka, *archive, "--once", "--groups", "none"),
            "get": ("replayer", "get", f"{cluster.topic}:0:100", *archive),
            "replay": (
                *("replayer", "replay", cluster.topic, *archive, *kafka),
                *("--to-topic", cluster.restored_topic, "--yes"),
            ),
            "erase": ("archiver", "erase", f"{cluster.topic}:0", "--offsets", "100..110", *archive, "--yes"),
        }
        return {name: _called(words, Path(scratch)) for name, words in commands.items()}


def _called(words: tuple[str, ...], scratch: Path) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKGZ_")}
    folders = {f"XDG_{kind}_HOME": f"{scratch}/{kind}" for kind in ("CACHE", "CONFIG", "STATE")}
    environment = {**inherited, **folders, "CALLED": f"{scratch}/called"}
    command = [sys.executable, "-c", PROFILED, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    paths = [Path(name) for name in json.loads(Path(scratch, "called").read_text())]
    return [str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT) and ".venv" not in path.parts]
