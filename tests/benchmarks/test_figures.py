"""From runs to figures."""

import pytest

from benchmarks.figures import faster, marginal, percentile, processor_bound, row, slope
from benchmarks.measure import Cost, ProgramFailed, interleaved, run


def costs(*seconds: float) -> list[Cost]:
    return [Cost(each, each / 2, int(each * 100)) for each in seconds]


def test_a_row_has_medians_and_the_highest_peak():
    made = row(costs(3, 1, 2), records=10, raw_bytes=100, stored_bytes=5)
    assert (made["seconds"], made["cpu_seconds"], made["peak_bytes"]) == (2, 1, 300)
    assert made["runs"] == [3, 1, 2]
    assert made["stored_bytes"] == 5


def test_faster_is_above_one_where_ours_takes_less_time():
    assert faster({"seconds": 2.0}, {"seconds": 3.0}) == 1.5


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5], 50, 5),
        ([1, 2, 3, 4], 50, 2),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 201)), 99, 198),
        ([2, 1], 0, 1),
    ],
)
def test_percentiles_are_values_that_occurred(values: list[float], percent: float, expected: float):
    assert percentile(values, percent) == expected


def test_the_slope_is_the_exponent_of_growth():
    assert slope([(1, 3), (4, 12), (16, 48)]) == pytest.approx(1)
    assert slope([(1, 5), (4, 5), (16, 5)]) == pytest.approx(0)
    assert slope([(1, 1), (4, 16)]) == pytest.approx(2)


def test_marginal_growth_is_without_the_first_point():
    """Two seconds of start-up would make linear work look flatter than it is."""
    points = [(0, 2.0), (1, 2.5), (4, 4.0), (16, 10.0)]
    assert slope(points[1:]) < 0.7
    assert slope(marginal(points)) == pytest.approx(1)


def test_marginal_growth_of_a_quicker_run_is_hardly_anything():
    assert marginal([(0, 2.0), (1, 1.9)]) == [(1, 1e-9)]


def test_the_processor_bound_shares_all_work_out():
    assert processor_bound(2, {"cpu_seconds": 3.0}, {"cpu_seconds": 1.0}) == 2


def test_runs_take_turns():
    order: list[str] = []

    def action(name: str) -> Cost:
        order.append(name)
        return Cost(1, 1, 1)

    found = interleaved({"a": lambda: action("a"), "b": lambda: action("b")}, 2, lambda _: None)
    assert order == ["a", "b", "a", "b"]
    assert {name: len(each) for name, each in found.items()} == {"a": 2, "b": 2}


def test_a_process_is_measured():
    busy = "import time\nheld = bytearray(64 << 20)\nwhile time.process_time() < 0.3: pass\nprint(len(held))"
    done = run(["/usr/bin/env", "python3", "-c", busy])
    assert done.json == 64 << 20
    assert 0.3 <= done.cost.cpu_seconds <= done.cost.seconds + 0.1, "one thread takes no more than the time"
    assert done.cost.seconds >= 0.3
    assert done.cost.peak_bytes > 64 << 20


def test_a_small_process_does_not_inherit_our_peak():
    held = bytearray(300 << 20)
    assert run(["/bin/true"]).cost.peak_bytes < 64 << 20
    del held


def test_a_program_that_fails_ends_the_run_with_its_words():
    with pytest.raises(ProgramFailed, match=r"(?s)ended with 3.*no luck"):
        run(["/bin/sh", "-c", "echo no luck >&2; exit 3"])
