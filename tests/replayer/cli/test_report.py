"""What a verification says that a signal ends."""

from asyncio import CancelledError

import pytest

from replayer.cli.report import naming_what_is_left


@pytest.mark.parametrize("signalled", [KeyboardInterrupt, CancelledError])
def test_partitions_that_are_left_are_named(signalled: type[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(signalled), naming_what_is_left(["a:0", "a:1", "a:2"], lambda: 1):
        raise signalled
    assert capsys.readouterr().err == "note: ended with 2 of 3 partitions left: a:1, a:2\n"


def test_a_failure_speaks_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="wrong"), naming_what_is_left(["a:0"], lambda: 0):
        raise ValueError("wrong")
    assert capsys.readouterr().err == ""
