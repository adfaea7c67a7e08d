"""A shard of the campaign of disrupted replays, and its judge; the long one is `make replay-faults`."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from index_format.records import Record
from system_test.replay_faults.campaign import Round
from system_test.replay_faults.checker import judged, rule
from system_test.replay_faults.schedule import Disruption, Kind, Mode, Plan, Routing, planned
from system_test.support.kafka_broker import KafkaBroker
from tests.support.sampling import mostly_long

Lanes = dict[int, list[Record]]


def test_rounds_are_functions_of_their_seeds_and_200_have_every_kind() -> None:
    plans = [planned(f"a/{number}") for number in range(200)]
    assert plans == [planned(f"a/{number}") for number in range(200)]
    assert {each.kind for plan in plans for each in plan.disruptions} == set(Kind)
    assert {(plan.mode, plan.routing) for plan in plans} == {(mode, routing) for mode in Mode for routing in Routing}


def partition(number: int) -> list[Record]:
    return [Record(10 + row, 1000 + row, 0, b"%d" % row, b"%d/%d" % (number, row), ()) for row in range(20)]


def lose(lanes: Lanes) -> None:
    del lanes[0][7]


def repeat(lanes: Lanes) -> None:
    lanes[0][9:9] = lanes[0][6:9]


def swap(lanes: Lanes) -> None:
    lanes[1][3], lanes[1][4] = lanes[1][4], lanes[1][3]


def misplace(lanes: Lanes) -> None:
    lanes[0].append(lanes[1].pop())


def alter(lanes: Lanes) -> None:
    lanes[0][5] = Record(15, 1005, 0, b"5", b"0/5", (("h", b"v"),))


def leave(_: Lanes) -> None:
    pass


@pytest.mark.parametrize(
    ("planted", "wrong"),
    [
        (leave, []),
        (lose, ["1 records lost"]),
        (repeat, ["3 records repeated"]),
        (swap, ["1 records out of order"]),
        (misplace, ["1 records misplaced"]),
        (alter, ["1 records lost", "1 records foreign"]),
    ],
)
def test_the_judge_finds_what_is_wrong(planted: Callable[[Lanes], None], wrong: list[str]) -> None:
    source = {number: partition(number) for number in range(2)}
    lanes = {number: list(records) for number, records in source.items()}
    planted(lanes)
    verdict = judged(source, lanes, rule(Routing.KEEP))
    assert verdict.violations(may_repeat=False) == wrong
    assert verdict.violations(may_repeat=True) == [each for each in wrong if "repeated" not in each]


def test_the_judge_knows_where_keys_belong() -> None:
    belongs = rule(Routing.BY_KEY)
    # What the tests of Kafka's Java client say of Utils.murmur2.
    for key, java in ((b"foobar", -790332482), (b"21", -973932308)):
        lane = (java & 0x7FFFFFFF) % Routing.BY_KEY.lanes
        record = Record(0, 1, 0, key, None, ())
        assert [belongs(0, record, each) for each in range(3)] == [each == lane for each in range(3)]
    folded = rule(Routing.FOLD)
    assert folded(3, Record(0, 1, 0, None, b"", ()), 1)


SHARD = {
    "by-key": (Mode.TRANSACTIONAL, Routing.BY_KEY, Kind.KILL, Kind.ZOMBIE, Kind.TERM),
    "folded": (Mode.IDEMPOTENT, Routing.FOLD, Kind.KILL, Kind.BROKER_KILL),
    "kept": (Mode.TRANSACTIONAL, Routing.KEEP, Kind.SOURCE_AGAIN, Kind.BROKER_KILL, Kind.TARGET_AGAIN),
    "gone": (Mode.IDEMPOTENT, Routing.FOLD, Kind.SECOND_RUN, Kind.TARGET_GONE_AT_REST),
    "frozen": (Mode.TRANSACTIONAL, Routing.KEEP, Kind.FREEZE, Kind.FROZEN_TERM, Kind.TARGET_AGAIN_AT_REST),
}
HANGING_SECONDS = 28.0
"""So long the broker of shard "frozen" hangs, longer than the client waits for an answer; `make long` runs it."""


@pytest.mark.parametrize("name", mostly_long(SHARD, 4))
def test_a_replay_is_right_or_says_why_not(name: str, broker: KafkaBroker, tmp_path: Path) -> None:
    mode, routing, *kinds = SHARD[name]
    disruptions = tuple(Disruption(kind, 0.15, 0.2, HANGING_SECONDS if kind is Kind.FREEZE else 1.0) for kind in kinds)
    plan = Plan(f"shard/{name}", mode, routing, 700, disruptions)
    figures = Round(plan, broker, tmp_path, f"copy-{uuid.uuid4().hex[:8]}", records=4000, proves=True).run()
    print(figures)
    assert figures["outcome"] == ("refused" if kinds[-1].ends_the_job else "complete")
    assert figures["by_kind"] == {kind.value: 1 for kind in kinds}
