"""`archiver run --once --workers N`: forks that drain a share of the partitions each, and one report of them all."""

import signal
import sys
from collections.abc import Callable, Sequence

from archiver.cli.archiving import Report, archive
from archiver.cli.signals import signals_held_back, stop_on_signals
from archiver.config.model import RunConfig
from archiver.errors import WorkerLost
from archiver.ingest.assignment import DrainShare
from archiver.ingest.ownership import PartitionReport
from archiver.ingest.workers import Ended, Forks, own_http
from blockgz_runtime.errors import PARTLY_FAILED
from blockgz_runtime.program.main import INTERRUPTED, print_failure
from index_format.errors import BlockgzError

Told = list[PartitionReport] | BlockgzError
"""What a fork did, or what kept it from its work."""


def drain_together(config: RunConfig, report: Report) -> int:
    """Drain the topics by `config.workers` forks; gives the exit code. Not before `prepare`."""

    def work(number: int, tell_parent: Callable[[Told], None]) -> None:
        _drain(config, DrainShare(number, config.workers), tell_parent)

    with signals_held_back():
        forks: Forks[Told] = Forks(config.workers, work)
        signals = stop_on_signals(forks.end)
    ended = list(forks.ended())
    code = _concluded(ended, report)
    return INTERRUPTED if signal.SIGINT in signals else code


def _drain(config: RunConfig, share: DrainShare, tell_parent: Callable[[Told], None]) -> None:
    def report(reports: Sequence[PartitionReport]) -> int:
        tell_parent(list(reports))
        return 0

    own = {} if config.http is None else {"http": own_http(config.http, share.number)}
    try:
        archive(config.model_copy(update=own), share, report)
    except BlockgzError as error:
        tell_parent(error)
    except Exception as error:
        sys.exit(print_failure(error))


def _concluded(ended: Sequence[Ended[Told]], report: Report) -> int:
    """One report of all partitions, after which come the workers that failed as a whole, each reason once."""
    done = [each.told for each in ended if isinstance(each.told, list)]
    failures = [
        each.told if isinstance(each.told, BlockgzError) else WorkerLost(each.number, each.exit_code)
        for each in ended
        if not isinstance(each.told, list)
    ]
    reports = sorted((each for told in done for each in told), key=lambda each: each.partition)
    code = report(reports) if done else 0
    for failure in {each.reason: each for each in failures}.values():
        code = print_failure(failure)
    return PARTLY_FAILED if done and failures else code
