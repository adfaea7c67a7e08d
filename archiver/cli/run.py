"""`archiver run`."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

import click

from archiver.cli.archiving import archive, prepare
from archiver.cli.config_options import config_options
from archiver.cli.run_result import told
from archiver.cli.signals import stop_on_signals
from archiver.config.model import RunConfig
from archiver.config.origins import KAFKA_PREFIX
from archiver.config.resolution import Resolved
from archiver.ingest.assignment import WHOLE
from archiver.ingest.kafka_settings import check_settings
from archiver.ingest.ownership import PartitionReport
from archiver.ingest.workers import Workers, worker_commands
from archiver.logs import log_to
from blockgz_runtime.program.main import INTERRUPTED, closing


@click.command(
    epilog=closing(
        "archiver run orders payments -b localhost:9092 -a s3://backup/kafka --once",
        "archiver run 'orders-*' '~eu[.].+' -b localhost:9092 -a ./archive --exclude '*-test' --chunk-interval 1m",
        "archiver run -C archiver.yaml --workers 4",
    )
)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Log claims and commits.")
def run(*, resolved: Resolved, as_json: bool, verbose: bool) -> int:
    """Archive topics: follow for ever, or drain them once.

    TOPIC is a name, a glob or ~regex; BLOCKGZ_TOPICS holds them with spaces between.
    SIGTERM ends it in order, with what is open committed; --once then exits 3 where it left something.
    Every field of a configuration file is an option here and an environment variable: flags come first, then the
    environment, then the file of -C, then the defaults. `archiver config show` says what is in force.
    """
    config = resolved.config
    log_to(sys.stderr, level=logging.INFO if verbose else logging.WARNING, log_format=config.log_format)
    resolved.check_secrets(os.environ)
    check_settings(config, lambda name: resolved.named(KAFKA_PREFIX + name))
    if config.workers > 1 and not config.once:
        return _run_workers(config)
    prepare()

    def report(reports: Sequence[PartitionReport]) -> int:
        return told(config, reports, as_json=as_json)

    if config.workers > 1:
        # The forks' part is for those who ask for them.
        from archiver.cli.draining_together import drain_together  # noqa: PLC0415

        return drain_together(config, report)
    return archive(config, WHOLE, report)


def _run_workers(config: RunConfig) -> int:
    workers = Workers(worker_commands(sys.argv[1:], config))
    signals = stop_on_signals(workers.end)
    code = workers.run()
    return INTERRUPTED if signal.SIGINT in signals else code
