"""Fuzzes decoding of JSON lines in C under sanitizers: `python -m system_test.kernel_fuzz --minutes 10 --seed 1`.

Needs gcc. Begins with the kept corpus, adds to it what reaches new code, and compares what C and Python make of all of
it. Exit code 1: a crash, whose input is printed, or a difference.
"""

import argparse
import base64
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

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
        for number, kept in enumerate(json.loads(CORPUS.read_text())):
            (folder / f"{number:06}").write_bytes(base64.b64decode(kept))
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


def compiled(place: Path) -> Path:
    headers = sysconfig.get_path("include")
    includes = ("-I", ROOT / "index_format/kernel", "-I", headers, "-DPy_LIMITED_API=0x030B0000")
    traced = ("-fsanitize-coverage=trace-pc", "-ffunction-sections", *includes)
    target, fuzz, program = place / "target.o", place / "fuzz.o", place / "fuzz"
    steps = (
        ("gcc", *SANITIZED, *traced, "-c", HERE / "target.c", "-o", target),
        ("gcc", *SANITIZED, "-c", HERE / "fuzz.c", "-o", fuzz),
        ("gcc", *SANITIZED, target, fuzz, "-Wl,--gc-sections", "-o", program),
    )
    for step in steps:
        subprocess.run([*map(str, step)], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
