"""`replayer verify --job` on a real broker: copies of every kind are proved, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from system_test.support.archiving import Site
from system_test.support.bulk import FIRST_MS
from system_test.support.programs import run, start
from system_test.support.topics import NewRecord, create_topic, delete_records, delete_topic, produce, watermarks
from tests.support.sampling import mostly_long

RECORDS = 3000
MODES = pytest.mark.parametrize("mode", mostly_long([("--transactional",), ()]), ids=["transactional", "idempotent"])
TRANSFORMS = """
transforms=hoist,drop
transforms.hoist.type=HoistField$Value
transforms.hoist.field=x
transforms.drop.type=Filter
transforms.drop.predicate=dead
predicates=dead
predicates.dead.type=RecordIsTombstone
value.converter=org.apache.kafka.connect.storage.StringConverter
"""


@pytest.fixture
def copy(site: Site, topic_name: str) -> str:
    """An archived topic of three partitions, and an empty one of two to replay it to."""
    create_topic(site.bootstrap, topic_name, 3)
    made = [
        NewRecord(b"%d" % n if n % 7 else None, b"k%d" % (n % 50), n % 3, timestamp=FIRST_MS + n)
        for n in range(RECORDS)
    ]
    produce(site.bootstrap, topic_name, made)
    site.once(topic_name)
    create_topic(site.bootstrap, f"{topic_name}-copy", 3)
    return f"{topic_name}-copy"


def replay(site: Site, topic: str, copy: str, *options: str) -> dict[str, Any]:
    named = ("--to-topic", copy, "--yes", "--job", topic)
    return site.replayer_json("replay", topic, *named, *options, *site.kafka)


def proved(site: Site, topic: str, exit_code: int = 0) -> dict[str, Any]:
    return site.replayer_json("verify", "--job", topic, *site.kafka, check=exit_code)


def segments(site: Site, topic: str) -> list[Path]:
    return sorted((Path(site.env["XDG_STATE_HOME"]) / "blockgz" / "jobs" / topic / "runs").iterdir())


def change_map(site: Site, topic: str, change: Callable[[list[list[int]]], None]) -> None:
    """Changes the first runs of the job's run map, as a wrong program would have written them."""
    for segment in segments(site, topic):
        told = json.loads(segment.read_bytes())
        if told.get("runs"):
            told.pop("crc32")
            change(told["runs"])
            segment.write_bytes(json.dumps(told, separators=(",", ":")).encode())
            return


@pytest.mark.parametrize(
    "options",
    [
        ("--transactional",),
        ("--partitions", "by-key"),
        ("--partitions", "2", "--transactional"),
        ("--key", "k7", "--null-key", "--since", f"@{FIRST_MS + 100}", "--transactional"),
        ("--timestamps", "shift=+1h", "--add-header", "a=b", "--provenance", "--tombstones", "drop"),
        ("--transforms", "FILE", "--allow-unchanged"),
        ("--from", "10", "--to", "+500"),
    ],
    ids=["as-it-is", "by-key", "folded", "filtered", "changed", "transformed", "range"],
)
def test_copies_of_every_kind(site: Site, topic_name: str, copy: str, options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "transforms.properties"
    file.write_text(TRANSFORMS)
    produce(site.bootstrap, copy, [NewRecord(b"earlier", partition=0)])
    asked = [str(file) if each == "FILE" else each for each in options]
    result = replay(site, topic_name, copy, "--append", *asked)
    file.unlink()
    told = proved(site, topic_name)
    assert (told["verdict"], told["complete"], told["records"]) == ("OK", True, result["records"])
    assert 0 < told["records"] <= RECORDS
    words = result["verify"].split()
    assert words[:4] == ["replayer", "verify", "--job", topic_name]
    assert run(words[0], *words[1:], env=site.env, timeout=60).stdout.endswith("OK\n")


@MODES
def test_a_job_that_was_killed_and_resumed(site: Site, topic_name: str, copy: str, mode: tuple[str, ...]) -> None:
    named = ("--to-topic", copy, "--yes", "--job", topic_name, *mode, "--rate", "300/s", "--partitions", "by-key")
    command = ("replay", topic_name, *named, *site.kafka, *site.archive)

    def logged() -> int:
        return sum(watermarks(site.bootstrap, copy, partition)[1] for partition in range(3))

    with start("replayer", *command, env=site.env) as running:
        running.wait_for(lambda: logged() > 400, 60, "some records")
        running.kill()
    told = proved(site, topic_name)
    assert (told["verdict"], told["complete"]) == ("WARNING", False)
    site.replayer("replay", topic_name, *named, "--rate", "100000/s", "--resume", *site.kafka)
    told = proved(site, topic_name)
    assert (told["records"], told["complete"]) == (RECORDS, True)
    assert told["verdict"] == ("OK" if mode or not told["sent_twice"] else "WARNING")
    if not mode:
        assert logged() == RECORDS + told["sent_twice"]


@MODES
def test_what_is_foreign_is_named(site: Site, topic_name: str, copy: str, mode: tuple[str, ...]) -> None:
    replay(site, topic_name, copy, *mode)
    offset = watermarks(site.bootstrap, copy, 1)[1]
    produce(site.bootstrap, copy, [NewRecord(b"foreign", partition=1)])
    told = proved(site, topic_name, 3)
    assert (told["verdict"], told["foreign"], told["missing"]) == ("FAILURE", 1, 0)
    assert told["lanes"][1]["faults"] == [f"partition 1 [{offset}..{offset + 1}): records that are not from this job"]


def test_what_is_missing_is_counted(site: Site, topic_name: str, copy: str) -> None:
    replay(site, topic_name, copy)
    delete_records(site.bootstrap, copy, 10, 2)
    assert proved(site, topic_name, 3)["missing"] == 10


def test_records_that_are_others_than_the_job_wrote(site: Site, topic_name: str, copy: str) -> None:
    """The job's map says that its records stand where another program's do."""
    replay(site, topic_name, copy)
    first = watermarks(site.bootstrap, copy, 0)[1]
    changed = [NewRecord(b"%d" % n if n % 7 else None, b"k%d" % (n % 50), 0, timestamp=FIRST_MS + n) for n in (0, 3)]
    produce(site.bootstrap, copy, [changed[0], NewRecord(b"tampered", b"k3", 0, timestamp=FIRST_MS + 3)])

    def swap(runs: list[list[int]]) -> None:
        lane = next(each for each in runs if each[3] == 0)
        runs[runs.index(lane)] = [*lane[:4], first, 2]
        runs[runs.index([*lane[:4], first, 2])][2] = 2

    change_map(site, topic_name, swap)
    told = proved(site, topic_name, 3)
    assert told["differing"] == 1
    assert any("value" in text for text in told["lanes"][0]["faults"])


def test_a_map_that_is_wrong_fails(site: Site, topic_name: str, copy: str) -> None:
    replay(site, topic_name, copy)

    def change(runs: list[list[int]]) -> None:
        lane = next(each for each in runs if each[3] == 1)
        lane[2] -= 1
        lane[5] -= 1

    change_map(site, topic_name, change)
    told = proved(site, topic_name, 3)
    assert (told["foreign"], told["missing"]) == (1, 1)
    assert "are committed" in told["lanes"][1]["faults"][0]


def test_a_target_created_again_is_not_proved(site: Site, topic_name: str, copy: str) -> None:
    replay(site, topic_name, copy)
    delete_topic(site.bootstrap, copy)
    create_topic(site.bootstrap, copy, 3)
    done = site.replayer("verify", "--job", topic_name, *site.kafka, check=1)
    assert "is not the one that job" in done.stderr
