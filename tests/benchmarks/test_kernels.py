"""The measurement of the C extension: both ways make the same of the same records."""

from typing import Any

import pytest

from benchmarks.kernels import RECORDS, SIZES, batch_of, cheapest, works
from index_format.record_formats.lines import EncodedLines


@pytest.mark.parametrize("size", SIZES.values())
def test_both_ways_make_the_same(size: int) -> None:
    for name, (in_c, in_python) in works(batch_of(size)).items():
        assert _plain(in_c()) == _plain(in_python()), name


def test_the_cheapest_round_counts_and_each_way_has_its_own() -> None:
    quick, slow = cheapest((lambda: None, lambda: sum(range(RECORDS * 20))), 3)
    assert 0 <= quick < slow


def _plain(made: Any) -> Any:
    if isinstance(made, EncodedLines):
        return bytes(made.data), made.ends.tolist()
    return [bytes(each) for each in made] if isinstance(made, tuple) else made
