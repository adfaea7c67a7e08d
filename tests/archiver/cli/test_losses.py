"""`archiver repair refetch` and `accept-loss` as they are typed, and what the other program says afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver_main
from archiver.maintain.repair import losses
from blockgz.errors import StoreUnfit
from replayer.cli import main as replayer_main
from tests.archiver.cli.test_erase import archive_of
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.key_pair import key_pair


def archiver(*arguments: object) -> Result:
    given = [str(argument) for argument in arguments]
    return CliRunner().invoke(archiver_main, given, env={"COLUMNS": "250"}, prog_name="archiver")


def replayer(*arguments: object) -> Result:
    return CliRunner().invoke(replayer_main, [str(argument) for argument in arguments], env={"COLUMNS": "250"})


def damaged(root: Path) -> tuple[PartitionWriter, range]:
    """An archive with a damaged block; the offsets that it held."""
    (writer,) = archive_of(root, partitions=1, chunks=3)
    index = writer.indexes[1]
    block = index.blocks[0]
    path = root / writer.keys.chunks / index.data.name
    body = bytearray(path.read_bytes())
    body[block.byte_offset + block.byte_length // 2] ^= 0xFF
    path.write_bytes(body)
    return writer, range(block.first_record_offset, block.last_record_offset + 1)


def test_a_loss_is_shown_accepted_reported_and_signed(tmp_path: Path) -> None:
    root, report, before = tmp_path / "archive", tmp_path / "lost.json", tmp_path / "before.json"
    whole = tmp_path / "whole"
    archive_of(whole, partitions=1, chunks=3)
    assert replayer("verify", "-a", whole, "--report", before).exit_code == 0
    private, public = key_pair(tmp_path)
    writer, lost = damaged(root)
    place = f"orders:0:{lost.start}-{lost.stop}"

    plan = archiver("repair", "accept-loss", "orders:0", "-a", root, "--dry-run", "--report", report)
    assert plan.exit_code == 0, plan.output
    assert f"[{lost.start}..{lost.stop})" in plan.stdout and "becomes a gap" in plan.stdout
    assert "Kafka was not queried" in plan.stderr
    assert json.loads(report.read_text())["dry_run"]
    asked = archiver("repair", "accept-loss", "orders:0", "-a", root)
    assert asked.exit_code == 2 and "add --yes" in asked.output
    bare = archiver("repair", "accept-loss", "orders:0", "-a", root, "--yes")
    assert bare.exit_code == 2 and "needs the ranges" in bare.output
    assert replayer("cat", "orders:0", "-a", root).exit_code == 3

    done = archiver(
        *("repair", "accept-loss", place, "-a", root, "--yes", "--report", report, "--sign-key", private, "--json")
    )
    assert done.exit_code == 0, done.output
    written = json.loads(report.read_text())
    assert written["done"] and written["records_lost"] == len(lost)
    assert json.loads(done.stdout)["lost"] == written["lost"]
    checked = replayer("verify-report", report, "--key", public)
    assert checked.exit_code == 0, checked.output
    read = replayer("cat", "orders:0", "-a", root, "--json")
    assert read.exit_code == 0, read.output
    kept = [record.offset for record in writer.records if record.offset not in lost]
    assert [json.loads(line)["offset"] for line in read.stdout.splitlines()] == kept
    verified: dict[str, Any] = json.loads(
        replayer("verify", "--deep", "--json", "--since-report", before, "-a", root).stdout
    )
    assert verified["verdict"] == "WARNING"
    assert [gap["reason"] for gap in verified["partitions"][0]["gaps"]] == ["lost"]
    again = archiver("repair", "accept-loss", "orders:0", "-a", root)
    assert again.exit_code == 0 and "nothing is lost" in again.stdout


def test_what_cannot_be_repaired_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ArchiveWriter(tmp_path / "seed", "seed").partition("orders", 0, record_format="text").commit(
        [each._replace(key=None, headers=(), value=b"v") for each in records(range(3))]
    )
    seed = archiver("repair", "accept-loss", "orders:0", "-a", tmp_path / "seed")
    assert seed.exit_code == 2 and "layout seed" in seed.output
    _, lost = damaged(tmp_path / "archive")
    place = f"orders:0:{lost.start}-{lost.stop}"

    def refused(store: object, *, multipart: bool) -> None:
        raise StoreUnfit(f"it cannot hold an archive safely: {store} {multipart}")

    monkeypatch.setattr(losses, "probe", refused)
    unfit = archiver("repair", "accept-loss", place, "-a", tmp_path / "archive", "--yes")
    assert unfit.exit_code == 1 and "--single-writer cannot be rewritten" in unfit.output
    assert archiver("repair", "refetch", "orders:0", "-a", tmp_path / "archive").exit_code == 2


def test_a_lost_folder_is_forgotten_not_repaired(tmp_path: Path) -> None:
    writer, _ = damaged(tmp_path)
    for path in (tmp_path / writer.keys.home).rglob("*"):
        path.unlink()
    (tmp_path / writer.keys.home).rmdir()
    gone = archiver("repair", "accept-loss", "orders:0", "-a", tmp_path)
    assert gone.exit_code == 3 and "archiver forget orders:0" in gone.output
