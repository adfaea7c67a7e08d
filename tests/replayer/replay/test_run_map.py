"""The run map: what was handed over, matched with what the cluster took."""

import random

import numpy as np

from replayer.replay.run_map import Outstanding, Run, joined


def offsets(*numbers: int) -> object:
    return np.array(numbers, np.int64)


def test_a_run_ends_where_source_or_target_do() -> None:
    known = Outstanding[str]()
    known.sent(3, 0, offsets(5, 6, 9))
    known.sent(3, 0, offsets(10, 11))
    known.sent(3, 1, offsets(7))
    known.sent(3, 0, offsets(12))
    known.mark("all")
    known.took({3: offsets(100, 101, 102, 104, 105, 106, 107)})
    assert known.due() == (
        [Run(0, 5, 10, 3, 100, 3), Run(0, 10, 12, 3, 104, 2), Run(1, 7, 8, 3, 106, 1), Run(0, 12, 13, 3, 107, 1)],
        "all",
    )
    assert known.due() == ([], None)


def test_a_mark_is_due_once_all_before_it_is_taken() -> None:
    known = Outstanding[int]()
    known.mark(0)
    known.sent(0, 0, offsets(0, 1, 2, 3))
    known.mark(1)
    known.sent(1, 0, offsets(4))
    known.sent(0, 0, offsets(5))
    known.mark(2)
    assert known.due() == ([], 0)
    known.took({0: offsets(10, 11, 12)})
    assert known.due() == ([], None)
    known.took({0: offsets(13, 14)})
    assert known.due() == ([Run(0, 0, 4, 0, 10, 4)], 1), "what is behind the mark waits for its own"
    assert known.rest() == [Run(0, 5, 6, 0, 14, 1)]
    known.took({1: offsets(0)})
    assert known.due() == ([Run(0, 4, 5, 1, 0, 1)], 2)


def test_a_sink_that_tells_no_offsets_has_marks_and_no_runs() -> None:
    known = Outstanding[int]()
    known.sent(0, 0, offsets(0, 1))
    known.mark(1)
    known.took(None)
    assert known.due() == ([], 1)
    assert known.rest() == []


def test_runs_are_exactly_what_was_sent() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for number in range(20):
        send_and_take(random.Random(seed + number))


def send_and_take(randomly: random.Random) -> None:
    """Sends and takes at random, and compares the runs with what went where."""
    known = Outstanding[int]()
    sent: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    taken: dict[int, list[int]] = {0: [], 1: []}
    ends = {0: 0, 1: 0}
    nexts = [0, 0, 0]
    runs: list[Run] = []
    for step in range(60):
        lane, source = randomly.randrange(2), randomly.randrange(3)
        made = []
        for _ in range(randomly.randrange(1, 6)):
            nexts[source] += randomly.choice([1, 1, 1, 3])
            made.append(nexts[source])
        known.sent(lane, source, offsets(*made))
        sent[lane] += [(source, each) for each in made]
        if randomly.random() < 0.5:
            known.mark(step)
        for number in (0, 1):
            count = randomly.randrange(len(sent[number]) - len(taken[number]) + 1)
            told = []
            for _ in range(count):
                ends[number] += randomly.choice([1, 1, 1, 2])
                told.append(ends[number])
            taken[number] += told
            known.took({number: offsets(*told)})
        runs += known.due()[0]
    runs += known.rest()
    for lane in (0, 1):
        wanted = dict(zip(taken[lane], sent[lane], strict=False))
        found = {}
        for run in (run for run in runs if run.lane == lane):
            inside = range(run.target_start, run.target_end)
            assert len(inside) == run.records
            spans = [wanted[at] for at in inside]
            assert {source for source, _ in spans} == {run.source}
            assert (spans[0][1], spans[-1][1] + 1) == (run.start, run.end)
            found.update(dict.fromkeys(inside))
        assert found.keys() == wanted.keys()


def test_neighbours_are_joined() -> None:
    runs = [Run(0, 0, 5, 1, 10, 5), Run(0, 7, 9, 1, 15, 2), Run(0, 9, 10, 1, 18, 1), Run(1, 0, 1, 1, 19, 1)]
    assert list(joined(runs)) == [Run(0, 0, 9, 1, 10, 7), *runs[2:]]
