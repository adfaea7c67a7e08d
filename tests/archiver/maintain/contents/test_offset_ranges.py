"""Sets of offsets as ranges, against plain sets."""

import random

import numpy as np

from archiver.maintain.rewrite.chunks import OffsetRanges
from index_format.chunk_index import Erased


def test_sets_of_offsets_agree_with_plain_sets() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        spans = [range(start, start + rng.randrange(0, 6)) for start in rng.choices(range(40), k=rng.randrange(6))]
        plain = {offset for span in spans for offset in span}
        ranges = OffsetRanges(spans)
        assert {offset for span in ranges for offset in span} == plain
        assert all(before.stop < after.start for before, after in zip(ranges, list(ranges)[1:], strict=False))
        assert ranges.num_offsets == len(plain)
        singles = rng.sample(sorted(plain), len(plain))
        assert OffsetRanges.of_offsets(np.array(singles, np.int64)) == ranges
        offsets = np.arange(50)
        assert ranges.mask(offsets).tolist() == [offset in plain for offset in range(50)]
        start, end = sorted(rng.choices(range(50), k=2))
        assert ranges.meets(start, end) == any(start <= offset < end for offset in plain)
        others = {offset for offset in range(50) if rng.random() < 0.4}
        taken = OffsetRanges(range(offset, offset + 1) for offset in others)
        assert {offset for span in ranges - taken for offset in span} == plain - others
        assert {offset for span in ranges | taken for offset in span} == plain | others


def test_ranges_that_touch_are_one_as_an_index_lists_them() -> None:
    assert OffsetRanges([range(5, 7), Erased(0, 3), range(3, 4)]).erased() == (Erased(0, 4), Erased(5, 7))
    assert len(OffsetRanges()) == 0
    assert not OffsetRanges().meets(0, 10)
