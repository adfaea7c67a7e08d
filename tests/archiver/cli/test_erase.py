"""`archiver erase` as it is typed: plan, report, status, and the whole erase of an archive in a folder."""

import gzip
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver_main
from archiver.commit.commit import commit_chunk, read_marker
from archiver.commit.operations import Driver, UnreadLog
from archiver.maintain.erase import ranges_text
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.errors import StoreUnavailable
from blockgz.store.address import S3Settings
from blockgz.store.local import LocalStore
from blockgz.store.opening import open_existing_store
from blockgz.store.writer import FileBody
from index_format.records import Record
from replayer.cli import main as replayer_main
from tests.support.archives import ArchiveWriter, PartitionWriter
from tests.support.chunks import finished_chunk, identity_of
from tests.support.commands import exited, succeeded
from tests.support.key_pair import key_pair
from tests.support.memory_store import content_of

PERSON = b"person-17"


def rows(start: int, count: int) -> list[Record]:
    """Every tenth record has the person's key."""
    return [
        Record(n, 1000 + n, 0, PERSON if n % 10 == 3 else b"other-%d" % n, b"value of %d" % n, ())
        for n in range(start, start + count)
    ]


def archive_of(root: Path, partitions: int = 2, chunks: int = 70) -> list[PartitionWriter]:
    archive = ArchiveWriter(root)
    writers = [archive.partition("orders", number) for number in range(partitions)]
    for writer in writers:
        writer.key_filter_bits = 10
        for chunk in range(chunks):
            writer.commit(rows(6 * chunk, 6), block_bytes=250)
    return writers


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        archiver_main, [str(argument) for argument in arguments], input=answer, env={"COLUMNS": "250"}
    )


def archived(root: Path, partition: int) -> dict[int, Any]:
    """What the other program reads of it, by offset."""
    result = succeeded(CliRunner().invoke(replayer_main, ["cat", f"orders:{partition}", "-a", str(root), "--json"]))
    return {each["offset"]: each for each in map(json.loads, result.stdout.splitlines())}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_dry_run_shows_offsets_and_counts_and_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writers = archive_of(root)
    before = contents(root)
    result = succeeded(run("erase", "orders", "--key", PERSON.decode(), "-a", root, "--dry-run", "--json"))
    value = json.loads(result.stdout)
    assert value["dry_run"]
    for writer, partition in zip(writers, value["partitions"], strict=True):
        expected = [record.offset for record in writer.records if record.key == PERSON]
        assert [start for start, _ in partition["offsets"]] == expected
        assert partition["records"] == len(expected)
        assert partition["blocks_read"] < partition["blocks"]
    assert "value of" not in result.output
    assert PERSON.decode() not in result.output
    shown = run("erase", "orders:1", "--key", PERSON.decode(), "-a", root, "--dry-run")
    assert "3,13,23,33 and 38 more" in shown.stdout
    assert contents(root) == before


@pytest.mark.slow
def test_an_erase_from_the_question_to_its_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, report = tmp_path / "archive", tmp_path / "report.json"
    writers = archive_of(root)
    keys = tmp_path / "keys"
    keys.write_bytes(PERSON + b"\n\nnobody\n")
    asked = exited(run("erase", "orders", "--keys-file", keys, "-a", root, "--report", report), 2)
    assert "add --yes" in asked.output
    assert not report.exists()
    done = succeeded(run("erase", "orders", "--keys-file", keys, "-a", root, "--report", report, "--yes"))
    assert "erased 84 records" in done.stdout
    for writer in writers:
        kept = {record.offset: record for record in writer.records if record.key != PERSON}
        assert set(archived(root, writer.keys.partition)) == set(kept)
    written = json.loads(report.read_text())
    assert [partition["error"] for partition in written["partitions"]] == [None, None]
    assert "value of" not in report.read_text()
    again = run("erase", "orders", "--keys-file", keys, "-a", root, "--report", report, "--yes")
    assert again.exit_code == 2 and "exists already" in again.output
    nothing = tmp_path / "nothing.json"
    assert "no record to erase" in run("erase", "orders", "--keys-file", keys, "-a", root, "--report", nothing).stdout
    told = run("erase", "--status", nothing, "-a", root)
    assert (told.exit_code, "not complete yet" in told.stdout) == (3, True), "what was replaced still holds them"

    _is_sound(root)
    early = exited(run("erase", "--status", report, "-a", root), 3)
    assert "not complete yet" in early.stdout
    assert _holds(root)
    _collect(root, monkeypatch, [0.0])
    late = succeeded(run("erase", "--status", report, "-a", root, "--json"))
    assert json.loads(late.stdout)["complete"]
    assert not _holds(root)
    for each in (report, nothing):
        assert "complete at" in run("erase", "--status", each, "-a", root).stdout
    for writer in writers:
        kept = {record.offset for record in writer.records if record.key != PERSON}
        assert set(archived(root, writer.keys.partition)) == kept
    _is_sound(root)


@pytest.mark.slow
@pytest.mark.parametrize("is_collected", [False, True])
def test_a_marker_that_is_lost_after_an_erase_is_rebuilt_without_the_records(
    is_collected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    (writer,) = archive_of(root, partitions=1)
    # 60 to 65 are all records of a chunk.
    succeeded(run("erase", "orders", "--offsets", "3,13,60..66,400", "-a", root, "--yes"))
    if is_collected:
        _collect(root, monkeypatch, [0.0])
    (root / writer.keys.marker).unlink()
    succeeded(run("repair", "marker", "orders:0", "-a", root, "--yes"))
    kept = {record.offset for record in writer.records} - {3, 13, *range(60, 66), 400}
    assert set(archived(root, 0)) == kept


def _is_sound(root: Path) -> None:
    """The other program verifies it, and tells what became of a record."""
    succeeded(CliRunner().invoke(replayer_main, ["verify", "--records", "-a", str(root)]))
    asked = exited(CliRunner().invoke(replayer_main, ["get", "orders:0:3", "-a", str(root)]), 4)
    assert "erased" in asked.output


def _collect(root: Path, monkeypatch: pytest.MonkeyPatch, passed: list[float]) -> None:
    """Run garbage collection three times, two hours apart; `passed` is by how many seconds the clocks are ahead."""
    real, clock = time.time, LocalStore.clock
    monkeypatch.setattr("time.time", lambda: real() + passed[0])
    monkeypatch.setattr(LocalStore, "clock", lambda self: clock(self) + passed[0])
    for _ in range(3):
        succeeded(run("gc", "-a", root, "--grace", "1h", "--yes"))
        passed[0] += 7200


def _holds(root: Path) -> bool:
    """Whether any object still holds one of the person's records."""

    return any(PERSON in gzip.decompress(path.read_bytes()) for path in root.rglob("*.gz"))


def test_what_was_not_searched_is_never_complete(tmp_path: Path) -> None:
    root, report = tmp_path / "archive", tmp_path / "report.json"
    first, second = archive_of(root, chunks=3)
    (root / first.keys.chunks / "00000000000000000000.gz").unlink()
    (root / second.keys.marker).unlink()
    asked = ("erase", "orders", "--key", PERSON.decode(), "-a", root)
    done = exited(run(*asked, "--report", report, "--json", "--dry-run"), 3)
    assert [each["where"] for each in json.loads(done.stdout)["problems"]] == ["orders:0", "orders:1"]
    assert "archiver repair marker orders:1" in done.stderr
    assert run(*asked, "--report", report, "--yes").exit_code == 3, "the report of a dry run is replaced"
    written = json.loads(report.read_text())
    assert not written["dry_run"] and not written["partitions"]
    assert [each["partition"] for each in written["not_searched"]] == [0, 1]
    status = run("erase", "--status", report, "-a", root, "--json")
    assert (status.exit_code, json.loads(status.stdout)["complete"]) == (3, False)
    assert "did not search" in json.loads(status.stdout)["problems"][0]["error"]
    assert "complete" not in run("erase", "--status", report, "-a", root).stdout


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    root, keys = tmp_path / "archive", tmp_path / "keys"
    archive_of(root, partitions=1, chunks=3)
    keys.write_bytes(b"\xef\xbb\xbf" + PERSON + b"\r\n")
    assert "3,13" in run("erase", "orders", "--keys-file", keys, "-a", root, "--dry-run").stdout


@pytest.mark.parametrize("command", [["gc"], ["compact"], ["prune", "--keep", "1d"]])
def test_a_partition_that_lost_its_marker_is_a_problem(command: list[str], tmp_path: Path) -> None:
    root = tmp_path / "archive"
    _, second = archive_of(root, chunks=3)
    (root / second.keys.marker).unlink()
    done = exited(run(*command, "-a", root, "--yes"), 3)
    assert "orders:1: topic=orders/partition=00001/last_chunk_index.json is missing" in done.stderr
    assert "do:    rebuild the marker: archiver repair marker orders:1" in done.stderr


def test_an_archiver_goes_on_after_an_erase(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    (writer,) = archive_of(root, partitions=1, chunks=3)
    assert run("erase", "orders", "--offsets", "3,13..15", "-a", root, "--yes").exit_code == 0
    store = open_existing_store(str(root), S3Settings())
    driver = Driver(store, UnreadLog(), lambda attempt, cause: None, lambda: True)
    identity = identity_of(partition=0)
    held = driver.run(read_marker(identity.keys.marker))
    assert held is not None and held.marker.tail == ()
    more = rows(18, 6)
    chunk = finished_chunk("json", tuple(more), 18, 24)
    path = tmp_path / "chunk"
    path.write_bytes(content_of(chunk.body))
    body = FileBody(path, chunk.body.size, chunk.body.sha256)
    driver.run(commit_chunk(identity, held, chunk._replace(body=body)))
    kept = {record.offset for record in [*writer.records, *more]} - {3, 13, 14}
    assert set(archived(root, 0)) == kept


def test_what_could_not_be_erased_is_named_in_report_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, report = tmp_path / "archive", tmp_path / "report.json"
    archive_of(root, chunks=3)
    put = LocalStore.put_if_absent

    def failing(self: LocalStore, key: str, *rest: Any) -> bool:
        if "partition=00001" in key and "~r" in key:
            raise StoreUnavailable("the store is away", why="a test", remedy="wait")
        return put(self, key, *rest)

    monkeypatch.setattr(LocalStore, "put_if_absent", failing)
    monkeypatch.setattr("archiver.commit.operations.bounded_backoff", lambda _: lambda attempt, cause: _end(cause))
    result = exited(run("erase", "orders", "--key", PERSON.decode(), "-a", root, "--report", report, "--yes"), 3)
    assert "orders:1" in result.stderr
    errors = [partition["error"] for partition in json.loads(report.read_text())["partitions"]]
    assert errors[0] is None
    assert "the store is away" in errors[1]
    monkeypatch.undo()
    status = exited(run("erase", "--status", report, "-a", root, "--json"), 3)
    first, second = json.loads(status.stdout)["partitions"]
    assert first["not_erased"] == []
    assert second["not_erased"] == [[3, 4], [13, 14]]
    succeeded(run("erase", "orders", "--key", PERSON.decode(), "-a", root, "--yes"))
    assert len(archived(root, 1)) == 16


def _end(cause: object) -> None:
    if isinstance(cause, Exception):
        raise cause


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no topic is named"),
        (["orders"], "it is not clear which records"),
        (["orders", "--offsets", "1"], "it is not clear which records"),
        (["orders", "--key", "k", "--sign-key", "empty"], "has nothing to sign"),
        (["orders", "--key", "k", "--sign-key", "empty", "--report", "r.json"], "not a usable Ed25519 key"),
        (["orders", "--keys-file", "empty"], "holds no key"),
        (["orders", "--keys-file", "wide"], "is in UTF-16"),
        (["orders", "--grep", ""], "every value holds the empty text"),
        (["orders:2-0"], "names no partitions"),
        (["unknown"], "is not in the archive"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    archive_of(root, partitions=1, chunks=1)
    monkeypatch.chdir(tmp_path)
    Path("empty").write_bytes(b"\n\n")
    Path("wide").write_text("k0\n", "utf-16")
    key = [] if arguments == ["orders"] or "empty" in arguments else ["--key", "k"]
    result = run("erase", *arguments, *key, "-a", root, "--yes")
    assert result.exit_code in (2, 4)
    assert said in result.output


def test_the_report_of_another_archive_is_refused(tmp_path: Path) -> None:
    root, report = tmp_path / "archive", tmp_path / "report.json"
    archive_of(root, partitions=1, chunks=1)
    assert run("erase", "orders", "--offsets", "3", "-a", root, "--report", report, "--yes").exit_code == 0
    report.write_text(report.read_text().replace("archive-1", "archive-2"))
    result = run("erase", "--status", report, "-a", root)
    assert result.exit_code == 2 and "another archive" in result.output
    mixed = run("erase", "orders", "--status", report, "-a", root)
    assert mixed.exit_code == 2 and "takes no topics" in mixed.output


def test_records_are_chosen_by_header_and_value_and_the_report_is_signed(tmp_path: Path) -> None:
    root, report = tmp_path / "archive", tmp_path / "report.json"
    writer = ArchiveWriter(root).partition("orders", 0)
    headers = [(("user", b"17"),), (("user", b"18"),), ()]
    writer.commit([Record(n, 1000, 0, b"k%d" % (n % 2), b"value %d" % n, headers[n % 3]) for n in range(12)])
    private, public = key_pair(tmp_path)
    chosen = ("--header", "user=17", "--grep", "value [0-8]", "--key", "k0")
    succeeded(run("erase", "orders", *chosen, "-a", root, "--report", report, "--sign-key", private, "--yes"))
    assert set(range(12)) - set(archived(root, 0)) == {0, 6}
    check = ["verify-report", str(report), "--key", str(public)]
    checked = CliRunner().invoke(replayer_main, check)
    assert (checked.exit_code, "an erase of 2 records" in checked.stdout) == (0, True), checked.output
    report.write_text(report.read_text().replace('"records": 2', '"records": 1'))
    assert CliRunner().invoke(replayer_main, check).exit_code == 3
    both = run("erase", "orders", *chosen, "--offsets", "1", "-a", root)
    assert both.exit_code == 2 and "it is not clear which records" in both.output


@pytest.mark.slow
def test_the_completion_is_a_signed_document_about_a_signed_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, report, completed = tmp_path / "archive", tmp_path / "report.json", tmp_path / "completed.json"
    archive_of(root)
    private, public = key_pair(tmp_path)
    (tmp_path / "other").mkdir()
    another, _ = key_pair(tmp_path / "other")
    run("erase", "orders", "--key", PERSON.decode(), "-a", root, "--report", report, "--sign-key", private, "--yes")
    keep = ("erase", "--status", report, "-a", root, "--report", completed, "--sign-key")
    early = run(*keep, private)
    assert (early.exit_code, json.loads(completed.read_text())["complete"]) == (3, False), early.output
    _collect(root, monkeypatch, [0.0])
    succeeded(run(*keep, private))
    document = json.loads(completed.read_text())
    assert document["report_sha256"] == hashlib.sha256(report.read_bytes()).hexdigest()
    assert (document["complete"], document["records"]) == (True, 84)
    checked = CliRunner().invoke(replayer_main, ["verify-report", str(completed), "--key", str(public)])
    assert (checked.exit_code, "records, complete, " in checked.stdout) == (0, True), checked.output
    again = run(*keep, private)
    assert again.exit_code == 2 and "exists already" in again.output

    completed.unlink()
    wrong = run(*keep, another)
    assert wrong.exit_code == 3 and "does not match the signature" in wrong.output and not completed.exists()
    assert run(*keep, another, "--verify-key", public).exit_code == 0, "another person may sign the completion"
    body, signature = report.read_bytes(), tmp_path / "report.json.sig"
    report.write_bytes(body.replace(b'"dry_run": false', b'"dry_run":  false'))
    changed = run("erase", "--status", report, "-a", root, "--verify-key", public)
    assert changed.exit_code == 3 and "does not match the signature" in changed.output
    report.write_bytes(body)
    signature.unlink()
    for options in ((), ("--verify-key", public), ("--report", tmp_path / "new.json", "--sign-key", private)):
        missing = run("erase", "--status", report, "-a", root, *options)
        assert missing.exit_code == 2 and str(signature) in missing.output and "complete at" not in missing.output
    assert not (tmp_path / "new.json").exists()


def test_values_of_record_format_text_are_found(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writer = ArchiveWriter(root).partition("orders", 0, record_format="text")
    writer.commit([Record(n, 1000, 0, None, b"value %d" % n, ()) for n in range(9)])
    assert "no record to erase" in run("erase", "orders", "--header", "user", "-a", root).stdout
    assert run("erase", "orders", "--grep", "value [37]", "-a", root, "--yes").exit_code == 0
    assert set(archived(root, 0)) == set(range(9)) - {3, 7}


def test_ranges_are_shown_in_few_words() -> None:
    assert ranges_text(OffsetRanges([range(1, 2), range(5, 9)])) == "1,5..9"
    assert ranges_text(OffsetRanges(range(n, n + 1) for n in range(0, 20, 2))) == "0,2,4,6 and 6 more"
