"""Old archives, each quirk of their writers, into a current one: what is there afterwards is read with the replayer."""

import gzip
import json
import random
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver_main
from archiver.commit.recovery import ClaimList
from archiver.importing import ImportTarget, OldReader, import_partition, survey
from archiver.ingest.chunk_builder import BufferFolder
from blockgz.store.local import LocalStore
from index_format.blocks import ZlibCompressor
from index_format.keys import TopicFolder, TopicLayoutKeys
from index_format.objects import ArchiveInfo
from index_format.old_objects import OldFormat
from replayer.cli import main as replayer_main
from tests.support.ancestor_archives import (
    HARMLESS,
    OldChunk,
    OldWriter,
    Row,
    binary,
    binary_keys,
    delimited,
    drop_field,
    lines,
    member,
    rows_of,
    two_blocks,
    without_keys,
)
from tests.support.chain import check_history, read_chain
from tests.support.commands import succeeded
from tests.support.memory_store import MemoryStore


@pytest.fixture
def old(tmp_path: Path) -> OldWriter:
    return OldWriter(tmp_path / "old")


class Imports:
    """`archiver import` of one old archive into one new, and a look at the result."""

    def __init__(self, root: Path) -> None:
        self.source, self.target = root / "old", root / "new"

    def run(self, *options: str) -> Result:
        arguments = ["import", str(self.source), "-a", str(self.target), *options]
        return CliRunner().invoke(archiver_main, arguments, prog_name="archiver")

    def result(self, *options: str, code: int = 0) -> dict[str, Any]:
        done = self.run("--yes", "--json", "--single-writer", *options)
        assert done.exit_code == code, done.output + done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def replayer(self, *arguments: str) -> Result:
        return CliRunner().invoke(replayer_main, [*arguments, "-a", str(self.target)], prog_name="replayer")

    def rows(self, topic: str = "bar") -> dict[int, Row]:
        """What the new archive holds, after a verification of all of it."""
        succeeded(self.replayer("verify", "--records", "--json"))
        printed = succeeded(self.replayer("cat", topic, "--json"))
        found = [json.loads(line) for line in printed.stdout.splitlines()]
        assert all(line["timestamp"] == -1 for line in found)
        return {line["offset"]: (_bytes(line["key"]), _bytes(line["value"])) for line in found}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    return Imports(tmp_path)


def gaps_of(result: dict[str, Any]) -> list[tuple[int, int]]:
    """What was recorded as unverified while reading."""
    (partition,) = result["partitions"]
    return [(gap["from"], gap["to"]) for gap in partition["imported"]["unverified"]]


def notes_of(result: dict[str, Any]) -> str:
    return "\n".join(note for partition in result["partitions"] for note in partition["notes"])


@pytest.mark.parametrize("chunk", HARMLESS.values(), ids=HARMLESS.keys())
def test_quirks_that_lose_nothing(old: OldWriter, imports: Imports, chunk: OldChunk) -> None:
    old.write(chunk)
    result = imports.result()
    assert imports.rows() == without_keys(old.rows)
    assert result["records"] == len(old.rows)
    assert gaps_of(result) == []


def test_wider_partitions_prefixless_topics_with_digits(old: OldWriter, imports: Imports) -> None:
    old.topic, old.partition, old.partition_digits = "bar-00001-x-00002", 7, 8
    old.write(two_blocks())
    imports.result()
    assert imports.rows("bar-00001-x-00002:7") == without_keys(old.rows)


@pytest.mark.parametrize(
    ("encode", "options"),
    [
        (delimited(b"\t"), ["delimited"]),
        (delimited(b"<|>"), ["delimited", "--key-delimiter", "<|>"]),
        (delimited(b"\x1f"), ["delimited", "--key-delimiter", r"\x1f"]),
        (binary_keys, ["binary-keys"]),
    ],
    ids=["tab", "three characters", "an escape", "binary"],
)
@pytest.mark.parametrize("has_index", [True, False], ids=["indexed", "scanned"])
def test_keys(
    old: OldWriter, imports: Imports, encode: Callable[[Sequence[Row]], bytes], options: list[str], has_index: bool
) -> None:
    old.encode = encode
    old.write(two_blocks(has_index=has_index))
    imports.result("--old-format", *options)
    assert imports.rows() == old.rows


def test_lines_that_fit_another_format_better_are_reported(old: OldWriter, imports: Imports) -> None:
    old.encode = delimited(b"\t")
    old.write(two_blocks())
    done = imports.run("--yes", "--single-writer")
    assert done.exit_code == 0 and "every line holds '\\t'" in done.stderr
    again = imports.run("--yes", "--single-writer")
    assert again.exit_code == 0 and "every line" not in again.stderr, "nothing is read"


@pytest.mark.parametrize("encode", [binary, binary_keys])
def test_binary_holds_newlines_and_nulls(
    old: OldWriter, imports: Imports, encode: Callable[[Sequence[Row]], bytes]
) -> None:
    old.encode = encode
    old.write(OldChunk(0, [[(b"k\n", b"a\nb"), (b"k", None), (None, b"\n")]]))
    imports.result("--old-format", "binary" if encode is binary else "binary-keys")
    assert imports.rows() == (without_keys(old.rows) if encode is binary else old.rows)


def test_binary_null_as_minus_one(old: OldWriter, imports: Imports) -> None:
    old.write(OldChunk(5, [(struct.pack(">i", -1) + struct.pack(">i", 1) + b"x", 2)]))
    imports.result("--old-format", "binary")
    assert imports.rows() == {5: (None, None), 6: (None, b"x")}


def test_a_line_without_its_delimiter_is_a_value(old: OldWriter, imports: Imports) -> None:
    old.write(OldChunk(0, [(b"k|v\nno key\n|empty\n", 3)]))
    imports.result("--old-format", "delimited", "--key-delimiter", "|")
    assert imports.rows() == {0: (b"k", b"v"), 1: (None, b"no key"), 2: (b"", b"empty")}


@pytest.mark.parametrize(
    "has_marker", ["", "key\n", "  100 \n", "nonsense", "pfx/gone/bar-00000-000000000900.index.json"]
)
def test_markers_are_hints(old: OldWriter, imports: Imports, has_marker: str) -> None:
    old.write(two_blocks())
    old.write(two_blocks(100))
    if has_marker:
        old.mark(has_marker.replace("key", "pfx/2016-02-24/bar-00000-000000000000.index.json"))
    notes = notes_of(imports.result())
    assert imports.rows() == without_keys(old.rows)
    expected = {"": "has no marker", "key\n": "1 files come after", "nonsense": "names no chunk"}
    assert expected.get(has_marker, "") in notes


AMBIGUOUS = {"a newline in a value": (b"a\nb\nc\n", 2), "fewer lines than records": (b"a\n", 2)}


@pytest.mark.parametrize("block", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_an_ambiguous_block_is_a_gap_and_the_next_one_certain(
    old: OldWriter, imports: Imports, block: tuple[bytes, int]
) -> None:
    old.write(OldChunk(10, [rows_of(10, 20), block, rows_of(22, 30)]))
    result = imports.result(code=3)
    assert imports.rows() == without_keys(old.rows)
    assert gaps_of(result) == [(20, 22)]
    described = json.loads(imports.replayer("describe", "bar", "--json").stdout)
    assert described["partitions"][0]["gaps"] == [{"from": 20, "to": 22, "reason": "unverified"}]


def test_damage_costs_its_block(old: OldWriter, imports: Imports) -> None:
    def flip(data: bytearray) -> None:
        data[len(member(lines(rows_of(0, 50)))) + 30] ^= 0xFF

    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 60), rows_of(60, 99)], damage=flip))
    assert gaps_of(imports.result(code=3)) == [(50, 60)]
    assert imports.rows() == {offset: row for offset, row in without_keys(old.rows).items() if not 50 <= offset < 60}


def test_a_chunk_cut_short_costs_its_end(old: OldWriter, imports: Imports) -> None:
    def cut(data: bytearray) -> None:
        del data[-5:]

    old.write(two_blocks(damage=cut))
    old.write(two_blocks(100))
    result = imports.result(code=3)
    assert gaps_of(result) == [(50, 100)] and "its index reaches to byte" in notes_of(result)
    assert set(imports.rows()) == {*range(50), *range(100, 200)}


def test_without_an_index_damage_ends_the_count(old: OldWriter, imports: Imports) -> None:
    """What follows the damage has no offsets; the next file does."""

    def flip(data: bytearray) -> None:
        data[len(member(lines(rows_of(0, 50)))) + 30] ^= 0xFF

    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 60), rows_of(60, 100)], damage=flip, has_index=False))
    old.write(two_blocks(100))
    result = imports.result(code=3)
    assert gaps_of(result) == [(50, 100)] and "are unknown" in notes_of(result)
    assert set(imports.rows()) == {*range(50), *range(100, 200)}


def test_twins_of_midnight_count_once(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    old.write(two_blocks(date="2016-02-25"))
    result = imports.result()
    assert "is skipped" in notes_of(result)
    assert imports.rows() == without_keys(old.rows)


def test_of_twins_the_indexed_one_goes_first_and_the_longer_one_fills_up(old: OldWriter, imports: Imports) -> None:
    old.write(OldChunk(0, [[(None, b"scanned")] * 130], date="2016-02-25", has_index=False))
    old.write(OldChunk(0, [rows_of(0, 40)], date="2016-02-23"))
    old.write(two_blocks())
    imports.result()
    rows = imports.rows()
    assert {offset: rows[offset] for offset in range(100)} == {
        offset: (None, value) for offset, (_, value) in enumerate(rows_of(0, 100))
    }
    assert [rows[offset] for offset in range(100, 130)] == [(None, b"scanned")] * 30
    assert len(rows) == 130


def test_overlapping_files_count_once(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    old.write(OldChunk(30, [rows_of(30, 60), rows_of(60, 170)]))
    old.write(OldChunk(60, [rows_of(60, 80)]))
    result = imports.result()
    assert imports.rows() == without_keys(old.rows)
    assert "000000000060.gz is skipped" in notes_of(result) and "70 of its offsets are taken" in notes_of(result)


def test_offsets_that_no_file_holds_are_a_gap(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    old.write(two_blocks(300))
    old.write(two_blocks(300 + 100, has_index=False, damage=lambda data: data.clear()))
    result = imports.result(code=3)
    assert gaps_of(result) == [(100, 300)]
    assert imports.rows() == without_keys({k: v for k, v in old.rows.items() if k < 400})


def test_an_index_without_data_and_foreign_names_are_skipped(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    old.write(two_blocks(100)).unlink()
    for name in (
        "README",
        "2016-02-24/bar-0-1.gz",
        "2016-02-24/deep/bar-00000-000000000900.gz",
        "x/bar-00000-000000000900.gz",
    ):
        (old.root / name).parent.mkdir(exist_ok=True)
        (old.root / name).write_bytes(b"?")
    assert "an index without its data" in notes_of(imports.result())
    assert len(imports.rows()) == 100


def test_a_second_run_continues_where_the_first_one_ended(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    assert imports.result()["records"] == 100
    assert imports.result()["records"] == 0
    old.write(two_blocks(100))
    again = imports.result()
    assert again["records"] == 100 and again["partitions"][0]["imported"]["from_offset"] == 100
    assert imports.rows() == without_keys(old.rows)


def test_a_crash_after_any_commit_loses_and_doubles_nothing(old: OldWriter, tmp_path: Path) -> None:
    old.write(OldChunk(0, [rows_of(0, 10), (b"a\nb\nc\n", 2), rows_of(12, 20)]))
    old.write(OldChunk(30, [rows_of(30, 60)]))
    reader = OldReader(LocalStore(old.root), OldFormat(), 1 << 20)
    (partition,) = survey(reader)
    store, keys = MemoryStore(), TopicLayoutKeys(TopicFolder("bar"), 0)
    buffer = BufferFolder(tmp_path / "buffer")
    archive = ArchiveInfo(archive_id="archive-1", cluster_id=None, layout="topic")
    claims = ClaimList(store, archive)
    target = ImportTarget(store, archive, claims, "json", 100, 50, compressor=ZlibCompressor(1))

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    def run(on_records: Callable[[int], None]) -> None:
        import_partition(reader, partition, target, buffer, on_records, lambda *_: None)

    for _ in range(20):
        with suppress(KeyboardInterrupt):
            run(crash)
    run(lambda count: pytest.fail(f"{count} more records"))
    buffer.close()
    check_history(store.versions, keys.home)
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    assert chain is not None
    assert [tuple(line) for line in chain.lines] == [(offset, value) for offset, (_, value) in sorted(old.rows.items())]
    assert chain.gaps == [(10, 12), (20, 30)]


def test_another_old_archive_is_not_mixed_in(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    imports.result()
    for path in old.root.rglob("*.*"):
        path.unlink()
    old.write(OldChunk(0, [[(None, b"other")] * 200]))
    assert "not the one that was archived" in imports.result(code=1)["partitions"][0]["imported"]["error"]


@pytest.mark.slow
def test_small_chunks_and_the_seed_layout(old: OldWriter, imports: Imports) -> None:
    for start in range(0, 1000, 100):
        old.write(two_blocks(start))
    imports.result("--chunk-bytes", "100B", "--block-bytes", "100B", "--layout", "seed", "--record-format", "text")
    assert imports.rows() == without_keys(old.rows)
    assert len(list(imports.target.glob("1970-01-01/*.index.json"))) == 20


def test_a_dry_run_and_a_missing_yes_write_nothing(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks())
    dry = imports.run("--dry-run", "--json")
    assert dry.exit_code == 0 and json.loads(dry.stdout)["partitions"][0]["imported"] is None
    refused = imports.run()
    assert refused.exit_code == 2 and "0..100" in refused.output and "--yes" in refused.stderr
    assert not imports.target.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["gone", "-a", "new"], 10, "folder does not exist"),
        (["empty", "-a", "new"], 10, "date folders"),
        (["old", "-a", "old", "--yes"], 2, "the same"),
        (["old", "orders", "-a", "new"], 4, "orders is not in"),
        (["old", "-a", "new", "--key-delimiter", ""], 2, "at least one byte"),
        (["new", "-a", "other"], 2, "already"),
    ],
)
def test_errors(old: OldWriter, tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    old.write(two_blocks())
    (tmp_path / "empty").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/_archive.json").touch()
    places = [str(tmp_path / each) if each in ("gone", "empty", "old", "new", "other") else each for each in arguments]
    done = CliRunner().invoke(archiver_main, ["import", *places], prog_name="archiver")
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr


def test_nothing_at_the_source_changes(old: OldWriter, imports: Imports) -> None:
    old.write(two_blocks(edit=drop_field("byte_length")))
    before = {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()}
    imports.result()
    assert {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_random_damage_never_gives_a_wrong_record(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for number in range(10):
        imports = Imports(tmp_path / str(number))
        old = OldWriter(imports.source)
        paths = [old.write(two_blocks(start, has_index=rng.random() < 0.7)) for start in (0, 100, 200)]
        victim = rng.choice([each for path in paths for each in path.parent.iterdir()])
        body = bytearray(victim.read_bytes())
        position = rng.randrange(len(body))
        match rng.randrange(3):
            case 0:
                body[position] ^= 1 << rng.randrange(8)
            case 1:
                del body[position:]
            case _:
                body[position:position] = rng.randbytes(40)
        victim.write_bytes(body)
        done = imports.run("--yes", "--json", "--single-writer")
        assert done.exit_code in (0, 3), done.output
        found = imports.rows()
        expected = without_keys(old.rows)
        is_index = victim.name.endswith("json")
        if not is_index:  # a flipped digit in an index can name another offset, and nothing contradicts it
            assert {offset: expected[offset] for offset in found} == found
            assert len(found) >= 100


def test_plain_gzip_of_other_tools(old: OldWriter, imports: Imports) -> None:
    path = old.write(two_blocks(has_index=False))
    path.write_bytes(gzip.compress(lines(rows_of(0, 60))) + gzip.compress(lines(rows_of(60, 100))))
    imports.result()
    assert imports.rows() == without_keys(old.rows)
