"""Reports: what was found as files, signed; and verifying a part of the chunks."""

import asyncio
import hashlib
import io
import json
import struct
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader, parse_topic
from blockgz.archive.partition import LostRange
from blockgz.archive.positions import OffsetRange
from blockgz.errors import UsageError, Verdict
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import marker as marker_module
from index_format.keys import Conflict
from index_format.marker import encode as encode_marker
from index_format.marker import inserted
from index_format.objects import Gap, encode
from index_format.records import canonical_bytes
from replayer.cli import main
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.earlier import compare_with, parse_report
from replayer.verify.report import (
    ArchiveReport,
    Depth,
    EarlierFindings,
    PartitionFindings,
    StoredReport,
    verification_document,
)
from replayer.verify.verifying import survey, verify_partition
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.key_pair import key_pair

NEWEST = 1_760_000_000_000 + 100


def verify(root: Path, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", "-a", str(root / "archive"), *map(str, arguments)])


@pytest.fixture
def partition(tmp_path: Path) -> PartitionWriter:
    """20 chunks of five records, and a gap."""
    partition = ArchiveWriter(tmp_path / "archive").partition("orders", 0)
    for start in range(0, 100, 5):
        partition.commit(records(range(start, start + 5)))
    partition.lose(110)
    partition.commit(records(range(110, 120)))
    return partition


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_pair(tmp_path)


class Text(HTMLParser):
    """The text of a page; raises for what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_a_report_says_what_was_found_and_its_digests_can_be_repeated(
    tmp_path: Path, partition: PartitionWriter
) -> None:
    file = tmp_path / "report.json"
    printed = verify(tmp_path, "--records", "--json", "--report", file)
    document = json.loads(file.read_bytes())
    assert (document["format"], document["version"]) == ("blockgz-report", 1)
    assert {name: document[name] for name in json.loads(printed.stdout)} == json.loads(printed.stdout)
    (found,) = document["partitions"]
    assert found["readable"] == [{"from": 0, "to": 100}, {"from": 110, "to": 120}]
    whole = [canonical_bytes(record) for record in partition.records]
    assert found["digests"] == {
        "content": hashlib.sha256(b"".join(each[8:16] + each[17:] for each in whole)).hexdigest(),
        "positions": hashlib.sha256(b"".join(each[:8] + each[16:17] for each in whole)).hexdigest(),
    }


def test_the_program_in_the_documentation_gives_the_digest_from_the_printed_records(
    tmp_path: Path, partition: PartitionWriter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["orders:0", "--json", "-a", str(tmp_path / "archive")]
    lines = CliRunner().invoke(main, ["cat", *arguments]).stdout
    (report,) = json.loads(verify(tmp_path, "--records", "--json").stdout)["partitions"]
    documentation = (Path(__file__).parents[3] / "docs" / "verify.md").read_text()
    program = documentation.split("```python\n")[1].split("```")[0]
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    exec(program, {})
    assert capsys.readouterr().out.strip() == report["digests"]["content"]


def test_a_page_names_the_lost_offsets(tmp_path: Path, partition: PartitionWriter) -> None:
    (tmp_path / "archive" / partition.keys.home / f"{50:020d}.gz").unlink()
    file = tmp_path / "report.html"
    assert verify(tmp_path, "--deep", "--report", file).exit_code == 3
    text = Text(file.read_text()).text
    for expected in ("FAILURE", "orders:0", "lost", "50", "55", "is missing", "retention", "readable"):
        assert expected in text


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&archive"
    folder.mkdir()
    ArchiveWriter(folder / "archive").partition("orders", 0).commit(records(range(3)))
    assert verify(folder, "--report", tmp_path / "report.html").exit_code == 0
    assert "<b>&archive" in Text((tmp_path / "report.html").read_text()).text


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_signed_report_is_told_from_a_changed_one(
    tmp_path: Path, partition: PartitionWriter, keys: tuple[Path, Path], name: str
) -> None:
    private, public = keys
    file = tmp_path / name
    assert verify(tmp_path, "--report", file, "--sign-key", private).exit_code == 0

    def checked() -> Result:
        return CliRunner().invoke(main, ["verify-report", str(file), "--key", str(public)])

    assert checked().exit_code == 0
    assert ("WARNING" in checked().stdout) == (name == "report.json")
    body = file.read_bytes()
    file.write_bytes(body.replace(b"WARNING", b"OK", 1))
    assert (checked().exit_code, checked().stdout) == (3, "")
    file.write_bytes(body)
    signature = tmp_path / f"{name}.sig"
    signature.write_bytes(signature.read_bytes()[:-1])
    assert checked().exit_code == 3
    signature.unlink()
    assert checked().exit_code == 2


def test_the_digest_of_a_chain_can_be_repeated_from_its_indexes(tmp_path: Path, partition: PartitionWriter) -> None:
    digest = hashlib.sha256()
    for index in partition.indexes:
        digest.update(struct.pack(">QQQ", index.first_offset, index.last_offset, index.num_records))
        digest.update(hashlib.sha256(encode(index)).digest())
    (found,) = json.loads(verify(tmp_path, "--json").stdout)["partitions"]
    assert (found["chain"], found["incarnation"]) == (digest.hexdigest(), 1)
    assert len(partition.indexes) == found["chunks"]


def test_an_archive_is_compared_with_an_earlier_signed_report(
    tmp_path: Path, partition: PartitionWriter, keys: tuple[Path, Path]
) -> None:
    private, public = keys
    before = partition.marker
    partition.commit(records(range(120, 125)))
    earlier = tmp_path / "earlier.json"
    assert verify(tmp_path, "--report", earlier, "--sign-key", private).exit_code == 0
    partition.commit(records(range(125, 130)))
    since = ("--since-report", earlier, "--key", public)
    same = verify(tmp_path, *since)
    created = json.loads(earlier.read_bytes())["created"]
    assert same.exit_code == 0
    assert same.stdout.splitlines()[-2:] == [
        f"compared with the report of {created} (WARNING): 1 partitions, OK",
        "WARNING",
    ]
    assert json.loads(verify(tmp_path, "--json", *since).stdout)["since_report"]["differences"] == []

    writer = partition.archive
    writer.put(partition.keys.marker, encode_marker(before))
    for path in (tmp_path / "archive" / partition.keys.home).glob(f"{0:017d}12*"):
        path.unlink()
    assert verify(tmp_path).exit_code == 0, "nothing above the marker proves that it was put back"
    shorter = verify(tmp_path, *since, "--report", tmp_path / "report.html")
    assert shorter.exit_code == 3
    expected = f"FAILURE orders:0 [0..125) differs from the report of {created}: it ends at 120 and ended at 125"
    assert expected in shorter.stdout.splitlines()
    assert "it ends at 120 and ended at 125" in Text((tmp_path / "report.html").read_text()).text
    (difference,) = json.loads(verify(tmp_path, "--json", *since).stdout)["since_report"]["differences"]
    assert (difference["topic"], difference["partition"], difference["from"], difference["to"]) == ("orders", 0, 0, 125)

    earlier.write_bytes(earlier.read_bytes().replace(b"125", b"120"))
    forged = verify(tmp_path, *since)
    assert (forged.exit_code, forged.stdout) == (3, "") and "does not match the signature" in forged.stderr
    (tmp_path / "earlier.json.sig").unlink()
    assert verify(tmp_path, *since).exit_code == 2


def test_what_could_not_be_reported_or_signed_is_refused_before_the_work(
    tmp_path: Path, partition: PartitionWriter, keys: tuple[Path, Path]
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    report = ("--report", tmp_path / "report.json")
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for arguments, named in (
        (("--report", tmp_path / "report.txt"), "report.txt"),
        (("--report", tmp_path / "none" / "report.json"), "folder does not exist"),
        (("--report", folder), "it is a folder"),
        (("--sign-key", keys[0]), "--sign-key has nothing to sign"),
        ((*report, "--sign-key", keys[1]), "pub.pem is not a usable Ed25519 key"),
        ((*report, "--sign-key", other), "another kind of key"),
        ((*report, "--sign-key", tmp_path / "none.pem"), "none.pem"),
        (("--sample", "0%"), "0%"),
        (("--sample", "101%"), "101%"),
        (("--sample", "5"), "5%"),
        (("--since", "yesterday"), "yesterday"),
        (("orders", "--against-topic", "orders", "--sample", "5%"), "--sample"),
        (("--since-report", tmp_path / "none.json"), "none.json cannot be read"),
        (("--since-report", keys[1]), "pub.pem is not a report to compare with"),
    ):
        refused = verify(tmp_path, *arguments)
        assert (refused.exit_code, refused.stdout) == (2, ""), arguments
        assert named in refused.stderr
    assert not (tmp_path / "report.json").exists()


def test_what_was_found_is_printed_though_the_report_cannot_be_written(
    tmp_path: Path, partition: PartitionWriter
) -> None:
    (tmp_path / "page.html").symlink_to(tmp_path / "none" / "page.html")
    failed = verify(tmp_path, "--report", tmp_path / "page.html")
    assert (failed.exit_code, failed.stdout.splitlines()[-1]) == (1, "WARNING")
    assert "page.html could not be written" in failed.stderr and "this is a bug" not in failed.stderr


def test_a_part_of_the_chunks_is_checked(tmp_path: Path, partition: PartitionWriter) -> None:
    path = tmp_path / "archive" / partition.keys.home / f"{0:020d}.gz"
    body = path.read_bytes()
    path.write_bytes(bytes(len(body)))

    def found(*arguments: str) -> tuple[int, int, object]:
        result = verify(tmp_path, "--records", "--json", *arguments)
        (report,) = json.loads(result.stdout)["partitions"]
        return result.exit_code, report["checked_chunks"], report["digests"]

    assert found() == (3, 21, None)
    printed = verify(tmp_path, "--deep", "--since", f"@{NEWEST}").stdout.splitlines()
    assert printed[-2:] == ["1 of 21 chunks were checked (4.76%): damage in the others goes unnoticed", "WARNING"]
    assert found("--since", f"@{NEWEST}") == (0, 1, None)
    assert found("--since", "2100-01-01") == (0, 0, None)
    code, checked, digests = found("--sample", "10%")
    assert (checked, digests) == (2, None)
    assert code in (0, 3)
    assert found("--since", f"@{NEWEST}", "--sample", "1%") == (0, 1, None)


def test_other_seeds_choose_other_chunks_and_in_the_end_all() -> None:
    chosen = [ChunkChoice(share=0.2, seed=seed).numbers(20, "first") for seed in range(100)]
    assert {len(each) for each in chosen} == {4}
    assert all(list(each) == sorted(each) for each in chosen)
    assert {number for each in chosen for number in each} == set(range(20))


def test_readable_is_what_is_neither_lost_nor_in_a_gap() -> None:
    report = PartitionFindings("t", 0, first_offset=5, next_offset=50)
    assert report.readable == [OffsetRange(5, 50)]
    report.lost = [
        LostRange(0, 7, ""),
        LostRange(20, 30, ""),
        LostRange(25, 28, ""),
        LostRange(30, 31, ""),
        LostRange(49, 60, ""),
    ]
    assert report.readable == [OffsetRange(7, 20), OffsetRange(31, 49)]
    assert PartitionFindings("t", 0).readable == []


HEAD = {"format": "blockgz-report", "version": 1, "created": "2026-11-22T00:00:00Z"}


@pytest.fixture(params=["topic", "seed"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path, request.param)


@pytest.fixture
def partition_report(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> PartitionWriter:
    """Five chunks, two catalogs, and a gap in front of the last chunk."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 2)
    partition_report = writer.partition("orders", 0)
    for start in range(0, 40, 10):
        partition_report.commit(records(range(start, start + 10)))
    partition_report.lose(50)
    partition_report.commit(records(range(50, 60)), next_offset=62)
    return partition_report


def report_of(writer: ArchiveWriter, *topics: str) -> StoredReport:
    """A report of everything, or of these topics, as a file has it."""

    async def made() -> ArchiveReport:
        archive = ArchiveReader(LocalReader(LocalAddress(str(writer.root))))
        identity, places, report = await survey(archive, [(topic, None) for topic in topics])
        for topic, number in places:
            report.partitions.append(
                await verify_partition(archive, topic, number, Depth.STRUCTURE, lambda *_: None, identity=identity)
            )
        return report

    document = verification_document(asyncio.run(made()), "somewhere", Depth.STRUCTURE)
    return parse_report(msgspec.json.encode(HEAD | document), "report.json")


def compared(writer: ArchiveWriter, earlier: StoredReport, *topics: str) -> EarlierFindings:
    async def found() -> EarlierFindings:
        archive = ArchiveReader(LocalReader(LocalAddress(str(writer.root))))
        identity, _, _ = await survey(archive, [])
        return await compare_with(archive, identity.archive_id, earlier, [parse_topic(topic) for topic in topics])

    return asyncio.run(found())


def test_what_was_archived_since_makes_no_difference(writer: ArchiveWriter, partition_report: PartitionWriter) -> None:
    earlier = report_of(writer)
    assert compared(writer, earlier).verdict is Verdict.OK
    partition_report.advance(65)
    assert compared(writer, earlier).verdict is Verdict.OK
    partition_report.lose(70)
    partition_report.advance(75)
    behind_a_gap = report_of(writer)
    for start in range(80, 150, 10):
        partition_report.commit(records(range(start, start + 10)))
    for report in (earlier, behind_a_gap, report_of(writer)):
        found = compared(writer, report)
        assert (found.partitions, found.differences, found.warnings) == (1, [], [])


def test_an_archive_that_lost_its_newest_chunk_is_shorter_than_the_report(
    writer: ArchiveWriter, partition_report: PartitionWriter
) -> None:
    """Also where nothing above the marker is left that proves it."""
    before = partition_report.marker
    partition_report.commit(records(range(62, 70)))
    earlier = report_of(writer)
    writer.put(partition_report.keys.marker, encode_marker(before))
    for path in writer.root.rglob("*"):
        if path.name.startswith(f"{62:020d}") or "000000000062." in path.name:
            path.unlink()
    (difference,) = compared(writer, earlier).differences
    assert (difference.topic, difference.partition, difference.start, difference.end) == ("orders", 0, 0, 70)
    assert difference.reason == "it ends at 62 and ended at 70"


def rewrite_newest(partition_report: PartitionWriter) -> None:
    """The newest chunk is another one, of the same offsets and counts."""
    entry = replace(partition_report.marker.tail[-1], sha256="0" * 64)
    partition_report.marker = replace(partition_report.marker, tail=(*partition_report.marker.tail[:-1], entry))


def drop_newest(partition_report: PartitionWriter) -> None:
    """The newest chunk is gone, a gap in its place."""
    tail, gaps = partition_report.marker.tail[:-1], (*partition_report.marker.gaps, Gap(50, 62, "retention"))
    name = tail[-1].name if tail else None
    partition_report.marker = replace(partition_report.marker, tail=tail, gaps=gaps, last_chunk_index=name)


def forget_gap(partition_report: PartitionWriter) -> None:
    """The chunk in front of the gap reaches over it."""
    partition_report.marker = replace(partition_report.marker, gaps=())


@pytest.mark.parametrize(
    ("change", "why"), [(rewrite_newest, "have changed"), (drop_newest, "4 chunks"), (forget_gap, "gap [40..50)")]
)
def test_what_was_changed_below_the_reported_end_is_a_difference(
    writer: ArchiveWriter, partition_report: PartitionWriter, change: Callable[[PartitionWriter], None], why: str
) -> None:
    earlier = report_of(writer)
    change(partition_report)
    partition_report.commit(records(range(62, 70)))
    (difference,) = compared(writer, earlier).differences
    assert why in difference.reason and (difference.start, difference.end) == (0, 62)


@pytest.mark.parametrize("place", [(40, 50), (40, 44), (43, 47), (46, 50)])
def test_a_chunk_that_salvage_put_into_a_gap_makes_no_difference(
    writer: ArchiveWriter, partition_report: PartitionWriter, place: tuple[int, int]
) -> None:
    earlier = report_of(writer)
    start, end = place
    entry = replace(
        partition_report.marker.tail[-1],
        **{"start_offset": start, "next_offset": end, "first_offset": start, "last_offset": start, "num_records": 1},
    )
    name = partition_report.marker.tail[-1].name.replace("50", str(start))
    longer, pending = inserted(partition_report.marker, replace(entry, name=name), (), nonce="inserted", tail_hash=None)
    for catalog in pending:
        writer.put(partition_report.keys.home + catalog.reference.name, catalog.body)
    writer.put(partition_report.keys.marker, encode_marker(longer))
    assert compared(writer, earlier).differences == []


def test_a_partition_that_is_gone_is_a_difference(writer: ArchiveWriter, partition_report: PartitionWriter) -> None:
    writer.partition("orders", 1)
    writer.partition("bills", 0).commit(records(range(3)))
    earlier = report_of(writer)
    for number in (0, 1):
        (writer.root / partition_report.keys.home.replace("00000", f"{number:05d}") / "last_chunk_index.json").unlink()
    found = compared(writer, earlier)
    assert [(each.topic, each.partition) for each in found.differences] == [("orders", 0), ("orders", 1)]
    assert compared(writer, earlier, "bills").verdict is Verdict.OK
    assert [each.partition for each in compared(writer, earlier, "orders:1").differences] == [1]


def test_an_incarnation_is_compared_with_itself(writer: ArchiveWriter, partition_report: PartitionWriter) -> None:
    earlier = report_of(writer)
    partition_report.hand_over("orders~2")
    newer = writer.partition("orders", 0, incarnation=2)
    newer.commit(records(range(7)), conflict=Conflict(1, "0123abcd"))
    assert compared(writer, earlier).verdict is Verdict.OK
    later = report_of(writer)
    assert {(each.folder.incarnation, each.next_offset) for each in later.partitions} == {(1, 62), (2, 7)}
    newest = report_of(writer, "orders")
    newer.commit(records(range(7, 9)), conflict=Conflict(1, "4567abcd"))
    for report, count in ((later, 2), (newest, 1)):
        found = compared(writer, report)
        assert (found.partitions, found.differences) == (count, [])


def test_a_truncated_log_makes_no_difference(writer: ArchiveWriter, partition_report: PartitionWriter) -> None:
    earlier = report_of(writer)
    newer = partition_report.truncated(30)
    newer.commit(records(range(30, 35)), conflict=Conflict(2, "0123abcd"))
    both = report_of(writer)
    newer.commit(records(range(35, 40)), conflict=Conflict(2, "4567abcd"))
    for report in (earlier, both):
        assert compared(writer, report).differences == []


def test_a_report_without_digests_is_compared_by_counts(
    writer: ArchiveWriter, partition_report: PartitionWriter
) -> None:
    report = report_of(writer)
    partitions = tuple(replace(each, chain=None, incarnation=None) for each in report.partitions)
    found = compared(writer, replace(report, partitions=partitions, archive_id=None))
    assert (found.verdict, found.differences) == (Verdict.WARNING, [])
    assert "orders:0" in found.warnings[0]
    drop_newest(partition_report)
    partition_report.store_marker()
    assert compared(writer, replace(report, partitions=partitions)).verdict is Verdict.FAILURE


def test_a_report_of_another_archive_is_refused(writer: ArchiveWriter, partition_report: PartitionWriter) -> None:
    report = replace(report_of(writer), archive_id="archive-2")
    with pytest.raises(UsageError, match="not of this archive"):
        compared(writer, report)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":"blockgz-report","version":1,"created":"","archive":"","against_topic":"t","partitions":[]}',
        b'{"format":"blockgz-report","version":2,"created":"","archive":"","depth":"blocks","partitions":[]}',
    ],
)
def test_other_files_are_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match=r"r\.json is not a report to compare with"):
        parse_report(body, "r.json")
