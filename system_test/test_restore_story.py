"""A cluster of all kinds of topics is killed in mid-traffic; in another one its consumers go on where they stood."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from system_test.restore_story.going_on import go_on
from system_test.restore_story.judge import judged
from system_test.restore_story.losing import ENDED, PARTITIONS, Lost, lose
from system_test.restore_story.notes import Asked, Found, Kept, Moved, Note, NoteBook, Stamped, Written
from system_test.support.archiving import Site, folder_site
from system_test.support.consumer_groups import committed, consuming
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import start
from system_test.support.topics import read, topic_names
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import LONG, mostly_long

KILLS = int(os.environ.get("BLOCKGZ_RESTORE_KILLS", "2"))
RECORDS, SECONDS = (20_000, 20.0) if LONG else (300, 2.0)
GROUPS = {"behind", "at-the-end", "ahead", "in-a-hole", "in-an-abort"}
OLDEST_MS = 5000
GZIP = ("-X", "compression.type=gzip")
"""kafka-python reads no lz4 here."""


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    home = tmp_path_factory.mktemp("story")
    (home / "notes").mkdir()
    with KafkaBroker() as broker:
        yield lose(broker, folder_site(broker.bootstrap, home / "archive"), home / "notes", RECORDS, SECONDS)


@pytest.fixture
def target(lost: Lost, new_broker: KafkaBroker, tmp_path: Path) -> Site:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return dataclasses.replace(lost.site, bootstrap=new_broker.bootstrap, env=env)


def judge(lost: Lost, at: int, target: Site, notes: Path, topics: dict[str, int], prefix: str = "") -> dict[str, Any]:
    """What the judge says of the target, beside the notes of the source."""
    book = NoteBook(notes)
    lost.note_archive(book, at, topics)
    assert go_on(target.bootstrap, book, prefix) == set(topics)
    command = [sys.executable, "-m", "system_test.restore_story.judge", at, OLDEST_MS, *lost.notes, notes]
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, check=False)
    print(done.stdout.decode())
    verdict: dict[str, Any] = json.loads(done.stdout)
    assert (verdict["faults"], done.returncode) == ([], 0)
    return verdict


@pytest.mark.timeout(1200 if LONG else 300)
def test_consumers_go_on_where_they_stood_at_a_moment(lost: Lost, target: Site, tmp_path: Path) -> None:
    # By Kafka's rule: a group that is ahead of its copy has to be moved.
    restore = ("restore", "--at", f"@{lost.at}", "--at-rule", "first", "--yes", *GZIP, *target.kafka)
    report = tmp_path / "restored.json"
    told = target.replayer_json(*restore, "--report", report)
    assert told["verdict"] == "OK", told
    assert json.loads(report.read_bytes())["topics"] == told["topics"]
    assert [each for each in told["group_notes"] if each.startswith("group ahead") and "lies above the copy" in each]
    verdict = judge(lost, lost.at, target, tmp_path / "found", PARTITIONS)
    assert set(verdict["groups"]) == {*GROUPS, "gone", "following"}
    assert (verdict["lost"], verdict["above"] > 0) == (0, True)
    elsewhere = ("--name", "third", "--map", r"(.*)=third.\1", "--group-map", r"(.*)=third.\1", "--dry-run")
    for more, why in (
        ((), "has begun already"),
        (("--name", "another"), "exists: give the restored one another name with --map"),
        ((*elsewhere, "--replication-factor", "3"), "cannot be created"),
    ):
        assert why in target.replayer(*restore, *more, check=2).stderr


def test_an_edited_plan_and_topics_that_are_refused_or_fail(lost: Lost, target: Site, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    names = ("--name", "edited", "--map", r"(.*)=edited.\1", "--group-map", r"(.*)=edited.\1")
    target.replayer("restore", "--at", f"@{lost.end}", "--at-rule", "majority", *names, "--plan", file, *target.kafka)
    plan = json.loads(file.read_bytes())
    wanted = {"edited.one": "edited", "edited.stamped": "refused", "edited.big": "damaged"}
    plan["topics"] = [each | {"target": wanted[each["target"]]} for each in plan["topics"] if each["target"] in wanted]
    for each in plan["topics"]:
        each["settings"] |= {"max.message.bytes": "none"} if each["target"] == "refused" else {}
    file.write_text(json.dumps(plan))
    planned = ("restore", "--from-plan", file, "--name", "edited", "--yes", *GZIP, *target.kafka)
    assert "topic 'refused' cannot be created" in target.replayer(*planned, check=2).stderr
    file.write_text(json.dumps(plan | {"partial": True}))
    with damaged(min(Path(lost.site.address, "topic=big/partition=00000").glob("*.gz"))):
        told = target.replayer_json(*planned, check=3)
    found = {each["target"]: each for each in told["topics"]}
    states = {"edited": "restored", "refused": "refused", "damaged": "failed"}
    assert {name: each["state"] for name, each in found.items()} == states
    assert "cannot be created" in found["refused"]["error"]
    assert any("group edited.behind is not set: it has positions in damaged" in note for note in told["group_notes"])
    assert found["edited"]["proof"] == "OK" and len(read(target.bootstrap, "edited")) == found["edited"]["records"] > 0
    assert committed(target.bootstrap, "edited.behind", "edited", [0]) == {0: None}


@contextmanager
def damaged(file: Path) -> Iterator[None]:
    """The file with another byte in its middle, for the time of the block."""
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    try:
        yield
    finally:
        file.write_bytes(whole)


@pytest.mark.timeout((1200 if LONG else 240) + 10 * KILLS)
@pytest.mark.parametrize("moment", mostly_long(["at", "end"]))
def test_a_restore_that_is_killed_continues(lost: Lost, target: Site, tmp_path: Path, moment: str) -> None:
    """What was written last was not archived: of the end, groups that had read it go on at the end of what was."""
    randomly = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    at, left_out, group = (lost.at, (), "gone") if moment == "at" else (lost.end, ENDED, "later")
    topics = {topic: count for topic, count in PARTITIONS.items() if topic not in left_out}
    names = ("--map", r"(.*)=last.\1", "--group-map", r"(.*)=last.\1", "--name", "last")
    when = ("--at", f"@{at}", "--at-rule", "first")  # a group may have read more than was archived
    command = ("restore", *when, *topics, *names, "--yes", "--json", *GZIP, *target.kafka)
    planned = target.replayer_json(*command, "--dry-run")
    slowly = ("--rate", f"{planned['totals']['records'] // KILLS}/s")
    folder = Path(target.env["XDG_STATE_HOME"], "blockgz/jobs/last")

    def resumed() -> tuple[str, ...]:
        return ("--resume",) if (folder / "restore.json").exists() else ()

    def kill_when(condition: Callable[[], object], number: signal.Signals = signal.SIGKILL) -> int:
        with start("replayer", *command, *slowly, *resumed(), *target.archive, env=target.env) as running:
            wait_until(lambda: condition() or not running.alive, 60, "the moment to kill", longest_pause=0.01)
            running.signal(number)
            return running.wait(30).exit_code

    def after(seconds: float) -> Callable[[], bool]:
        kill_at = time.monotonic() + seconds
        return lambda: time.monotonic() > kill_at

    kill_when(lambda: any(name.startswith("last.") for name in topic_names(target.bootstrap)))
    for _ in range(KILLS):
        kill_when(after(randomly.uniform(0.8, 4)))
    assert kill_when(after(randomly.uniform(2, 4)), signal.SIGTERM) in (0, -signal.SIGTERM, 143)
    kill_when(lambda: len(list(folder.glob("topics/*.json"))) == len(topics))
    if not (folder / "groups.json").exists():
        with consuming(target.bootstrap, "last.behind", otherwise="earliest") as consumer:
            consumer.subscribe(["last.one"])
            consumer.poll(timeout_ms=10_000)
            told = json.loads(target.replayer(*command, *resumed(), check=3, timeout=120).stdout)
            assert "consumers are at work in group" in told["groups_error"]
        assert committed(target.bootstrap, "last.behind", "last.one", [0]) == {0: None}
    told = json.loads(target.replayer(*command, *resumed(), timeout=120).stdout)
    assert told["verdict"] == "OK", told
    verdict = judge(lost, at, target, tmp_path / "found", topics, "last.")
    assert set(verdict["groups"]) == {*GROUPS, group, "following"}


def test_a_sample_is_proved_and_what_is_not_compared_is_said(site: Site, tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "archive").partition("orders", 0)
    writer.commit(records(range(60_000), value_bytes=20), block_bytes=1 << 16)

    def restored(how: str, *more: str) -> Any:
        names = ("--map", rf"(.*)={how}.{tmp_path.name}.\1")
        return site.replayer_json("restore", "--at", "-0h", "--yes", "--prove", how, *names, *more, *site.kafka)

    sampled = restored("sample", "--sample", "1%")
    (topic,) = sampled["topics"]
    assert (sampled["verdict"], topic["proof"], sampled["sample"]["share"]) == ("SAMPLED", "SAMPLED", 0.01)
    (note,) = (each for each in topic["notes"] if each.startswith("sampled:"))
    compared = 60_000 - int(note.split()[1])
    assert 0 < compared <= 30_000, "the first piece, the last and one more: 10,000 records each, fewer where a run ends"
    assert restored("none")["verdict"] == "UNPROVED"


NOTES = [
    *(Written("t", 0, offset, 100 + offset, f"r{offset}", "committed") for offset in (0, 1, 4, 5, 6, 7)),
    Written("t", 0, 3, 103, "r3", "aborted"),
    Written("t", 0, None, 108, "r8", "unknown"),
    Moved("g", "t", 0, 3, 50, 51),
    Moved("g", "t", 0, 6, 105, 107),
    Asked("g", "t", 104),
    Kept("t", 0, 8),
]
WHOLE = [Stamped(f"r{offset}", 100 + offset) for offset in (0, 1, 4, 5)]


def faults(whole: list[Stamped], group: list[Stamped] | None, at: int = 106, more: tuple[Note, ...] = ()) -> str:
    found = [Found(None, "t", 0, tuple(whole)), *([] if group is None else [Found("g", "t", 0, tuple(group))])]
    return "; ".join(judged([*NOTES, *found, *more], at, 10).faults)


def test_the_judge_finds_nothing_wrong_where_nothing_is() -> None:
    assert faults(WHOLE, WHOLE[2:]) == ""
    verdict = judged([*NOTES, Found(None, "t", 0, tuple(WHOLE)), Found("g", "t", 0, tuple(WHOLE[2:]))], 106, 10)
    assert (verdict.partitions, verdict.records, verdict.groups, verdict.read_on) == (1, 4, {"g"}, 2)
    later = [*WHOLE, Stamped("r6", 106), Stamped("r7", 107)]
    assert faults(later, later[2:], 108) == ""
    assert faults([*later, Stamped("r8", 108)], [*later[2:], Stamped("r8", 108)], 109) == ""


@pytest.mark.parametrize(
    ("whole", "group", "fault"),
    [
        (WHOLE[1:], WHOLE[2:], "1 records are missing, the first is Numbered(offset=0"),
        (WHOLE, WHOLE[3:], "g in t:0, from 3: 1 records are missing"),
        (WHOLE, [], "g in t:0, from 3: 2 records are missing"),
        ([*WHOLE, WHOLE[3]], WHOLE[2:], "came more than once"),
        (WHOLE, [WHOLE[2], *WHOLE[2:]], "g in t:0, from 3: 1 records came more than once"),
        (WHOLE, WHOLE[1:], "g in t:0, from 3: 1 records lie before the position"),
        (WHOLE[::-1], WHOLE[2:], "not in order"),
        ([*WHOLE, Stamped("r3", 103)], WHOLE[2:], "should not be there"),
        ([*WHOLE, Stamped("r6", 106)], WHOLE[2:], "should not be there"),
        ([*WHOLE[:3], Stamped("r5", 999)], WHOLE[2:], "1 records are missing"),
        (WHOLE, None, "g did not read on in t:0"),
    ],
)
def test_the_judge_sees(whole: list[Stamped], group: list[Stamped] | None, fault: str) -> None:
    assert fault in faults(whole, group)


def test_the_judge_sees_what_was_not_looked_at() -> None:
    assert judged([], 106, 10).faults == ["nothing was to be restored"]
    assert "t:0 was read 0 times" in judged(NOTES, 106, 10).faults
    more = Found("stranger", "t", 0, ())
    assert faults(WHOLE, WHOLE[2:], more=(more,)) == "t:0 was read by stranger, and is not known"
    assert "asked too long ago" in faults(WHOLE, WHOLE[2:], 120)


def test_the_judge_knows_no_code_of_the_project() -> None:
    command = "import sys, system_test.restore_story.judge; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.decode().split()}
    assert not packages & {"archiver", "replayer", "index_format", "blockgz"}
