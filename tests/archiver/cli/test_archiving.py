"""How one process of `archiver run` ends by a signal."""

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from archiver.cli import run as archiving
from archiver.cli.run import RunResult, archive, run_exit_code
from archiver.ingest.assignment import WHOLE
from archiver.ingest.service import ArchiverService
from blockgz.config.model import RunConfig
from blockgz.errors import StoreUnavailable


class BusyStore(ArchiverService):
    """Its store does not answer until it is told to end."""

    def __init__(self, *arguments: Any, number: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._number = number

    def run(self) -> None:
        os.kill(os.getpid(), self._number)
        assert self.ending.wait(10)
        raise StoreUnavailable("the store is overloaded")


@pytest.fixture
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_kept")
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_told_to_end_before_the_store_answers(
    number: signal.Signals, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "ArchiverService", lambda *given, **named: BusyStore(*given, number=number, **named))

    def ended(*, once: bool) -> int:
        config = RunConfig(archive=str(tmp_path), bootstrap_servers="127.0.0.1:1", topics=("orders",), once=once)

        def report(result: RunResult) -> int:
            assert not result.partitions
            return run_exit_code(result, once=once)

        return archive(config, WHOLE, report, nullcontext(lambda _: None))

    assert ended(once=True) == expected
    with pytest.raises(StoreUnavailable):
        ended(once=False)
