"""An end in order has a bound, whatever still waits for an answer."""

import threading

from blockgz.process import ended_in_time

SECONDS = 10


def test_what_still_waits_when_the_time_is_over_is_left_behind() -> None:
    ending, left, codes = threading.Event(), threading.Event(), list[int]()

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    with ended_in_time(ending, 0.01, lambda _: 3, leave):
        assert not codes, "nobody has asked for the end yet"
        ending.set()
        assert left.wait(SECONDS)
    assert codes == [3]


def test_an_end_inside_its_time_is_nobodys_business() -> None:
    ending, codes = threading.Event(), list[int]()
    with ended_in_time(ending, SECONDS, lambda _: 3, codes.append):
        ending.set()
    (watching,) = [thread for thread in threading.enumerate() if thread.name == "ending"]
    watching.join(SECONDS)
    assert not watching.is_alive()
    assert not codes


def test_a_report_that_cannot_be_made_does_not_keep_the_process() -> None:
    ending, left, codes = threading.Event(), threading.Event(), list[int]()
    ending.set()

    def report(_: float) -> int:
        raise BrokenPipeError

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    with ended_in_time(ending, 0.01, report, leave):
        assert left.wait(SECONDS)
    assert codes == [1]
