"""Looks up random offsets of an archive that others write and maintain, and writes every answer down.

    python -m system_test.faults.reader ARCHIVE ENDPOINT_URL FOLDER ANSWERS GRACE SEED

FOLDER is where the S3 server keeps the archive: it tells which offsets there are. A partition is opened, read for up to
GRACE seconds, and opened again. A line of ANSWERS is a JSON array: when the partition was opened, its folder with a
slash at its end, the offset, what was found, and of a record its fingerprint, of an error what it says.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.lookup import FoundRecord, Lost, Outcome, look_up_all
from blockgz.archive.partition import ArchivedPartition, Damaged
from blockgz.store.address import S3Settings, parse_address
from index_format.errors import BlockgzError
from system_test.faults.fingerprint import fingerprint
from system_test.faults.watcher import parse_home, read_markers

_PAUSE_SECONDS = 0.1
_AT_ONCE = 4
DAMAGE, UNAVAILABLE = "Damage", "Unavailable"


class _Held(NamedTuple):
    """A partition as one version of its marker has it."""

    partition: ArchivedPartition
    at: float
    until: float
    offsets: range


async def read(archive: ArchiveReader, root: Path, answers: IO[str], grace: float, rng: random.Random) -> None:
    held: dict[str, _Held] = {}
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        begun = time.time()
        markers = [each for each in read_markers(root).items() if each[1]["next_offset"] is not None]
        if not markers:
            continue
        home, marker = rng.choice(markers)
        offsets = range(marker["start_offset"], marker["next_offset"])
        try:
            if home not in held or begun > held[home].until:
                topic, incarnation, number = parse_home(home)
                partition = await archive.open_partition(f"{topic}~{incarnation}", number)
                held[home] = _Held(partition, begun, begun + rng.uniform(0, grace), offsets)
            now = held[home]
            chosen = [rng.choice(now.offsets) for _ in range(_AT_ONCE)] if now.offsets else []
            found = [(offset, *_told(each)) for offset, each in (await look_up_all(now.partition, chosen)).items()]
        except Damaged as error:
            found = [(-1, DAMAGE, error.reason)]
        except BlockgzError as error:
            found = [(-1, UNAVAILABLE, error.reason)]
        at = held[home].at if home in held else 0.0
        answers.writelines(json.dumps([at, home, *each]) + "\n" for each in found)
        answers.flush()


def _told(outcome: Outcome) -> tuple[str, str]:
    """The kind of an outcome, and a record's fingerprint or an error's words."""
    if isinstance(outcome, FoundRecord):
        record = outcome.record
        return "Found", fingerprint(record.key, record.value, record.headers, record.timestamp)
    if isinstance(outcome, Lost):
        kind = DAMAGE if isinstance(outcome.error, Damaged) else UNAVAILABLE
        return kind, outcome.error.reason
    return outcome.kind.capitalize(), ""


async def main() -> None:
    address, endpoint_url, root, answers, grace, seed = sys.argv[1:]
    place = ArchivePlace(parse_address(address), S3Settings(endpoint_url=endpoint_url))
    async with opened(place) as archive:
        with Path(answers).open("w") as sink:
            await read(archive, Path(root), sink, float(grace), random.Random(f"reader:{seed}"))


if __name__ == "__main__":
    asyncio.run(main())
