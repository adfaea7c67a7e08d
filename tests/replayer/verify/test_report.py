"""Reports: what was found as files, signed; and verifying a part of the chunks."""

import hashlib
import io
import json
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blockgz.archive.damage import LostRange
from blockgz.archive.positions import OffsetRange
from index_format.marker import encode as encode_marker
from index_format.objects import encode
from index_format.records import canonical_bytes
from replayer.cli import main
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.report import PartitionFindings
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
