import pickle

import pytest

from blockgz_runtime.errors import NoArchiveThere, ObjectMissing, StoreUnavailable, UsageError, exit_code
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
