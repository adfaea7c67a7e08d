"""`archiver prune` on a folder: the plan, what it does, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main
from blockgz.store.local import LocalStore
from index_format import marker as markers
from index_format.keys import TopicFolder
from index_format.marker import decode_marker
from tests.support.archives import ArchiveWriter, records

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


def run(*arguments: str) -> Result:
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


def marker_of(root: Path, topic: str = "orders") -> Any:
    path = root / f"topic={TopicFolder(topic)}/partition=00000/last_chunk_index.json"
    return decode_marker(path.read_bytes())


def test_the_plan_says_what_goes_and_what_stays(root: Path) -> None:
    before = marker_of(root)
    result = run("--keep", "5d", "-a", str(root), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "orders" in result.output
    assert "1 partitions stay as they are" in result.output
    assert marker_of(root) == before
    told = json.loads(run("--keep", "5d", "-a", str(root), "--dry-run", "--json").output)
    (going,) = told["partitions"]
    assert (going["pruned_before"], going["records"], going["chunks"], going["pruned"]) == (12, 12, 4, False)
    assert (going["left_records"], going["left_chunks"], told["untouched"], told["dry_run"]) == (18, 6, 1, True)


def test_it_prunes_what_it_planned(root: Path) -> None:
    result = run("--keep", "5d", "-a", str(root), "--yes")
    assert result.exit_code == 0, result.output
    assert "pruned 1 of 1 partitions" in result.output
    marker = marker_of(root)
    assert (marker.version, marker.pruned_before, marker.start_offset, marker.num_records) == (2, 12, 0, 18)
    again = run("--keep", "5d", "-a", str(root), "--yes")
    assert (again.exit_code, again.output.splitlines()[0]) == (0, "nothing to prune")
    assert marker_of(root, "quiet").version == 1
    status = CliRunner().invoke(main, ["status", "-a", str(root), "--json"])
    fields = ("pruned_before", "retired", "retired_chunks")
    told = [tuple(each[field] for field in fields) for each in json.loads(status.output)["partitions"]]
    assert told == [(12, 1, 4), (0, 0, 0)]


def test_a_size_says_what_stays_too(root: Path) -> None:
    total = marker_of(root).num_bytes
    told = json.loads(run("--keep-bytes", str(total - 1), "-a", str(root), "--dry-run", "--json").output)
    assert told["partitions"] == []
    told = json.loads(run("orders", "--keep-bytes", "1", "-a", str(root), "--yes", "--json").output)
    (gone,) = told["partitions"]
    assert (gone["pruned_before"], gone["left_chunks"], gone["pruned"], told["untouched"]) == (24, 2, True, 0)


def test_it_asks_first(root: Path) -> None:
    before = marker_of(root)
    result = CliRunner().invoke(main, ["prune", "--keep", "5d", "-a", str(root)], input="n\n")
    assert result.exit_code != 0
    assert marker_of(root) == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--keep", "90"), "'90' has no unit; write 90d for days"),
        (("--keep", "0d"), "'0d' would keep nothing"),
        (("--keep-bytes", "0"), "'0' would keep nothing"),
    ],
)
def test_what_would_keep_nothing_or_means_anything_is_refused(arguments: tuple[str, ...], why: str, root: Path) -> None:
    before = marker_of(root)
    result = run(*arguments, "-a", str(root), "--yes")
    assert result.exit_code == 2
    assert why in result.output
    assert marker_of(root) == before


@pytest.mark.parametrize("arguments", [(), ("--keep", "5d", "--keep-bytes", "1MB")])
def test_what_stays_must_be_clear(arguments: tuple[str, ...], root: Path) -> None:
    result = CliRunner().invoke(main, ["prune", *arguments, "-a", str(root)])
    assert result.exception is not None
    assert "exactly one of" in str(getattr(result.exception, "why", result.output))


@pytest.mark.parametrize("command", [("prune", "--keep", "5d"), ("compact",), ("gc",), ("status",)])
def test_a_topic_that_is_not_there_is_named(command: tuple[str, ...], root: Path) -> None:
    result = CliRunner().invoke(main, [*command, "ordres", "-a", str(root)])
    assert result.exit_code == 4
    assert "'ordres' is not in the archive" in result.stderr
    result = CliRunner().invoke(main, [*command, "eu-*", "~us-.*", "-a", str(root)])
    assert result.exit_code == 4
    assert "no archived topic matches 'eu-*' or '~us-.*'" in result.stderr
