"""What a user sees of an archive that was pruned and erased from."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from replayer.cli import main
from tests.support.archives import ArchiveWriter, records
from tests.support.maintained import Maintainer

SVG = "{http://www.w3.org/2000/svg}"


def replayer(*args: object, root: Path) -> Result:
    return CliRunner().invoke(main, [*map(str, args), "-a", str(root)], prog_name="replayer")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Pruned below 20; of the rest 25 was erased, and all of [40..60)."""
    writer = ArchiveWriter(tmp_path).partition("orders", 0)
    maintainer = Maintainer(writer)
    for start in range(0, 60, 20):
        writer.commit(records(range(start, start + 10)))
        writer.commit(records(range(start + 10, start + 20)))
        maintainer.fold()
    writer.commit(records(range(60, 70)))
    maintainer.prune(1)
    maintainer.rewrite([2], [25, *range(40, 60)])
    return tmp_path


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (5, "it was pruned: the archive keeps nothing of this partition below offset 20"),
        (25, "it was erased from the archive, as offsets [25..26) were"),
        (45, "it was erased from the archive, as offsets [40..60) were"),
    ],
)
def test_get_says_why_there_is_no_record(root: Path, offset: int, why: str) -> None:
    done = replayer("get", f"orders:0:{offset}", root=root)
    assert done.exit_code == 4
    assert why in done.stderr


def test_printing_begins_at_the_floor(root: Path) -> None:
    for begin in ((), ("--from", "0"), ("--from", "earliest"), ("--from", "5")):
        done = replayer("cat", "orders", "-f", "%o\n", *begin, root=root)
        assert list(map(int, done.stdout.split())) == [*range(20, 25), *range(26, 40), *range(60, 70)]


def test_listings_show_the_floor_and_what_is_erased(root: Path) -> None:
    (topic,) = json.loads(replayer("ls", "--json", root=root).stdout)["topics"]
    (partition,) = topic["partitions"]
    assert (partition["pruned_before"], partition["start_offset"], partition["records"]) == (20, 20, 29)
    described = replayer("describe", "orders", root=root).stdout
    assert "partition 0: pruned, nothing below offset 20 is kept" in described
    assert "partition 0: gap [40..60) (erased)" in described


def test_coverage_shows_the_floor_and_what_is_erased(root: Path) -> None:
    (partition,) = json.loads(replayer("coverage", "--json", root=root).stdout)["partitions"]
    assert partition["pruned_before"] == 20
    assert [(each["from"], each["to"]) for each in partition["erased"]] == [(40, 60)]
    assert partition["gaps"] == []
    table = replayer("coverage", root=root).stdout
    assert "orders:0: pruned, nothing below offset 20 is kept" in table
    assert "orders:0: all records of [40..60) were erased" in table
    picture = ElementTree.fromstring(replayer("coverage", "--format", "svg", root=root).stdout)
    marks = {
        rect.get("class"): title.text
        for rect in picture.iter(f"{SVG}rect")
        if (title := rect.find(f"{SVG}title")) is not None
    }
    assert marks["p"] == "nothing below the floor: offsets [0..20) (pruned)"
    assert marks["e"] == "no record left: offsets [40..60) (erased)"
    assert "g" not in marks


def test_verify_is_content(root: Path) -> None:
    done = replayer("verify", "--deep", "--records", root=root)
    assert done.exit_code == 0
    assert "orders:0 pruned: nothing below offset 20 is kept" in done.stdout
    assert "orders:0 erased: [25..26), [40..60)" in done.stdout
    assert done.stdout.splitlines()[-1] == "OK"


def test_exports_leave_out_what_is_gone(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "orders.jsonl"
    done = replayer("export", "orders", target, root=root)
    assert done.exit_code == 0, done.stderr
    assert len(target.read_text().splitlines()) == 29
    nothing = replayer("export", "orders", tmp_path / "none.jsonl", "--from", "40", "--to", "60", root=root)
    assert (nothing.exit_code, nothing.stderr) == (
        0,
        "no records at orders:0 [40..60): replayer get orders:0:40 says why\n",
    )
