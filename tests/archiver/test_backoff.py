import threading

import pytest

from archiver.backoff import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, StoreBackoff, backoff_seconds
from archiver.errors import ShuttingDown, StoreUnavailable


def test_waits_double_up_to_the_longest_however_long_an_outage_lasts() -> None:
    waits = [backoff_seconds(attempt) for attempt in (0, 1, 2, 7, 8, 10**6)]
    assert waits[:4] == [FIRST_BACKOFF_SECONDS * factor for factor in (1, 2, 4, 128)]
    assert waits[4:] == [LONGEST_BACKOFF_SECONDS] * 2


def test_a_run_that_ends_cuts_a_wait_short() -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(ShuttingDown) as caught:
        StoreBackoff("s3://bucket", abandoned, None)(10**6, "no answer")
    assert caught.value.why == "no answer"


def test_a_bounded_run_gives_up() -> None:
    with pytest.raises(StoreUnavailable, match="s3://bucket failed 31 times in a row"):
        StoreBackoff("s3://bucket", threading.Event(), 30)(31, "no answer")
