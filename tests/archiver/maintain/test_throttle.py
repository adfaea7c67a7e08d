"""Bytes a second, and an end at the next step."""

import threading

import pytest

from archiver.maintain.throttle import Throttle
from blockgz.errors import ShuttingDown


class Ending(threading.Event):
    """Waits no time, and keeps for how long it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return self.is_set()


def test_each_part_waits_until_the_one_before_is_paid_for() -> None:
    ending = Ending()
    throttle = Throttle(10, ending, lambda: ending.now)
    begun = []
    for num_bytes in (50, 5, 10):
        throttle.take(num_bytes)
        begun.append(ending.now)
    assert begun == [100, 105, 105.5]
    ending.now = 200
    throttle.take(1)
    assert ending.now == 200, "what was not used before is not saved"
    assert throttle.taken == 66
    ending.set()
    with pytest.raises(ShuttingDown):
        throttle.take(1)
    assert throttle.taken == 66
