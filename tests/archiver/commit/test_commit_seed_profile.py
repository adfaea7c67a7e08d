"""Profile `seed`, from records to a folder: what readers of the ancestor find there."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.commit import operations as op
from archiver.commit.commit import FinishedChunk, commit_chunk
from archiver.commit.driver import Driver
from archiver.commit.objects import Held
from archiver.commit.recovery import take_over
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.chunk_builder import ChunkBuilder, ChunkSettings, RollLimits
from blockgz.errors import AccessDenied, StoreError, StoreUnavailable
from blockgz.store.local import LocalStore
from blockgz.store.writer import StoredObject
from index_format.blocks import ZlibCompressor
from index_format.errors import BlockgzError
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.golden.test_ancestor import GOLDEN, same_zlib
from tests.index_format.builders import record
from tests.support.chain import read_chain
from tests.support.chunks import POLICY, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore, content_of
from tests.support.simulator import Actor, Fate

MARKER = GOLDEN["marker"]
PREFIX = MARKER["prefix"]
LIMITS = RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
IDENTITY = identity_of("seed", topic=MARKER["topic"], partition=MARKER["partition"], key_prefix=PREFIX)
STEM = "2016-02-24/bar-00000-000000000000"
TEXT_MARKER = "last_chunk_index.bar-00000.txt"
NEXT_STEM = "2016-02-24/bar-00000-000000000100"


def golden_records(start: int, end: int) -> list[Record]:
    return [record(n, (GOLDEN["value"] % n).encode(), timestamp=MARKER["first_timestamp"]) for n in range(start, end)]


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[BufferFolder]:
    folder = BufferFolder(tmp_path / "buffer")
    yield folder
    folder.close()


def built(buffer: BufferFolder, start: int = 0, end: int = 100) -> FinishedChunk:
    settings = ChunkSettings(record_format("text"), ZlibCompressor(6), 64 * 1024**2, LIMITS)
    chunk = ChunkBuilder(settings, buffer.new_file(), start)
    chunk.add(batch_from_records(golden_records(start, end)), 0, 0.0)
    return chunk.finish(end)


def run(protocol: op.Protocol[Any], store: Any) -> Any:
    return Driver(store, MemoryLog([], high=1000), lambda attempt, cause: None, lambda: True).run(protocol)


def claim(store: Any) -> Held:
    held: Held = run(take_over(IDENTITY, "me", POLICY), store).held
    return held


def files(root: Path) -> dict[str, bytes]:
    """Everything in the archive, dot files left out."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def archive(tmp_path: Path, buffer: BufferFolder) -> dict[str, bytes]:
    """The golden topic, committed into a folder."""
    store = LocalStore(tmp_path / "archive")
    run(commit_chunk(IDENTITY, claim(store), built(buffer)), store)
    return files(tmp_path / "archive")


def test_the_objects_of_one_chunk(archive: dict[str, bytes]) -> None:
    assert set(archive) == {
        f"{STEM}.gz",
        f"{STEM}.index.json",
        f"{STEM}.meta.json",
        TEXT_MARKER,
        "_blockgz/topic=bar/partition=00000/last_chunk_index.json",
    }


@same_zlib
def test_the_ancestors_index_text(archive: dict[str, bytes]) -> None:
    assert archive[f"{STEM}.index.json"].decode() == GOLDEN["index_of_the_first"]


@same_zlib
def test_the_ancestors_data_bytes(archive: dict[str, bytes]) -> None:
    raw = "".join(GOLDEN["value"] % counter + "\n" for counter in range(100)).encode()
    data = archive[f"{STEM}.gz"]
    assert len(data) == GOLDEN["chunks"][0]["blocks"][0][2]
    assert data[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert data == ZlibCompressor(6).compress(raw) and gzip.decompress(data) == raw


def test_the_ancestors_marker(archive: dict[str, bytes]) -> None:
    assert MARKER["key"] == PREFIX + TEXT_MARKER
    assert archive[TEXT_MARKER].decode() == MARKER["body"]


def test_our_own_chain_holds_the_same(archive: dict[str, bytes]) -> None:
    chain = read_chain(archive, IDENTITY.keys.home, IDENTITY.keys.chunks)
    assert chain is not None
    assert [tuple(line) for line in chain.lines] == [(row.offset, row.value) for row in golden_records(0, 100)]


@pytest.mark.parametrize("orphan", [f"{STEM}.gz", f"{STEM}.index.json"])
def test_an_orphan_of_either_moves_data_and_sidecar_together(buffer: BufferFolder, orphan: str) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(orphan, b"of a dead writer", "dead")
    run(commit_chunk(IDENTITY, held, built(buffer)), store)
    stored = store.bodies()
    (folder,) = {key.partition("/")[0] for key in stored if key.startswith("2016-02-24~")}
    assert folder.startswith("2016-02-24~e1-") and len(folder) == len("2016-02-24~e1-ab12cd34")
    moved = f"{folder}/bar-00000-000000000000"
    assert stored[orphan] == b"of a dead writer"
    assert gzip.decompress(stored[f"{moved}.gz"]).count(b"\n") == 100
    assert json.loads(stored[f"{moved}.index.json"])["chunks"][0]["num_records"] == 100
    assert stored[TEXT_MARKER].decode() == f"{PREFIX}{moved}.index.json"
    assert read_chain(stored, IDENTITY.keys.home, IDENTITY.keys.chunks) is not None


def test_an_orphan_of_our_own_index_moves_that_alone(buffer: BufferFolder) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(f"{STEM}.meta.json", b"of a dead writer", "dead")
    run(commit_chunk(IDENTITY, held, built(buffer)), store)
    assert {f"{STEM}.gz", f"{STEM}.index.json"} < set(store.objects)
    assert store.bodies()[TEXT_MARKER].decode() == MARKER["body"]
    assert read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks) is not None


def test_the_courtesy_marker_follows_each_commit(buffer: BufferFolder) -> None:
    store = MemoryStore(PREFIX)
    held = run(commit_chunk(IDENTITY, claim(store), built(buffer)), store)
    run(commit_chunk(IDENTITY, held, built(buffer, 100, 200)), store)
    assert [body.decode() for body in store.versions[TEXT_MARKER]] == [
        MARKER["body"],
        f"{PREFIX}{NEXT_STEM}.index.json",
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (f"{PREFIX}2016-02-25/bar-00000-000000000500.index.json", None),
        (f"{PREFIX}2016-02-25/bar-00000-000000000500.index.json\n", None),
        (MARKER["body"], None),
        ("", MARKER["body"]),
        ("nonsense", MARKER["body"]),
    ],
    ids=["newer", "newer with a newline", "the same", "empty", "nonsense"],
)
def test_the_courtesy_marker_only_moves_forward(buffer: BufferFolder, found: str, expected: str | None) -> None:
    store = MemoryStore(PREFIX)
    held = claim(store)
    store.put_if_absent(TEXT_MARKER, found.encode(), "before")
    run(commit_chunk(IDENTITY, held, built(buffer)), store)
    assert store.bodies()[TEXT_MARKER].decode() == (found if expected is None else expected)


def test_a_courtesy_that_fails_leaves_the_commit_standing(buffer: BufferFolder) -> None:
    for fate in (Fate.NOT_APPLIED, Fate.ANSWER_LOST):
        store = MemoryStore(PREFIX)
        held = claim(store)
        actor = Actor("a", commit_chunk(IDENTITY, held, built(buffer)), store, MemoryLog([]), random.Random(1))
        while getattr(actor.operation, "key", None) != TEXT_MARKER:
            actor.step()
        actor.step(fate if isinstance(actor.operation, op.CompareAndSwap) else Fate.NOT_APPLIED)
        actor.run_to_end()
        assert actor.failure is None and actor.result.marker.next_offset == 100
        run(commit_chunk(IDENTITY, actor.result, built(buffer, 100, 200)), store)
        assert store.bodies()[TEXT_MARKER].decode() == f"{PREFIX}{NEXT_STEM}.index.json"


class RefusesTheCourtesy(MemoryStore):
    """The ancestor's marker may not be touched."""

    error: BlockgzError

    def get(self, key: str) -> StoredObject | None:
        if key == TEXT_MARKER:
            raise self.error
        return super().get(key)


@pytest.mark.parametrize("error", [AccessDenied("denied"), StoreError("a folder is in the way"), StoreUnavailable("?")])
def test_a_courtesy_that_is_refused_for_good_fails_no_commit(
    buffer: BufferFolder, caplog: pytest.LogCaptureFixture, error: BlockgzError
) -> None:
    store = RefusesTheCourtesy(PREFIX)
    store.error = error
    held = run(commit_chunk(IDENTITY, claim(store), built(buffer)), store)
    assert held.marker.next_offset == 100
    (logged,) = caplog.records
    assert logged.levelname == "WARNING" and error.what in str(logged.msg)


def test_a_record_without_a_timestamp_goes_into_the_first_of_january_1970(buffer: BufferFolder) -> None:
    settings = ChunkSettings(record_format("text"), ZlibCompressor(6), 100, LIMITS)
    chunk = ChunkBuilder(settings, buffer.new_file(), 0)
    chunk.add(batch_from_records([record(3, b"x", timestamp=-1, timestamp_type=-1)]), None, 0.0)
    store = MemoryStore(PREFIX)
    finished = chunk.finish(4)
    assert content_of(finished.body)
    run(commit_chunk(IDENTITY, claim(store), finished), store)
    assert "1970-01-01/bar-00000-000000000003.gz" in store.objects
