"""`archiver compact`, `prune`, `rewrap` and `drop` on a folder: the plan, what is done, and what is refused."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from archiver.cli import main
from archiver.cli import main as archiver_main
from archiver.commit.archive import settle_same_topic
from archiver.commit.commit import commit_chunk, read_marker
from archiver.commit.operations import Driver, UnreadLog
from archiver.errors import DropRefused
from archiver.maintain.drop import PlannedDrop
from archiver.maintain.throttle import Throttle
from benchmarks.compact import ROWS, collect, figures_of, small_chunks
from benchmarks.compact import command as run
from blockgz.errors import AccessDenied
from blockgz.store.address import S3Settings
from blockgz.store.local import LocalStore
from blockgz.store.opening import open_existing_store
from blockgz.store.writer import FileBody
from index_format import marker as markers
from index_format.keys import ENCRYPTED_SUFFIX, TopicFolder, configs_home, data_suffix, dated_key, groups_home
from index_format.marker import MAX_RETIRED, Maintenance, Marker, Retired, decode_marker, encode
from index_format.objects import parse_inventory
from replayer.cli import main as replayer
from replayer.cli import main as replayer_main
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.chunks import finished_chunk, identity_of
from tests.support.commands import exited, succeeded
from tests.support.encryption import key_line, key_of
from tests.support.memory_store import content_of
from tests.support.mock_cluster import MockCluster

CHUNKS = 300


def archived(root: Path) -> list[Any]:
    """What the other program reads of it."""
    result = succeeded(CliRunner().invoke(replayer_main, ["cat", "orders:0", "-a", str(root), "--json"]))
    return [json.loads(line) for line in result.stdout.splitlines()]


def is_sound(root: Path) -> None:
    succeeded(CliRunner().invoke(replayer_main, ["verify", "--records", "-a", str(root)]))


def marker_of(root: Path, writer: PartitionWriter) -> Marker:
    return decode_marker((root / writer.keys.marker).read_bytes())


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_hundreds_of_small_chunks_become_a_few(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, CHUNKS)
    before, found = figures_of(root, writer), archived(root)
    asked = run("compact", "-a", root)
    assert asked.exit_code == 2 and "add --yes" in asked.output
    result = succeeded(run("compact", "-a", root, "--yes"))
    assert "compacted 1 of 1 partitions" in result.stdout
    assert archived(root) == found
    is_sound(root)
    assert figures_of(root, writer).objects > before.objects, "readers of the old marker find everything"
    collect(root)
    after = figures_of(root, writer)
    print(before, after)
    tail = len(marker_of(root, writer).tail)
    assert (before.chunks, after.chunks) == (CHUNKS, 1 + tail)
    assert after.objects < before.objects // 3
    assert after.requests < before.requests * 2 // 3
    assert archived(root) == found
    is_sound(root)


@pytest.mark.slow
def test_what_is_read_and_stored_is_within_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 150)
    taken: list[int] = []
    monkeypatch.setattr(Throttle, "take", lambda _, num_bytes: taken.append(num_bytes))
    result = succeeded(run("compact", "-a", root, "--rate", "1KiB", "--yes", "--json"))
    assert sum(taken) > 2 * json.loads(result.stdout)["moved_bytes"] > 0
    is_sound(root)
    refused = run("compact", "-a", root, "--rate", "0")
    assert refused.exit_code == 2 and "--rate 0 moves nothing" in refused.output


@pytest.mark.slow
def test_an_archiver_goes_on_after_a_compaction(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, 150)
    identity = identity_of(partition=0)
    driver = Driver(
        open_existing_store(str(root), S3Settings()), UnreadLog(), lambda attempt, cause: None, lambda: True
    )
    held = driver.run(read_marker(identity.keys.marker))
    assert run("compact", "-a", root, "--yes").exit_code == 0
    assert held is not None
    more = records(range(150 * ROWS, 150 * ROWS + 6))
    for row in more:  # what it holds is older than the compaction
        chunk = finished_chunk("json", (row,), row.offset, row.offset + 1)
        path = tmp_path / f"chunk-{row.offset}"
        path.write_bytes(content_of(chunk.body))
        body = FileBody(path, chunk.body.size, chunk.body.sha256)
        held = driver.run(commit_chunk(identity, held, chunk._replace(body=body)))
    assert [each["offset"] for each in archived(root)] == [each.offset for each in [*writer.records, *more]]
    is_sound(root)


def test_a_dry_run_and_a_partition_with_nothing_to_merge_write_nothing(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = small_chunks(root, 140)
    before = contents(root)
    told = json.loads(succeeded(run("compact", "orders", "-a", root, "--dry-run", "--json")).stdout)
    (partition,) = told["partitions"]
    tail = len(writer.marker.tail)
    assert (told["dry_run"], partition["chunks"], partition["chunks_after"]) == (True, 140, 1 + tail)
    assert (partition["catalogs"], partition["catalogs_after"], partition["compacted"]) == (2, 1, False)
    large = run("compact", "orders", "-a", root, "--small-bytes", "1", "--yes")
    assert (large.exit_code, large.stdout.splitlines()) == (0, ["nothing to compact"])
    assert contents(root) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "suffix"),
    [
        (["--codec", "zstd", "--zstd-level", "9"], data_suffix("json", "zstd")),
        (["--record-format", "arrow", "--gzip-level", "6"], data_suffix("arrow", "gzip")),
        (["--block-bytes", "1KiB"], data_suffix("json", "gzip")),
    ],
)
def test_chunks_are_converted(options: list[str], suffix: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 80)
    found = archived(root)
    succeeded(run("compact", "-a", root, *options, "--yes"))
    assert any(path.name.endswith(suffix) for path in root.rglob("*~r*"))
    assert archived(root) == found
    is_sound(root)
    again = run("compact", "-a", root, *options, "--yes")
    assert again.stdout.startswith("nothing to compact")


def test_what_an_archiver_is_told_by_variables_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 70)
    monkeypatch.setenv("BLOCKGZ_CODEC", "zstd")
    monkeypatch.setenv("BLOCKGZ_ZSTD_LEVEL", "9")
    monkeypatch.setenv("BLOCKGZ_BLOCK_BYTES", "1KiB")
    monkeypatch.setenv("BLOCKGZ_RECORD_FORMAT", "arrow")
    succeeded(run("compact", "-a", root, "--yes"))
    assert not list(root.rglob("*.zst")) and not list(root.rglob("*.arrows*"))


@pytest.mark.slow
def test_text_stays_text(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = ArchiveWriter(root).partition("lines", 0, record_format="text")
    for chunk in range(70):
        values = [each._replace(key=None, value=b"a line", headers=()) for each in records(range(chunk, chunk + 1))]
        writer.commit(values)
    small_chunks(tmp_path / "other", 1)
    refused = exited(run("compact", "-a", root, "--record-format", "json", "--yes"), 3)
    assert "cannot be converted to json" in refused.stderr
    succeeded(run("compact", "-a", root, "--codec", "zstd", "--yes"))
    is_sound(root)


@pytest.mark.slow
def test_who_cannot_be_compacted_is_reported_and_the_rest_is_done(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive = ArchiveWriter(root)
    writers = [archive.partition("orders", number) for number in range(3)]
    for writer in writers:
        for chunk in range(70):
            writer.commit(records(range(ROWS * chunk, ROWS * (chunk + 1))))
    full = writers[1]
    retired = tuple(Retired(references=full.marker.catalogs[0], token=f"t{number}") for number in range(MAX_RETIRED))
    marker = replace(full.marker, version=2, maintenance=Maintenance(retired=retired))
    archive.put(full.keys.marker, encode(marker))
    result = exited(run("compact", "-a", root, "--yes", "--json"), 3)
    told = json.loads(result.stdout)
    assert [each["compacted"] for each in told["partitions"]] == [True, False, True]
    (problem,) = told["problems"]
    assert problem["where"] == "orders:1"
    assert "archiver gc" in result.stderr
    assert marker_of(root, full) == marker


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--zstd-level", "9"], "a level alone converts nothing"),
        (["--codec", "zstd", "--gzip-level", "9"], "give --zstd-level"),
        (["--codec", "gzip", "--zstd-level", "9"], "give --gzip-level"),
        (["--block-bytes", "0"], "--block-bytes must be more than 0"),
        (["--chunk-bytes", "0"], "--chunk-bytes must be more than 0"),
        (["--buffer-bytes", "0"], "--buffer-bytes must be more than 0"),
        (["unknown"], "is not in the archive"),
        (["--codec", "lz4"], "lz4"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 1)
    result = run("compact", *arguments, "-a", root, "--yes")
    assert result.exit_code in (2, 4)
    assert said in result.output


def test_layout_seed_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    ArchiveWriter(root, layout="seed").partition("lines", 0, record_format="text").commit(
        [each._replace(key=None, value=b"a line", headers=()) for each in records(range(3))]
    )
    result = exited(run("compact", "-a", root, "--yes"), 2)
    assert "layout seed" in result.output


DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


@pytest.fixture
def fortnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of 15 days with a chunk every two hours, in catalogs but for the newest."""
    monkeypatch.setattr(LocalStore, "clock", lambda _: NOW_MS / 1000)
    root = tmp_path / "archive"
    partition = ArchiveWriter(root).partition("orders", 0)
    for number in range(15 * 12 + 1):
        stamps = [NOW_MS - 15 * DAY_MS + (12 * number + n) * DAY_MS // 144 for n in range(ROWS)]
        partition.commit(records(range(ROWS * number, ROWS * (number + 1)), timestamps=stamps))
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "chunks"), [((), 11), (("--chunk-span", "12h"), 22), (("--chunk-span", "none"), 1)]
)
def test_merged_chunks_span_a_day_unless_another_time_is_given(
    options: tuple[str, ...], chunks: int, fortnight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKGZ_CHUNK_SPAN", "1m")  # of the archiver
    found = archived(fortnight)
    result = run("compact", *options, "-a", fortnight, "--yes")
    assert result.exit_code == 0, result.output
    marker = marker_of_prune(fortnight)
    assert marker.num_chunks - len(marker.tail) == chunks
    assert archived(fortnight) == found
    is_sound(fortnight)
    assert run("compact", *options, "-a", fortnight, "--yes").output == "nothing to compact\n"


def run_prune(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["prune", *arguments], env={"COLUMNS": "250"})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chunk a day for ten days, in catalogs of two; two chunks are in the tail."""
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    monkeypatch.setattr(LocalStore, "clock", lambda _: NOW_MS / 1000)
    root = tmp_path / "archive"
    writer = ArchiveWriter(root)
    partition = writer.partition("orders", 0)
    for day in range(10):
        stamps = [NOW_MS - (10 - day) * DAY_MS + n for n in range(3)]
        partition.commit(records(range(3 * day, 3 * day + 3), timestamps=stamps))
    writer.partition("quiet", 0)
    return root


def marker_of_prune(root: Path, topic: str = "orders") -> Any:
    path = root / f"topic={TopicFolder(topic)}/partition=00000/last_chunk_index.json"
    return decode_marker(path.read_bytes())


def test_the_plan_says_what_goes_and_what_stays(root: Path) -> None:
    before = marker_of_prune(root)
    result = succeeded(run_prune("--keep", "5d", "-a", str(root), "--dry-run"))
    assert "orders" in result.output
    assert "1 partitions stay as they are" in result.output
    assert marker_of_prune(root) == before
    told = json.loads(run_prune("--keep", "5d", "-a", str(root), "--dry-run", "--json").output)
    (going,) = told["partitions"]
    assert (going["pruned_before"], going["records"], going["chunks"], going["pruned"]) == (15, 15, 5, False)
    assert (going["left_records"], going["left_chunks"], told["untouched"], told["dry_run"]) == (15, 5, 1, True)
    assert (going["claimed"], told["older_records"]) == (False, [])


def test_it_prunes_what_it_planned(root: Path) -> None:
    result = succeeded(run_prune("--keep", "5d", "-a", str(root), "--yes"))
    assert "pruned 1 of 1 partitions" in result.output
    marker = marker_of_prune(root)
    assert (marker.version, marker.pruned_before, marker.start_offset, marker.num_records) == (2, 15, 0, 15)
    again = run_prune("--keep", "5d", "-a", str(root), "--yes")
    assert (again.exit_code, again.output.splitlines()[0]) == (0, "nothing to prune")
    assert marker_of_prune(root, "quiet").version == 1
    status = CliRunner().invoke(main, ["status", "-a", str(root), "--json"])
    fields = ("pruned_before", "retired", "retired_chunks")
    told = [tuple(each[field] for field in fields) for each in json.loads(status.output)["partitions"]]
    assert told == [(15, 1, 6), (0, 0, 0)]


def test_a_size_says_what_stays_too(root: Path) -> None:
    total = marker_of_prune(root).num_bytes
    told = json.loads(run_prune("--keep-bytes", str(total - 1), "-a", str(root), "--dry-run", "--json").output)
    assert told["partitions"] == []
    told = json.loads(run_prune("orders", "--keep-bytes", "1", "-a", str(root), "--yes", "--json").output)
    (gone,) = told["partitions"]
    assert (gone["pruned_before"], gone["left_chunks"], gone["pruned"], told["untouched"]) == (29, 1, True, 0)
    assert gone["claimed"]


def test_it_asks_first(root: Path) -> None:
    before = marker_of_prune(root)
    result = CliRunner().invoke(main, ["prune", "--keep", "5d", "-a", str(root)], input="n\n")
    assert result.exit_code != 0
    assert marker_of_prune(root) == before


@pytest.mark.slow
@pytest.mark.parametrize("span", ["1d", "none"])
def test_after_a_compaction_nothing_older_than_what_is_kept_stays(span: str, fortnight: Path) -> None:
    assert run("compact", "--chunk-span", span, "-a", fortnight, "--yes").exit_code == 0
    result = run_prune("--keep", "5d", "-a", str(fortnight), "--yes")
    assert result.exit_code == 0, result.output
    assert "pruned 1 of 1 partitions" in result.output
    left = [each["timestamp"] for each in archived(fortnight)]
    assert len(left) > 4 * 12 * ROWS and min(left) >= NOW_MS - 5 * DAY_MS - DAY_MS // 12
    is_sound(fortnight)
    again = run_prune("--keep", "5d", "-a", str(fortnight), "--yes")
    assert again.exit_code == 0, again.output
    older = sum(each < NOW_MS - 5 * DAY_MS for each in left)
    assert ("nothing to prune" in again.stdout) is (older == 0)
    collect(fortnight)
    is_sound(fortnight)
    assert [each["timestamp"] for each in archived(fortnight)] == left


def test_a_silent_topic_is_pruned_to_its_end_and_the_plan_says_how(root: Path) -> None:
    planned = run_prune("orders", "--keep", "1h", "-a", str(root), "--dry-run")
    assert "note: the newest chunks of orders:0 are in no catalog yet: prune claims the partition" in planned.stderr
    assert marker_of_prune(root).version == 1
    result = run_prune("orders", "--keep", "1h", "-a", str(root), "--yes")
    assert result.exit_code == 0, result.output
    marker = marker_of_prune(root)
    assert (marker.catalogs, marker.tail, marker.pruned_before, marker.next_offset) == ((), (), 30, 30)
    is_sound(root)
    collect(root)
    is_sound(root)
    assert archived(root) == []
    again = run_prune("orders", "--keep", "1h", "-a", str(root), "--yes")
    assert (again.exit_code, again.stdout, again.stderr) == (0, "nothing to prune\n", "")


@pytest.mark.parametrize(
    ("stamps", "told", "why"),
    [
        ([DAY_MS, -9 * DAY_MS, -8 * DAY_MS], (2, 2, 0), "behind a younger record"),
        ([-1 - NOW_MS, -9 * DAY_MS, -8 * DAY_MS], (2, 2, 0), "behind records without a timestamp, which have no age"),
        ([-9 * DAY_MS, DAY_MS, -8 * DAY_MS], (1, 1, 1), "behind a younger record"),
    ],
)
def test_older_records_that_stay_are_counted_with_the_reason(
    stamps: list[int], told: tuple[int, int, int], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "clock", lambda _: NOW_MS / 1000)
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    for offset, stamp in enumerate(stamps):
        partition.commit(records([offset], timestamps=[NOW_MS + stamp]))
    result = run_prune("--keep", "5d", "-a", str(tmp_path), "--yes")
    assert result.exit_code == 0, result.output
    assert "nothing to prune" not in result.output
    assert f"note: older records stay {why}: orders:0 ({told[0]} from offset {told[2]} on" in result.stderr
    document = json.loads(run_prune("--keep", "5d", "-a", str(tmp_path), "--json", "--dry-run").stdout)
    (older,) = document["older_records"]
    assert (older["at_least"], older["at_most"], older["from_offset"], older["why"]) == (*told, why)
    assert (older["topic"], older["partition"], document["partitions"]) == ("orders", 0, [])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--keep", "90"), "'90' has no unit; write 90d for days"),
        (("--keep", "0d"), "'0d' would keep nothing"),
        (("--keep-bytes", "0"), "'0' would keep nothing"),
    ],
)
def test_what_would_keep_nothing_or_means_anything_is_refused(arguments: tuple[str, ...], why: str, root: Path) -> None:
    before = marker_of_prune(root)
    result = exited(run_prune(*arguments, "-a", str(root), "--yes"), 2)
    assert why in result.output
    assert marker_of_prune(root) == before


@pytest.mark.parametrize("arguments", [(), ("--keep", "5d", "--keep-bytes", "1MB")])
def test_what_stays_must_be_clear(arguments: tuple[str, ...], root: Path) -> None:
    result = CliRunner().invoke(main, ["prune", *arguments, "-a", str(root)])
    assert result.exception is not None
    assert "exactly one of" in str(getattr(result.exception, "why", result.output))


@pytest.mark.parametrize("command", [("prune", "--keep", "5d"), ("compact",), ("gc",), ("status",)])
def test_a_topic_that_is_not_there_is_named(command: tuple[str, ...], root: Path) -> None:
    result = exited(CliRunner().invoke(main, [*command, "ordres", "-a", str(root)]), 4)
    assert "'ordres' is not in the archive" in result.stderr
    result = exited(CliRunner().invoke(main, [*command, "eu-*", "~us-.*", "-a", str(root)]), 4)
    assert "no archived topic matches 'eu-*' or '~us-.*'" in result.stderr


NAME = "BLOCKGZ_TEST_KEYS"


class Vault:
    """An archive of one partition, encrypted with the first key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "archive"
        self.world: EraseWorld = encrypted_world(random.Random(1), 80, keys_in(folder, 1))
        for key, body in self.world.store.bodies().items():
            (self.root / key).parent.mkdir(parents=True, exist_ok=True)
            (self.root / key).write_bytes(body)
        settle_same_topic(LocalStore(self.root), "topic", self.world.keys.folder, self.world.identity.topic_id)

    def archiver(self, *words: str) -> Result:
        environ = {NAME: key_line(1) + key_line(2), "COLUMNS": "200"}
        return CliRunner().invoke(archiver_main, [*words, "-a", str(self.root)], env=environ)

    def keys(self, *numbers: int) -> tuple[str, str]:
        return "--keys", keys_in(self.folder, *numbers)

    def offsets(self, *numbers: int) -> list[int]:
        """What the other program reads with these keys, and finds sound."""
        keys = self.keys(*numbers)
        succeeded(CliRunner().invoke(replayer_main, ["verify", "--records", "-a", str(self.root), *keys]))
        words = ["cat", "orders:3", "-a", str(self.root), *keys, "-f", "%o\n"]
        return [int(offset) for offset in CliRunner().invoke(replayer_main, words).stdout.split()]

    def contents(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Vault(tmp_path)


@pytest.mark.slow
def test_keys_are_rotated(vault: Vault) -> None:
    before, data = vault.contents(), {key for key in vault.contents() if key.endswith(ENCRYPTED_SUFFIX)}
    expected = sorted(vault.world.held_offsets())
    shown = vault.archiver("rewrap", "--keys", f"env:{NAME}", "--dry-run", "--json")
    told: Any = json.loads(shown.stdout)
    chunks = vault.world.marker.num_chunks
    assert (told["key"], told["chunks"], told["partitions"][0]["old_keys"]) == (key_of(2).id, chunks, [key_of(1).id])
    assert vault.archiver("rewrap", "--keys", f"env:{NAME}").exit_code == 2, "it asks first"
    assert vault.contents() == before
    done = succeeded(vault.archiver("rewrap", "--keys", f"env:{NAME}", "--yes"))
    assert "rewrapped 1 of 1 partitions" in done.stdout
    assert {key for key in vault.contents() if key.endswith(ENCRYPTED_SUFFIX)} == data
    assert vault.offsets(2) == expected
    newest = json.loads(vault.archiver("status", "--json").stdout)["partitions"][0]["newest_ms"]
    assert newest == vault.world.marker.newest_timestamp, "its chunk is in a catalog now"
    assert "nothing to rewrap" in vault.archiver("rewrap", *vault.keys(2)).stdout


@pytest.mark.slow
def test_missing_keys_are_named_and_nothing_is_changed(vault: Vault) -> None:
    before = vault.contents()
    assert "no keys were given" in vault.archiver("rewrap", "--yes").stderr
    for words, code in (
        (("rewrap", *vault.keys(2)), 12),
        (("compact",), 3),
        (("compact", *vault.keys(2)), 3),
        (("erase", "orders", "--key", "k1"), 3),
        (("erase", "orders:3", "--offsets", "0..9", *vault.keys(2)), 3),
    ):
        refused = vault.archiver(*words, "--yes")
        assert refused.exit_code == code, refused.output
        assert "key" in refused.stderr and "Traceback" not in refused.output
        assert not refused.stdout.startswith(("nothing to", "no record to")), "that is not known"
        assert vault.contents() == before


@pytest.mark.slow
def test_chunks_are_merged_and_records_are_erased(vault: Vault) -> None:
    expected = vault.world.held_offsets()
    done = succeeded(vault.archiver("compact", *vault.keys(1), "--yes", "--json"))
    assert json.loads(done.stdout)["encrypted_chunks"] == 0
    assert json.loads(done.stdout)["chunks_after"] < json.loads(done.stdout)["chunks"]
    assert vault.offsets(1) == sorted(expected)
    succeeded(vault.archiver("erase", "orders", "--key", "k1", *vault.keys(1), "--yes"))
    gone = {each.offset for each in vault.world.log.records if each.key == b"k1"} & expected
    assert gone and vault.offsets(1) == sorted(expected - gone)
    converted = vault.archiver(
        "compact", *vault.keys(1), "--encrypt", keys_in(vault.folder, 2), "--codec", "zstd", "--yes"
    )
    assert converted.exit_code == 0, converted.output
    assert vault.offsets(1, 2) == sorted(expected - gone)
    assert all(key.endswith(ENCRYPTED_SUFFIX) for key in vault.contents() if ".gz" in key or ".zst" in key)


HOURS_AGO = 7200


def run_drop(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drop", *arguments])


def keys(root_drop: Path) -> set[str]:
    return {listed.key for listed in LocalStore(root_drop).list("")}


def claimed(root_drop: Path) -> set[str]:
    inventory = parse_inventory((root_drop / "_inventory.json").read_bytes(), "it")
    return {str(each.folder) for each in inventory.incarnations}


@pytest.fixture
def root_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two incarnations of `orders`, and topics whose names begin so, all written two hours ago."""
    monkeypatch.setattr(LocalStore, "clock", lambda _: time.time() + HOURS_AGO)
    writer = ArchiveWriter(tmp_path)
    for topic, incarnation in (("orders", 1), ("orders", 2), ("orders-eu", 1), ("order", 1)):
        writer.partition(topic, 0, incarnation=incarnation).commit(records(range(5)))
        folder = TopicFolder(topic, incarnation)
        writer.put(dated_key(groups_home("topic", folder), 5), b"table")
        writer.put(dated_key(configs_home("topic", folder), 5), b"config")
    return tmp_path


def test_everything_of_the_topic_goes_and_readers_do_not_know_it(root_drop: Path) -> None:
    before = keys(root_drop)
    assert run_drop("orders", "-a", str(root_drop), "--dry-run").exit_code == 0
    assert keys(root_drop) == before
    told = json.loads(succeeded(run_drop("orders", "-a", str(root_drop), "--yes", "--json")).stdout)
    gone = {key for key in before if key.startswith(("topic=orders/", "topic=orders~"))}
    assert (told["dropped"], told["objects"]) == (True, len(gone))
    assert [each["topic"] for each in told["incarnations"]] == ["orders~2", "orders"]
    assert keys(root_drop) == before - gone
    assert claimed(root_drop) == {"orders-eu", "order"}
    for command in (("describe", "orders"), ("get", "orders:0:1")):
        assert CliRunner().invoke(replayer, [*command, "-a", str(root_drop)]).exit_code == 4
    assert CliRunner().invoke(replayer, ["verify", "-a", str(root_drop)]).exit_code == 0
    again = run_drop("orders", "-a", str(root_drop), "--yes")
    assert (again.exit_code, "is not in the archive" in again.stderr) == (4, True)


def test_it_says_that_no_cluster_was_asked_and_asks_for_the_name(root_drop: Path) -> None:
    refused = exited(run_drop("orders", "-a", str(root_drop)), 2)
    assert "nobody checked whether the cluster has it" in refused.stderr
    assert "nothing was deleted" in refused.stderr


@pytest.mark.parametrize(("topic", "code"), [("missing", 4), ("orders~1", 2), ("ord*", 2)])
def test_a_topic_is_named_in_full(root_drop: Path, topic: str, code: int) -> None:
    assert run_drop(topic, "-a", str(root_drop), "--yes").exit_code == code


def test_what_was_written_lately_stays(root_drop: Path) -> None:
    before = keys(root_drop)
    refused = exited(run_drop("orders", "-a", str(root_drop), "--yes", "--idle", "3h"), 1)
    assert "an archiver may be running" in refused.stderr
    assert keys(root_drop) == before


def test_what_is_written_after_the_plan_stops_it(root_drop: Path) -> None:
    store = LocalStore(root_drop)
    plan = PlannedDrop(store, str(root_drop), "orders", 60)
    (root_drop / "topic=orders/_late").write_bytes(b"")
    before = keys(root_drop)
    with pytest.raises(DropRefused):
        plan.carry_out()
    assert keys(root_drop) == before


def test_what_the_store_refuses_is_deleted_by_the_next_run(root_drop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = LocalStore.delete

    def refusing(store: LocalStore, key: str) -> None:
        if key.endswith(".gz"):
            raise AccessDenied(f"{key} is locked")
        deleted(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", refusing)
        assert run_drop("orders", "-a", str(root_drop), "--yes").exit_code != 0
    left = {key for key in keys(root_drop) if key.startswith("topic=orders")}
    assert {"topic=orders/_topic.json", "topic=orders~2/_topic.json"} <= left, "incarnations stay in a row"
    assert not [key for key in left if key.startswith("topic=orders~2/") and key.endswith("last_chunk_index.json")]
    assert {"orders", "orders~2"} <= claimed(root_drop)
    assert run_drop("orders", "-a", str(root_drop), "--yes").exit_code == 0
    assert claimed(root_drop) == {"orders-eu", "order"}


def test_a_topic_that_the_cluster_has_is_not_dropped(root_drop: Path) -> None:
    cluster = MockCluster()
    cluster.create_topic("orders", 1)
    before = keys(root_drop)
    for topic, code, told in (("orders", 1, "the cluster has it"), ("order", 0, "the cluster does not list it")):
        result = run_drop(topic, "-a", str(root_drop), "-b", cluster.bootstrap_servers, "--yes")
        assert (result.exit_code, told in result.stderr) == (code, True), result.output
    assert {key for key in before - keys(root_drop) if not key.startswith("topic=order/")} == set()


def test_a_topic_of_layout_seed_is_not_dropped(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, "seed").partition("orders", 0, record_format="text").commit(records(range(3)))
    refused = run_drop("orders", "-a", str(tmp_path), "--yes")
    assert (refused.exit_code, "layout seed" in refused.stderr) == (2, True)
