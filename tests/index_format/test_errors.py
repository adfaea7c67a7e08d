import pickle

import pytest

from index_format.errors import BlockgzError, CorruptBlock, UnencodableRecord


@pytest.mark.parametrize(
    "error",
    [
        BlockgzError("what", why="why", remedy="remedy"),
        CorruptBlock("what"),
        UnencodableRecord(17, "it is too odd"),
    ],
)
def test_errors_travel_between_processes(error: BlockgzError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again), again.exit_code) == (str(error), vars(error), error.exit_code)
