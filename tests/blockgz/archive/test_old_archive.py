"""Old archives, read as they are."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blockgz.archive import old_archive
from replayer.cli import main
from tests.support.ancestor_archives import (
    HARMLESS,
    OldChunk,
    OldWriter,
    Row,
    binary_keys,
    delimited,
    lines,
    member,
    rows_of,
    two_blocks,
    without_keys,
)


@pytest.fixture
def old(tmp_path: Path) -> OldWriter:
    return OldWriter(tmp_path)


def replayer(old: OldWriter, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-a", str(old.root)], prog_name="replayer")


def rows(old: OldWriter, *options: str) -> dict[int, Row]:
    done = replayer(old, "cat", old.topic, "--json", *options)
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        line["offset"]: tuple(None if line[name] is None else line[name].encode() for name in ("key", "value"))  # type: ignore[misc]
        for line in found
    }


def verified(old: OldWriter, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(replayer(old, "verify", "--records", "--json", *options).stdout)
    return found


@pytest.mark.parametrize("chunk", HARMLESS.values(), ids=HARMLESS.keys())
def test_quirks_that_lose_nothing(old: OldWriter, chunk: OldChunk) -> None:
    old.write(chunk)
    assert rows(old) == without_keys(old.rows)
    report = verified(old)
    assert (report["verdict"], report["partitions"][0]["records"]) == ("OK", len(old.rows))


@pytest.mark.parametrize(
    ("encode", "options"),
    [
        (delimited(b"|"), ["--old-format", "delimited", "--key-delimiter", "|"]),
        (binary_keys, ["--old-format", "binary-keys"]),
    ],
    ids=["delimited", "binary"],
)
def test_keys(old: OldWriter, encode: Callable[[Sequence[Row]], bytes], options: list[str]) -> None:
    old.encode = encode
    old.write(two_blocks())
    assert rows(old, *options) == old.rows


def test_look_up_list_describe(old: OldWriter) -> None:
    for start in (0, 100, 300):
        old.write(two_blocks(start))
    old.mark("pfx/2016-02-24/bar-00000-000000000300.index.json")
    done = replayer(old, "get", "bar:0:142", "--json")
    assert json.loads(done.stdout)["offset"] == 142
    assert "old archive: its writer counted the offsets" in done.stderr
    assert replayer(old, "get", "bar:0:250").exit_code == 4
    assert replayer(old, "get", "bar:0:400").exit_code == 4
    assert replayer(old, "get", "bar:1:0").exit_code == 4
    assert replayer(old, "get", "orders:0:0").exit_code == 4
    (topic,) = json.loads(replayer(old, "ls", "--json").stdout)["topics"]
    assert (topic["topic"], topic["records"], topic["chunks"]) == ("bar", 300, 3)
    assert (topic["min_timestamp_ms"], topic["max_timestamp_ms"]) == (None, None)
    (partition,) = json.loads(replayer(old, "describe", "bar", "--json").stdout)["partitions"]
    assert partition["gaps"] == [{"from": 200, "to": 300, "reason": "unverified"}]
    assert set(rows(old, "--from", "150", "--to", "310")) == {*range(150, 200), *range(300, 310)}


def test_twins_and_overlaps_count_once(old: OldWriter) -> None:
    old.write(two_blocks())
    old.write(two_blocks(date="2016-02-25"))
    old.write(OldChunk(30, [rows_of(30, 60), rows_of(60, 170)]))
    assert rows(old) == without_keys(old.rows)
    verified_topic = replayer(old, "verify", "bar:0")
    assert verified_topic.exit_code == 0 and "overlap" in verified_topic.stderr


def test_damage_names_the_offsets(old: OldWriter) -> None:
    def flip(data: bytearray) -> None:
        data[len(member(lines(rows_of(0, 50)))) + 30] ^= 0xFF

    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 60), (b"a\nb\nc\n", 2), rows_of(62, 99)], damage=flip))
    report = verified(old)
    (partition,) = report["partitions"]
    assert report["verdict"] == "FAILURE" and partition["records"] == 87
    assert [(lost["from"], lost["to"]) for lost in partition["lost"]] == [(50, 60)]
    assert partition["gaps"] == [{"from": 60, "to": 62, "reason": "unverified"}]
    assert replayer(old, "get", "bar:0:55").exit_code == 3
    assert "unverified" in replayer(old, "get", "bar:0:61").stderr
    assert replayer(old, "get", "bar:0:62").exit_code == 0


def cut(data: bytearray) -> None:
    del data[-9:]


def wipe(data: bytearray) -> None:
    data[:] = bytes(len(data))


@pytest.mark.parametrize(
    ("damage", "kept", "reason"), [(cut, 50, "damaged at bytes"), (wipe, 0, "it holds no gzip member")]
)
def test_damage_without_an_index_is_a_failure_though_no_offsets_can_be_named(
    old: OldWriter, damage: Callable[[bytearray], None], kept: int, reason: str
) -> None:
    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 99)], has_index=False, damage=damage))
    old.write(OldChunk(200, [rows_of(200, 210)]))
    report = verified(old)
    (partition,) = report["partitions"]
    assert (report["verdict"], partition["records"]) == ("FAILURE", kept + 10)
    (found,) = partition["damage"]
    assert reason in found["reason"]


def test_a_wrong_old_format_is_reported(old: OldWriter) -> None:
    old.write(two_blocks())
    done = replayer(old, "cat", "bar", "--old-format", "binary")
    assert done.exit_code == 3 and "try another --old-format" in done.stderr


@pytest.mark.parametrize(
    ("encode", "options", "hint"),
    [
        (
            delimited(b"\t"),
            [],
            "every line holds '\\t': if it separates key and value, read with --old-format delimited",
        ),
        (lines, ["--old-format", "delimited"], "no line holds '\\t': without keys"),
        (lines, [], None),
        (delimited(b"|"), ["--old-format", "delimited", "--key-delimiter", "|"], None),
    ],
    ids=["keys as lines", "lines as keys", "lines", "keys"],
)
def test_lines_that_fit_another_format_better_are_reported(
    old: OldWriter, encode: Callable[[Sequence[Row]], bytes], options: list[str], hint: str | None
) -> None:
    old.encode = encode
    old.write(two_blocks())
    done = replayer(old, "cat", old.topic, *options)
    assert done.exit_code == 0, done.output
    assert (" line holds " in done.stderr) == (hint is not None)
    assert hint is None or hint in done.stderr


def test_chunks_that_were_forgotten_are_read_again(old: OldWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_archive, "REMEMBERED_BYTES", 1)
    for start in range(0, 1000, 100):
        old.write(two_blocks(start))
    assert rows(old) == without_keys(old.rows)


def test_other_folders_are_not_archives(tmp_path: Path) -> None:
    (tmp_path / "2016-02-24").mkdir()
    (tmp_path / "2016-02-24/report.gz").touch()
    assert CliRunner().invoke(main, ["ls", "-a", str(tmp_path)]).exit_code == 10
