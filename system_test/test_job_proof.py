"""`replayer verify --job` on a real broker: copies of every kind are proved, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest

from system_test.support.archiving import Site
from system_test.support.bulk import FIRST_MS
from system_test.support.programs import run
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


def test_a_target_created_again_is_not_proved(site: Site, topic_name: str, copy: str) -> None:
    replay(site, topic_name, copy)
    delete_topic(site.bootstrap, copy)
    create_topic(site.bootstrap, copy, 3)
    done = site.replayer("verify", "--job", topic_name, *site.kafka, check=1)
    assert "is not the one that job" in done.stderr


def test_a_target_that_lost_records_of_the_job_is_not_resumed(site: Site, topic_name: str, copy: str) -> None:
    """As after an unclean leader election: the topic is the same, and ends below what was written."""
    replay(site, topic_name, copy, "--to", "10")
    segment = max((Path(site.env["XDG_STATE_HOME"]) / "blockgz" / "jobs" / topic_name / "runs").iterdir())
    told = json.loads(segment.read_bytes())
    told.pop("crc32")
    told["runs"][-1][4] += 100_000
    segment.write_bytes(json.dumps(told, separators=(",", ":")).encode())
    named = ("--to-topic", copy, "--yes", "--job", topic_name, "--resume", "--to", "10")
    done = site.replayer("replay", topic_name, *named, *site.kafka, check=1)
    assert "lacks records that this job wrote to it" in done.stderr
