"""Storms in short, and what counts as an end that nobody made; the long ones are part of `make long`."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from system_test.storms.restarts import AUTHORIZER, storm_of_restarts
from system_test.storms.takeovers import REFUSED, Life, storm_of_takeovers
from system_test.support.kafka_broker import KafkaBroker
from tests.support.sampling import in_long_run

SEED = 1


@pytest.mark.parametrize(
    ("code", "sent", "is_expected"),
    [
        (REFUSED, set(), True),
        (0, {signal.SIGTERM}, True),
        (-signal.SIGKILL, {signal.SIGKILL}, True),
        (0, set(), False),
        (1, {signal.SIGTERM}, False),
        (-signal.SIGKILL, {signal.SIGTERM}, False),
        (-signal.SIGSEGV, {signal.SIGKILL, signal.SIGTERM}, False),
    ],
)
def test_an_end_that_nobody_made_is_unexpected(code: int, sent: set[int], is_expected: bool) -> None:
    process: Any = SimpleNamespace(exitcode=code)
    assert Life("a", process, Path("unused"), sent).is_expected == is_expected


@in_long_run
def test_archivers_are_taken_over(broker: KafkaBroker, tmp_path: Path) -> None:
    outcome = storm_of_takeovers(broker, tmp_path, 20, SEED)
    assert not outcome.unexpected, outcome


@in_long_run
def test_everything_is_asked_while_a_broker_restarts() -> None:
    with KafkaBroker(AUTHORIZER) as broker:
        outcome = storm_of_restarts(broker, 2, SEED)
    assert not outcome.unexpected, outcome
