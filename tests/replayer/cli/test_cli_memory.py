"""What a look-up takes of memory where a few bytes inflate to very many."""

import subprocess
import sys
from pathlib import Path

from index_format.records import Record
from tests.support.archives import ArchiveWriter

VALUE_BYTES = 96_000_000
MAX_BLOCK_BYTES = VALUE_BYTES + 1_000_000
MEASURE = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
)


def peak_bytes(root: Path, place: str) -> int:
    command = [sys.executable, "-m", "replayer", "get", place, "-a", str(root)]
    bounded = [*command, "--max-block-bytes", f"{MAX_BLOCK_BYTES}B"]
    done = subprocess.run([sys.executable, "-c", MEASURE, *bounded], capture_output=True, text=True, check=True)
    code, peak = map(int, done.stdout.split())
    assert code == 0, done.stderr
    return peak


def test_a_look_up_takes_twice_the_bound_on_blocks_at_most(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("big", 0).commit(
        [Record(0, 5, 0, None, b"x" * VALUE_BYTES, ())], block_bytes=VALUE_BYTES + 1_000_000
    )
    writer.partition("small", 0).commit([Record(0, 5, 0, None, b"x", ())])
    assert peak_bytes(tmp_path, "big:0:0") - peak_bytes(tmp_path, "small:0:0") <= 2 * MAX_BLOCK_BYTES
