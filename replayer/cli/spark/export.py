"""`replayer spark export` and `replayer spark load`."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.selection import SKIPS
from blockgz.errors import PARTLY_FAILED
from blockgz.process import run_async
from blockgz.program.main import closing, debug
from blockgz.program.options import spark_needed, with_options
from blockgz.units import bytes_text
from replayer.cli.options import options
from replayer.cli.options.selection_options import CHOOSE_BY_OPTION, damage_option, selection_options

if TYPE_CHECKING:
    from replayer.spark.export import Export, ExportPlan, WriteResult

FORMATS = ("parquet", "avro", "json", "csv")


def _with_destination(_context: click.Context, _parameter: click.Parameter, topics: tuple[str, ...]) -> tuple[str, ...]:
    # A single argument may be TOPIC or DEST: who takes --to for the destination gives one.
    if not topics:
        raise click.UsageError("TOPIC and DEST are both required: files go to DEST, and --to is a position")
    return topics


def _write_options(function: Any) -> Any:
    return with_options(
        function,
        [
            options.mode_option,
            options.partition_by_option,
            options.value_options,
            selection_options,
            damage_option,
            options.task_bytes_option,
            options.min_tasks_option,
            options.dry_run_option,
            options.session_options,
            options.json_option,
            options.archive_options,
        ],
    )


@click.command(
    "export",
    epilog=closing(
        "replayer spark export orders ./orders --format parquet -a ./archive",
        "replayer spark export 'shop-*' s3a://lake/shop --format parquet --partition-by topic,date --since -1d "
        "-a s3://bucket/prefix",
        "replayer spark export orders ./orders --format json --value json --schema 'id BIGINT, name STRING' "
        "-a ./archive",
        "replayer spark export orders ./orders --format parquet --value avro --schema-registry http://localhost:8081 "
        "--on-bad-value skip --partition-by date,value.country -a ./archive",
    ),
)
@click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, callback=_with_destination)
@click.argument("destination", metavar="DEST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    required=True,
    envvar="BLOCKGZ_EXPORT_FORMAT",
    help="File format; avro needs Spark's avro jar (--jars).",
)
@_write_options
def export(destination: str, file_format: str, **given: Any) -> int:
    """Write records to files in a common format.

    Columns are key, value, topic, partition, offset, timestamp, timestampType and headers.

    TOPIC may be a glob or ~regex. DEST is a path that Spark can write: a folder, s3a://, hdfs://. Files become visible
    only when all of them are written (Spark's committer); --mode overwrite deletes the old files first. Exits with 3 if
    values could not be decoded or damage was skipped.
    """
    return _run("export", file_format=file_format, path=destination, **given)


@click.command(
    "load",
    epilog=closing(
        "replayer spark load orders --table shop.orders --conf spark.sql.catalogImplementation=hive -a ./archive",
        "replayer spark load 'shop-*' --table lake.shop.events --format iceberg --mode append --since -1d "
        "-a s3://bucket/prefix",
    ),
)
@click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, required=True)
@click.option("--table", required=True, metavar="NAME", help="The table: NAME, DATABASE.NAME or CATALOG.DATABASE.NAME.")
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    envvar="BLOCKGZ_TABLE_FORMAT",
    metavar="NAME",
    help="Storage format of the table: parquet, orc, iceberg, delta, ….",
)
@_write_options
def load(table: str, table_format: str, **given: Any) -> int:
    """Load records into a table of Spark's catalog, with the columns of `spark export`.

    TOPIC may be a glob or ~regex. The database must exist, and the catalog must be persistent. Loading the same records
    twice with --mode append duplicates them: select the next part with --from or --since. Exits with 3 if values could
    not be decoded or damage was skipped.
    """
    return _run("load", file_format=table_format, table=table, **given)


def _run(
    what: str,
    *,
    archive: ArchivePlace,
    values: dict[str, Any],
    on_damage: str,
    spark: options.SparkOptions,
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Plan, write and report; return the exit code."""
    with spark_needed("replayer spark"):
        from blockgz.spark.session import session  # noqa: PLC0415
        from replayer.spark.export import Export, ValueOptions, plan_export, write_export  # noqa: PLC0415
    began = time.monotonic()
    place, skips = replace(archive.absolute(), old_format=None), on_damage == SKIPS
    export = Export(place=place, values=ValueOptions(**values), skips_damage=skips, **chosen)
    plan = run_async(plan_export(export))
    document = _plan_document(plan, export)
    if dry_run:
        _print(document, _plan_text(plan, "would read"), as_json=as_json)
        return 0
    refuse_doubtful(plan.cuts, CHOOSE_BY_OPTION)
    click.echo(_plan_text(plan, "reads"), err=True)
    with (
        session(f"replayer spark {what}", spark.master, spark.settings, quiet=not debug.get()) as running,
        options.stage_progress(what, running.sparkContext.statusTracker(), as_json=as_json),
    ):
        result = write_export(running, plan, export)
    fields = ("topic", "partition", "from", "to", "reason")
    document |= {
        "records": result.written,
        "records_read": result.read,
        "bad_values": result.bad,
        "first_bad_value": result.first_bad,
        "skipped": [dict(zip(fields, each, strict=True)) for each in result.skipped],
        "seconds": round(time.monotonic() - began, 3),
    }
    _print(document, _result_text(result, export), as_json=as_json)
    return PARTLY_FAILED if result.bad or result.skipped else 0


def _plan_document(plan: "ExportPlan", export: "Export") -> dict[str, Any]:
    return {
        "topics": plan.topics,
        "destination": export.table or export.path,
        "format": export.file_format,
        "mode": export.mode,
        "partition_by": list(export.partition_by),
        "tasks": len(plan.tasks),
        "chunks": plan.chunks,
        "bytes": plan.bytes,
        "records_at_most": plan.records,
        "gaps": [
            {"topic": topic, "partition": partition, **msgspec.to_builtins(gap)} for topic, partition, gap in plan.gaps
        ],
        "cuts": [{"topic": topic, **cut.document(partition)} for topic, partition, cut in plan.cuts],
    }


def _plan_text(plan: "ExportPlan", verb: str) -> str:
    lines = [
        f"{verb} {', '.join(plan.topics)}: {plan.chunks:,} chunks, {bytes_text(plan.bytes)}, at most "
        f"{plan.records:,} records, in {len(plan.tasks):,} tasks"
    ]
    for topic, partition, gap in plan.gaps:
        lines.append(f"WARNING {topic}:{partition} recorded gap [{gap.start}..{gap.end}): {gap.reason}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join([*lines, *(f"WARNING {line}" for line in cut_lines(plan.cuts))])


def _result_text(result: "WriteResult", export: "Export") -> str:
    lines = [f"{result.written:,} records written to {export.table or export.path}"]
    if result.bad:
        lines.append(f"FAILURE {result.bad:,} could not be decoded, the first of them {result.first_bad}")
    for topic, partition, start, end, reason in result.skipped:
        lines.append(f"FAILURE {topic}:{partition} skipped offsets [{start}..{end}): {reason}")
    return "\n".join(lines)


def _print(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(document) if as_json else text)
