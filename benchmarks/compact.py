"""What a compaction is good for: objects, and requests of a look-up, before and after.

`python -m benchmarks.compact 20000` prints them for so many chunks.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from click.testing import CliRunner, Result

from archiver.cli import main
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, look_up
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.reader import CountingReader
from index_format.marker import decode_marker
from tests.support.archives import ArchiveWriter, PartitionWriter, records

ROWS = 5
"""Records of a chunk."""


class Figures(NamedTuple):
    """Of one partition."""

    chunks: int
    objects: int
    requests: int
    """Of look-ups of a hundred records in all of the archive, one after another, nothing known before the first."""


def small_chunks(root: Path, count: int, record_format: str = "json") -> PartitionWriter:
    """An archive of one partition with so many chunks."""
    writer = ArchiveWriter(root).partition("orders", 0, record_format=record_format)
    for chunk in range(count):
        writer.commit(records(range(ROWS * chunk, ROWS * (chunk + 1))))
    return writer


def command(*arguments: object) -> Result:
    """`archiver`, with those arguments."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "250"})


def collect(root: Path) -> None:
    """Run garbage collection three times, two hours apart: twice what was replaced needs, once what lies about."""
    clock = LocalStore.clock
    for passed in (0, 7200, 14400):
        with (
            mock.patch.object(LocalStore, "clock", lambda self, passed=passed: clock(self) + passed),
            mock.patch("time.time", lambda passed=passed, real=time.time: real() + passed),
        ):
            collected = command("gc", "-a", root, "--grace", "1h", "--yes")
        assert collected.exit_code == 0, collected.output


def figures_of(root: Path, writer: PartitionWriter) -> Figures:
    offsets = [each.offset for each in writer.records]

    async def looked_up() -> int:
        reader = CountingReader(LocalReader(LocalAddress(str(root))))
        partition = await ArchiveReader(reader).open_partition("orders", 0)
        for offset in offsets[:: max(1, len(offsets) // 100)][:100]:
            assert isinstance(await look_up(partition, offset), FoundRecord)
        return reader.requests

    marker = LocalStore(root).get(writer.keys.marker)
    assert marker is not None
    objects = sum(path.is_file() for path in root.rglob("*"))
    return Figures(decode_marker(marker.body).num_chunks, objects, asyncio.run(looked_up()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "archive"
        partition_writer = small_chunks(home, int(sys.argv[1]))
        print(figures_of(home, partition_writer))
        print(command("compact", "-a", home, "--yes").output)
        collect(home)
        print(figures_of(home, partition_writer))
