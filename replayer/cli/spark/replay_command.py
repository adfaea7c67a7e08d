"""`replayer spark replay`."""

import click

from blockgz.archive.place import ArchivePlace
from blockgz.process import run_async
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing
from blockgz.program.options import spark_needed
from replayer.cli.options.archive_options import archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.replay_options import ReplayOptions, shared_replay_options
from replayer.cli.spark.job_options import SessionOptions, session_options


@click.command(
    "replay",
    epilog=closing(
        "replayer spark replay orders --to-topic orders-copy --transactional -b HOST:PORT -a s3://bucket/prefix",
        "replayer spark replay orders --to-topic orders-copy --transactional --resume --yes -b HOST:PORT -a ./archive",
        "replayer spark replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a ./archive",
    ),
)
@shared_replay_options
@session_options
@json_option
@kafka_options(required=True)
@archive_options
def command(
    options: ReplayOptions, spark: SessionOptions, as_json: bool, kafka: dict[str, str], archive: ArchivePlace
) -> int:
    """Write archived records to a topic as `replayer replay` does, with one Spark task per source partition.

    Records of one source partition keep their order, so a partition is one task, however large: executors beyond the
    number of partitions are idle. With --transactional, every record arrives exactly once, across retried tasks, lost
    executors and drivers, and --resume. Without it, a retried task sends everything after its last checkpoint again.
    """
    with spark_needed("replayer spark"):
        from replayer.cli.spark.replaying_job import replay  # noqa: PLC0415
    return run_async(replay(options, spark, as_json, kafka, archive))
