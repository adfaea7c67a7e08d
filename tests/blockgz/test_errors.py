import pickle
from collections.abc import Iterable

import pytest

from blockgz.errors import NoArchiveThere, ObjectMissing, StoreUnavailable, UsageError, exit_code, listed
from index_format.errors import (
    BadName,
    BlockgzError,
    CorruptBlock,
    FormatError,
    MalformedObject,
    TooLarge,
    UnsupportedVersion,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BlockgzError("what"), 1),
        (FormatError("what"), 3),
        (MalformedObject("what"), 3),
        (CorruptBlock("what"), 3),
        (TooLarge("what"), 3),
        (UnsupportedVersion("what"), 1),
        (BadName("what"), 2),
        (UsageError("what"), 2),
        (NoArchiveThere("what"), 10),
        (ObjectMissing("key"), 3),
        (StoreUnavailable("what"), 1),
    ],
)
def test_exit_codes(error: BlockgzError, code: int) -> None:
    assert exit_code(error) == code
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), exit_code(again)) == (type(error), str(error), code)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "no topics"),
        (("a",), "a"),
        (range(10), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (range(11), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1 more"),
    ],
)
def test_a_list_names_ten(names: Iterable[object], text: str) -> None:
    assert listed(names, "no topics") == text
