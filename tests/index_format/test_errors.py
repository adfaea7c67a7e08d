import pickle

import pytest

from index_format.errors import BlockgzError, CorruptBlock


@pytest.mark.parametrize(
    "error",
    [
        BlockgzError("what", why="why", remedy="remedy"),
        CorruptBlock("what"),
    ],
)
def test_errors_travel_between_processes(error: BlockgzError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
