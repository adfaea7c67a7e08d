"""`replayer spark replay`."""

import asyncio

import click

from blockgz_runtime.program.kafka_options import kafka_options
from blockgz_runtime.program.main import closing
from replayer.cli.options.archive_options import archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.replay_options import ReplayOptions, shared_replay_options
from replayer.cli.spark.job_options import SessionOptions, session_options, spark_needed
from replayer.place import ArchivePlace


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
@kafka_options()
@archive_options
def command(
    options: ReplayOptions, spark: SessionOptions, as_json: bool, kafka: dict[str, str], archive: ArchivePlace
) -> int:
    """Produce archived records to a topic as `replayer replay` does, each source partition by a task of a Spark job.

    Records of one source partition keep their order, so it is one task however large it is: executors beyond the
    number of partitions have nothing to do. With --transactional every record arrives exactly once, over tasks that
    Spark begins again, lost executors and drivers, and --resume. Without it a task that is begun again sends what came
    after its last checkpoint twice.
    """
    with spark_needed():
        from replayer.cli.spark.replaying_job import replay  # noqa: PLC0415
    return asyncio.run(replay(options, spark, as_json, kafka, archive))
