"""`archiver spark`."""

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import orjson

from archiver.cli.config_options import field_option
from blockgz.config.kinds import SPARK_DEFAULTS, SPARK_NAMES, default_text
from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.process import stop_on_signals
from blockgz.program.main import closing, ended_code
from blockgz.program.options import DURATION, kafka_properties, spark_needed, with_options

if TYPE_CHECKING:
    from archiver.spark.job import JobResult

OPTIONS = {name: field for name, field in SPARK_NAMES.items() if name != "path"}
# Defaults of Spark, without the isolation level: the command gives it to the source as well.
OWN_DEFAULTS = {field: text for field, text in SPARK_DEFAULTS.items() if field != "isolation_level"}
HELP = {
    "memory": "Memory budget for records, per task.",
    "on_gap": "What to do with a batch that begins after the archive's end: record a gap, or refuse it.",
}


@click.command(
    epilog=closing(
        "archiver spark orders payments -b localhost:9092 -a s3://backup/kafka --checkpoint s3a://jobs/orders --once",
        "spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 archiver_job.py spark orders …",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-b", "--bootstrap-server", "bootstrap_servers", required=True, metavar="HOST:PORT", help="Brokers.")
@click.option("-a", "--archive", required=True, help="s3://bucket/prefix, file:///dir or ./dir.")
@click.option("--checkpoint", required=True, metavar="DIR", help="Where Spark keeps the stream's offsets.")
@click.option("--once", is_flag=True, help="Archive what exists when the job starts, then exit.")
@click.option(
    "--chunk-interval",
    "interval_seconds",
    type=DURATION,
    default="5m",
    help="Time between batches; each ends one chunk per partition. [5m]",
)
@click.option("--max-offsets", type=click.IntRange(1), help="Maximum offsets per batch, across all partitions.")
@click.option("--master", help="Spark's master, such as local[4]. The default is that of spark-submit or Spark's own.")
@click.option("--jars", help="Jars of Spark's Kafka source, separated by commas.")
@click.option(
    "-X", "kafka", multiple=True, metavar="NAME=VALUE", help="A setting of Kafka's Java client; may be repeated."
)
@partial(
    with_options,
    options=[field_option(each, shown=OWN_DEFAULTS.get(each), help_text=HELP.get(each)) for each in OPTIONS.values()],
)
@click.option("--json", "as_json", is_flag=True, help="Print a line per batch, and the result, as JSON.")
def spark(*, archive: str, kafka: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Archive topics as a Spark job, from Spark's Kafka source to the format blockgz-archive.

    TOPIC is a name, a glob or ~regex. The archive is the same as that of `archiver run`, and uses the same commits;
    losing a checkpoint costs nothing. A batch's offsets are split into tasks by partition. SIGTERM ends the job; with
    --once, the exit code is then 143 if something is left. Requires pip install 'blockgz[spark]'.
    """
    with spark_needed("archiver spark"):
        from archiver.spark.job import SparkJob, run_job  # noqa: PLC0415
    chosen = {name: value for name, field in OPTIONS.items() if (value := given.pop(field)) is not None}
    sink = {"path": archive}
    sink |= {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in chosen.items()}
    sink.setdefault("isolationLevel", default_text("isolation_level"))
    job = SparkJob(kafka=_java_settings(kafka), sink=sink, **given)
    stopped = threading.Event()
    signals = stop_on_signals(stopped.set)
    result = run_job(job, stopped, lambda progress: _print_batch(progress, as_json=as_json))
    _print_result(archive, result, drained=result.ended if job.once else None, as_json=as_json)
    is_done = result.ended or not job.once
    return ended_code(0 if is_done else PARTLY_FAILED, signals, is_done=is_done)


def _java_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    settings = kafka_properties(pairs)
    if "isolation.level" in settings:
        raise UsageError(
            "-X isolation.level may not be set",
            why="the archive determines which records it holds",
            remedy="use --isolation-level",
        )
    return settings


def _print_batch(progress: Mapping[str, Any], *, as_json: bool) -> None:
    number, records = progress["batchId"], progress["numInputRows"]
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    if as_json:
        click.echo(orjson.dumps({"batch": number, "records": records, "seconds": seconds}).decode(), err=True)
    else:
        click.echo(f"batch {number}: {records:,} records in {seconds:.1f} s", err=True)


def _print_result(archive: str, result: "JobResult", *, drained: bool | None, as_json: bool) -> None:
    if as_json:
        document = {"archive": archive, "records": result.records, "batches": result.batches, "drained": drained}
        click.echo(orjson.dumps(document).decode())
    else:
        click.echo(f"{result.records:,} records in {result.batches:,} batches")
    if drained is False:
        click.echo("note: the job ended before everything was archived; run it again to resume", err=True)
