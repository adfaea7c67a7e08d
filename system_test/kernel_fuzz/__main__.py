"""Fuzzes decoding of JSON lines in C under sanitizers: `python -m system_test.kernel_fuzz --minutes 10 --seed 1`.

Needs gcc. Begins with the kept corpus, adds to it what reaches new code, and compares what C and Python make of all of
it. Exit code 1: a crash, whose input is printed, or a difference.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from index_format.record_formats import JsonLines
from index_format.records import batch_from_records
from tests.index_format.builders import record
from tests.support.kernel_campaign import check_lines

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORPUS = ROOT / "tests/index_format/record_formats/decode_corpus.json"
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m system_test.kernel_fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "corpus")
        folder.mkdir()
        for number, raw in enumerate(read_corpus() or begun()):
            (folder / f"{number:06}").write_bytes(raw)
        program = compiled(Path(place))
        seconds = str(int(arguments.minutes * 60))
        run = subprocess.run([program, folder, seconds, str(arguments.seed)], check=False)
        if run.returncode:
            crash = folder / "crash"
            print(f"seed {arguments.seed}: {crash.read_bytes()!r}" if crash.exists() else "the fuzzer failed")
            return 1
        found = sorted((path.read_bytes() for path in folder.iterdir()), key=lambda raw: (len(raw), raw))
    encoded = [base64.b64encode(raw).decode() for raw in found]
    CORPUS.write_text(json.dumps(encoded, indent=0) + "\n")
    decoded = sum(check_lines(raw, 0) for raw in found)
    print(f"{decoded} of {len(found)} inputs are lines; C and Python agree")
    return 0


def read_corpus() -> list[bytes]:
    return [base64.b64decode(each) for each in json.loads(CORPUS.read_text())] if CORPUS.exists() else []


def begun() -> list[bytes]:
    """Lines of each kind, to begin a corpus with."""
    rows = [
        record(1, b'a "value" of some length\n', b"key"),
        record(2, None, None, timestamp=-1, timestamp_type=-1),
        record(3, b"\xff\xfe\x00", b"\xff", [("h", b"v"), ("h", None), ("i", b"\xff")], timestamp_type=1),
        record(2**63 - 1, "é€😀".encode(), b"", timestamp=-(2**63)),
    ]
    encode = JsonLines().encode_in_python
    return [encode(batch_from_records(part), 0)[0] for part in (rows, *([row] for row in rows))]


def compiled(place: Path) -> Path:
    headers = subprocess.run(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    includes = ("-I", str(ROOT / "index_format/kernel"), "-I", headers, "-DPy_LIMITED_API=0x030B0000")
    target, fuzz, program = place / "target.o", place / "fuzz.o", place / "fuzz"
    steps = (
        (
            "gcc",
            *SANITIZED,
            "-fsanitize-coverage=trace-pc",
            "-ffunction-sections",
            *includes,
            "-c",
            HERE / "target.c",
            "-o",
            target,
        ),
        ("gcc", *SANITIZED, "-c", HERE / "fuzz.c", "-o", fuzz),
        ("gcc", *SANITIZED, target, fuzz, "-Wl,--gc-sections", "-o", program),
    )
    for step in steps:
        subprocess.run([*map(str, step)], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
