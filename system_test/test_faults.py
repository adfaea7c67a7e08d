"""A short shard of the fault campaign; the long one is `make faults`."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from system_test.checker import CheckedPartition, Gap
from system_test.faults.asked import Asked, Erase, Loss
from system_test.faults.checker import Checker, Ledgers, Life, Part, Seen, Sent, load
from system_test.faults.positions import Fate, Holding, Outages, Process, holdings
from system_test.faults.schedule import FaultKind, schedule
from system_test.support.topics import Record

SEED = os.environ.get("BLOCKGZ_SEED", "shard-28")
DISRUPTIONS = 40
STORE_FAULTS = 220
OF_OTHERS = {"broker-kill", "broker-freeze", "store-kill", "recreate", "grow", "truncate", "retention", "lose"}


def test_the_schedule_is_a_function_of_the_seed() -> None:
    first, again, other = (
        [str(fault) for fault in itertools.islice(schedule(seed, 2.0), 200)] for seed in ("a", "a", "b")
    )
    assert first == again != other


def test_a_short_schedule_has_every_kind() -> None:
    kinds = {fault.kind for fault in itertools.islice(schedule(f"{SEED}/1", 2.0), DISRUPTIONS)}
    assert kinds == set(FaultKind)


IN_HAND = [
    # how the claim ended, exit code of the process, epoch of the marker in the end, what is owed of [10, 40)
    (["end", 0, 99.0, None, True, 30], 0, 7, 40),
    (["end", 0, 99.0, "PartitionUnavailable", True, 30], 0, 8, 40),
    (["end", 0, 99.0, "TopicChanged", True, 30], 0, 7, 30),
    (["end", 0, 99.0, "Fenced", True, 30], 0, 8, 10),
    (["end", 0, 99.0, "Fenced", True, 30], 0, 7, 40),
    (["end", 0, 99.0, None, False, 30], 0, 7, 10),
    (["end", 0, 150.0, None, False, 30], 0, 7, 40),
    (["end", 0, 215.0, None, False, 30], 0, 7, 10),
    (None, -9, 7, 10),
    (None, 0, 7, 10),
    (None, 1, 7, 10),
]


@pytest.mark.parametrize(("end", "exit_code", "epoch", "owed"), IN_HAND)
def test_only_what_killed_or_fenced_writers_held_is_excused(
    end: list[object] | None, exit_code: int, epoch: int, owed: int, tmp_path: Path
) -> None:
    lines = [["claim", 0, "id", "orders", 3, 7, 10], ["fetched", 0, 20], ["fetched", 0, 40], *([end] if end else [])]
    (tmp_path / "first-0001.positions").write_text("".join(json.dumps(line) + "\n" for line in lines) + '["fetc')
    refused = [
        ("slow", 90.0, "/archive/topic%3Dorders/partition%3D00003/x"),
        ("slow", 149.0, "/archive/topic%3Dorders/partition%3D00004/x"),
        ("stall", 155.0, "/archive/topic%3Dorders/partition%3D00003/x"),
    ]
    journal = tmp_path / "store-faults.jsonl"
    entries = [{"at": at, "fault": fault, "path": path} for fault, at, path in refused]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    processes = {"first-0001": Process(exit_code, 100.0)}
    (holding,) = holdings(tmp_path, processes, Outages.load(journal, []), {("id", 3): epoch})["id", 3]
    assert (holding.start, holding.fetched, holding.owed) == (10, 40, owed)


def test_a_record_in_the_hand_of_an_orderly_writer_is_lost_without_excuse(tmp_path: Path) -> None:
    def verdict(*held: Holding) -> list[str]:
        checker = Checker(tmp_path, "b:1", Ledgers(), {("id", 3): held})
        checker._excuse("orders:3", ("id", 3), [15, 25, 35])
        return checker.verdict.violations

    killed = Holding("first", 7, 10, 40, 10, Fate.KILLED, None)
    assert not verdict() and not verdict(killed)
    (broken,) = verdict(killed, Holding("second", 8, 20, 30, 30, Fate.ORDERLY, None))
    assert broken.startswith("orders:3: 1 records are lost") and "first 25 last 25: second [20, 30)" in broken


@pytest.mark.parametrize(("start", "is_broken"), [(0, True), (7, False)])
def test_a_record_acknowledged_without_an_offset_is_archived(start: int, is_broken: bool, tmp_path: Path) -> None:
    """A client that resends what a killed broker had written is told no offset."""
    sent = ["s", "id", 3, 1, None, "mark", "key", 5], ["s", "id", 3, 2, None, "mark", "key", 5]
    acknowledged = ["a", "id", 3, 1, 7], ["a", "id", 3, 2, None]
    (tmp_path / "plain.ledger").write_text("".join(json.dumps(line) + "\n" for line in (*sent, *acknowledged)))
    life = Life("orders", "id", 4, compacted=False, deleted=False, truncated_to={})
    marker = {"start_offset": start, "next_offset": 9}
    part = Part(life, HOME, 3, Seen(), CheckedPartition(marker, [], [], [], [], []))
    records = {7: Record(7, 5, 0, None, b"plain:1:", ())}
    checker = Checker(tmp_path, "b:1", load(tmp_path), {})
    checker._check_complete(part, records)
    checker._check_unplaced(part, {"plain:1"})
    assert checker.verdict.violations == (
        ["orders:00003: acknowledged without an offset and not archived: ['plain:2']"] if is_broken else []
    )
    checker.verdict.violations.clear()
    checker._check_unplaced(part, {"plain:1", "plain:2"})
    assert checker.verdict.violations == [] and checker.verdict.figures["acknowledged_without_offset"] == 2


def test_a_group_that_leaves_the_tables_is_missed(tmp_path: Path) -> None:
    home = tmp_path / "topic=orders" / "_groups"
    home.mkdir(parents=True)

    def verdict(*tables: list[str] | None) -> list[str]:
        for number, names in enumerate(tables):
            asked = {"groups_asked": False} if names is None else {}
            table = {"groups": [{"group_id": name} for name in names or ()], **asked}
            (home / f"{number}.json").write_bytes(gzip.compress(json.dumps(table).encode()))
        checker = Checker(tmp_path, "b:1", Ledgers(), {})
        checker.check_groups("orders", frozenset({"a", "b"}))
        return checker.verdict.violations

    assert not verdict(["a"], ["a", "b", "c"], None, ["a", "b"])
    assert verdict(["a", "b"], ["b"], None, None) == ["1.json of orders lacks groups that nobody deleted: ['a']"]
    assert verdict(["b"], ["b"], None, ["a"]) == ["no table of orders has all groups"]


HOME = "topic=orders/partition=00003/"
ERASE = Erase("orders", "asked", {HOME: 31}, {HOME: 32}, ended=100.0, is_done=True)


def maintained_part() -> tuple[Checker, Part]:
    """Pruned below 20 of records until 1,000 ms, and [30, 33) erased."""
    marker = {"maintenance": {"pruned_before": 20}, "start_offset": 0}
    life = Life("orders", "id", 4, compacted=False, deleted=False, truncated_to={})
    seen = Seen(frozenset({1, 2, 25, 30, 31, 32}))
    part = Part(life, HOME, 3, seen, CheckedPartition(marker, [], [], [], [], [range(30, 33)]))
    ledgers = Ledgers()
    for offset, key, timestamp in ((2, "other", 1000), (25, "other", 0), (30, "asked", 0), (31, "other", 0)):
        ledgers.sent[f"p:{offset}"] = Sent(("id", 3), None, f"mark-{offset}", key, timestamp)
        ledgers.offsets["id", 3][offset] = f"p:{offset}"
    return Checker(Path(), "b:1", ledgers, {}, Asked([ERASE], [], {"orders": 1000})), part


@pytest.mark.parametrize(
    ("offset", "key", "timestamp", "explained"),
    [
        (30, "asked", 5000, "erased"),
        (30, "other", 5000, None),  # nobody asked for it
        (32, "asked", 5000, None),  # archived after the erase had ended
        (34, "asked", 5000, None),  # the archive does not say that it was erased
        (1, "other", 999, "pruned"),
        (1, "other", 1000, None),  # younger than what was to be kept
        (5, "other", 999, None),  # it was never archived
        (25, "other", 999, None),  # above the floor
    ],
)
def test_only_what_was_asked_for_may_be_missing(offset: int, key: str, timestamp: int, explained: str | None) -> None:
    checker, part = maintained_part()
    assert checker._taken_out(part, offset, key, timestamp) == explained


@pytest.mark.parametrize(
    ("offset", "live", "is_given_up"),
    [
        (41, {40, 42}, True),
        (42, {40, 42}, True),  # its block does not come back without 41
        (41, {40, 41, 42}, False),  # Kafka has all of the block
        (43, set(), False),  # another block of the chunk, which could be read
        (50, set(), False),  # the archive does not say that it was lost
    ],
)
def test_only_what_was_lost_and_cannot_come_back_is_given_up(offset: int, live: set[int], is_given_up: bool) -> None:
    checker, part = maintained_part()
    gap = Gap(40, 44, "lost")
    seen = Seen(frozenset({40, 41, 42, 43, 50}))
    lost = replace(part, seen=seen, checked=replace(part.checked, gaps=[gap]))
    checker._asked.losses = [Loss(HOME, "gone", ["x.gz"], (40, 51), [(40, 43), (50, 51)], comes_back=True, at=1.0)]
    checker._read[HOME] = {at: Record(at, 0, 0, None, b"", ()) for at in live}
    assert checker._is_given_up(lost, offset) == is_given_up
    checker._check_gaps(lost)
    checker._check_gaps(replace(lost, checked=replace(lost.checked, gaps=[Gap(39, 44, "lost")])))
    (wrong,) = [each for each in checker.verdict.violations if "outside of the chunks that were lost" in each]
    assert "start=39" in wrong


@pytest.mark.parametrize(
    ("words", "opened", "is_excused"),
    [("x.gz is missing", 9.0, True), ("x.gz is missing", 11.0, False), ("y.gz is missing", 9.0, False)],
)
def test_a_reader_meets_damage_only_until_it_is_repaired(words: str, opened: float, is_excused: bool) -> None:
    lost = Loss(HOME, "gone", [f"{HOME}x.gz"], (0, 9), [(0, 9)], comes_back=True, at=1.0, closed=10.0)
    checker = Checker(Path(), "b:1", Ledgers(), {}, Asked([], [lost]))
    checker.check_answers([(opened, HOME, -1, "Damage", words)])
    assert (not checker.verdict.violations) == is_excused


@pytest.mark.parametrize(
    ("at", "offset", "kind", "words", "is_right"),
    [
        (99.0, 30, "Found", "mark-30", True),
        (99.0, 30, "Found", "mark-31", False),
        (101.0, 30, "Found", "mark-30", False),  # it was erased
        (101.0, 31, "Found", "mark-31", True),
        (101.0, 30, "Erased", "", True),
        (101.0, 31, "Erased", "", False),
        (101.0, 2, "Pruned", "", False),
        (101.0, 25, "Hole", "", False),
        (101.0, 26, "Hole", "", True),
        (101.0, -1, "Damage", "missing", False),
        (101.0, -1, "Unavailable", "no answer", True),
    ],
)
def test_what_a_reader_is_given_is_judged(at: float, offset: int, kind: str, words: str, is_right: bool) -> None:
    checker, part = maintained_part()
    checker._parts[HOME] = part
    checker.check_answers([(at, HOME, offset, kind, words)])
    assert (not checker.verdict.violations) == is_right


@pytest.mark.timeout(600)
def test_every_record_is_archived_once_whatever_fails(server_programs: None, tmp_path: Path) -> None:
    enough = ("--faults", DISRUPTIONS + STORE_FAULTS, "--disruptions", DISRUPTIONS, "--a-round", DISRUPTIONS)
    arguments = (*enough, "--gap", 2.2, "--store-rate", 0.25, "--seed", SEED)
    command = [sys.executable, "-m", "system_test.faults", *map(str, arguments), "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "state.json").read_text())["rounds"]
    of_archivers = sum(count for kind, count in figures["by_kind"].items() if kind not in OF_OTHERS)
    assert of_archivers >= 28
    assert figures["store_faults"] >= STORE_FAULTS
    assert figures["archived_records"] > 0
    assert figures["lost_in_hand_of"], "the shard is to lose records that were in hand, or that nobody had fetched"
    assert figures["deletions"], "maintainers are to replace something, and gc to delete it"
    assert figures["read_Found"]
    repaired = [how for how in figures["losses"] if not how.endswith(": ")]
    assert repaired, "an object is to be lost, and refetched or accepted as lost"
