"""What commands that read take of memory where a few bytes inflate to very many: at most twice --max-block-bytes."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from index_format.records import Record
from tests.support.archives import ArchiveWriter
from tests.support.sampling import LONG, mostly_long

BLOCK_BYTES = 48_000_000
"""Of each block at most, uncompressed: what --max-block-bytes is set to."""
MEASURE = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
)
COMMANDS = {
    "get": ("get", "{topic}:0:0"),
    "cat --json": ("cat", "{topic}", "--json"),
    "grep": ("grep", ".", "{topic}"),
    "verify --records": ("verify", "{topic}", "--deep", "--records"),
    "get --json --stats": ("get", "{topic}:0:0", "--json", "--stats"),
    "cat": ("cat", "{topic}"),
    "find": ("find", "{topic}", "--grep", "."),
    "verify": ("verify", "{topic}", "--deep"),
}


def large(value: bytes, offset: int = 0) -> Record:
    return Record(offset, 5, 0, b"k", value, ())


def shapes() -> Iterator[tuple[str, str, list[Record]]]:
    size = BLOCK_BYTES - 1_000
    yield "wide", "json", [large(b"x" * size + "😀".encode())]
    yield "escapes", "json", [large(b'"\n' * (size // 4))]
    yield "binary", "json", [large(b"\xff" * (size * 3 // 4))]
    yield "several", "json", [large(b"x" * size, offset) for offset in range(3)]
    yield "small", "json", [Record(n, 5, 0, b"k", b"v" * 40, (("h", b"v"),)) for n in range(BLOCK_BYTES // 160)]
    yield "tiny", "json", [Record(n, 5, 0, None, b"v", ()) for n in range(BLOCK_BYTES // 65)]
    yield "columns", "arrow", [large(b"x" * 1_000, offset) for offset in range(BLOCK_BYTES // 1_100)]
    yield "lines", "text", [Record(n, -1, -1, None, b"x" * 40, ()) for n in range(BLOCK_BYTES // 50)]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("archive")
    writer = ArchiveWriter(root)
    writer.partition("idle", 0).commit([large(b"x")])
    names = []
    for topic, record_format, records in shapes():
        index = writer.partition(topic, 0, record_format=record_format).commit(records, block_bytes=BLOCK_BYTES)
        assert BLOCK_BYTES * 0.6 < max(block.byte_length_uncompressed for block in index.blocks) <= BLOCK_BYTES, topic
        names.append(topic)
    return root, names


@pytest.mark.parametrize("command", mostly_long(COMMANDS, 2))
def test_a_block_takes_twice_its_bound_at_most(topics: tuple[Path, list[str]], command: str) -> None:
    root, names = topics
    idle = peak_bytes(root, COMMANDS[command], "idle")
    some = names if LONG else random.sample(names, 2)
    above = {topic: peak_bytes(root, COMMANDS[command], topic) - idle for topic in some}
    print({topic: round(taken / BLOCK_BYTES, 2) for topic, taken in above.items()})
    assert {topic: taken for topic, taken in above.items() if taken > 2 * BLOCK_BYTES} == {}


def peak_bytes(root: Path, command: tuple[str, ...], topic: str) -> int:
    """The largest resident set of the command, measured by a small process: what starts another counts for it."""
    words = [word.format(topic=topic) for word in command]
    program = [sys.executable, "-m", "replayer", *words, "-a", str(root), "--max-block-bytes", f"{BLOCK_BYTES}B"]
    done = subprocess.run([sys.executable, "-c", MEASURE, *program], capture_output=True, text=True, check=True)
    code, peak = map(int, done.stdout.split())
    assert code == 0, done.stderr
    return peak
