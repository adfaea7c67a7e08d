"""`archiver drop`."""

from collections.abc import Sequence
from typing import Any

import click
import orjson

from archiver.errors import DropRefused
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_settings import CLIENT_ID
from archiver.maintain.dropping import DropPlan, drop, plan_drop
from archiver.maintain.partitions import Problem
from blockgz.kafka.settings import client_settings
from blockgz.program.archive_options import store_options, writing_s3_options
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing, code_of_problems, confirm, print_problems
from blockgz.program.options import DURATION
from blockgz.program.tables import bytes_text, print_table
from blockgz.store.opening import open_existing_store
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings


@click.command(
    "drop",
    epilog=closing(
        "archiver drop orders -a s3://backup/kafka -b localhost:9092 --dry-run", "archiver drop orders -a ./archive"
    ),
)
@click.argument("topic")
@store_options(writing_s3_options)
@kafka_options("Brokers; the topic is not dropped if they have it.")
@click.option(
    "--idle",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Refuse if anything of the topic was written more recently, by the store's clock.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print plan and result as JSON.")
def drop_command(
    *,
    topic: str,
    archive: str,
    s3: S3Settings,
    kafka: dict[str, str],
    idle: float,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete a whole topic from the archive, all its incarnations, for good and at once.

    TOPIC is a name; patterns are not taken. Refused if the topic was written to within --idle, and, if brokers are
    given, if the cluster still has it. There is no grace: jobs that read the topic fail. Prints the plan, and asks for
    the topic's name to be typed.
    """
    is_checked = "bootstrap.servers" in kafka
    if is_checked:
        _check_gone(KafkaCluster(client_settings(kafka, CLIENT_ID)), topic)
    store = open_existing_store(archive, s3)
    plan = plan_drop(store, topic, idle)
    if not as_json:
        _print_plan(plan, is_checked=is_checked)
    problems: Sequence[Problem] = ()
    if not dry_run:
        question = f"Delete {plan.num_objects:,} objects ({plan.num_bytes:,} bytes)?"
        confirm(question, undone="nothing was deleted", is_agreed=yes, typed=topic)
        problems = drop(store, plan, bounded_backoff(store.url))
    print_problems(problems)
    is_dropped = not (dry_run or problems)
    if as_json:
        click.echo(orjson.dumps(result_object(archive, plan, problems, is_dropped=is_dropped)).decode())
    elif is_dropped:
        click.echo(f"dropped {topic}")
    return code_of_problems([each.error for each in problems])


def _check_gone(cluster: KafkaCluster, topic: str) -> None:
    if topic in cluster.topics():
        raise DropRefused(
            f"topic {topic!r} was not dropped",
            why="the cluster has it, so that archivers may go on archiving it",
            remedy="exclude it from archiver run and leave out -b, or delete the topic in Kafka first",
        )


def _print_plan(plan: DropPlan, *, is_checked: bool) -> None:
    rows = [
        (str(each.folder), each.num_partitions, len(each.objects), bytes_text(each.num_bytes)) for each in plan.folders
    ]
    print_table(("topic", "partitions", "objects", "size"), rows)
    unchecked = "no brokers are given, so that nobody checked whether the cluster has it"
    click.echo(f"note: {'the cluster does not list it' if is_checked else unchecked}", err=True)


def result_object(archive: str, plan: DropPlan, problems: Sequence[Problem], *, is_dropped: bool) -> dict[str, Any]:
    """The JSON contract of `archiver drop --json`."""
    return {
        "archive": archive,
        "topic": plan.topic,
        "objects": plan.num_objects,
        "bytes": plan.num_bytes,
        "written_ms": None if plan.written_at is None else round(plan.written_at * 1000),
        "incarnations": [
            {
                "topic": str(each.folder),
                "partitions": each.num_partitions,
                "objects": len(each.objects),
                "bytes": each.num_bytes,
            }
            for each in plan.folders
        ],
        "dropped": is_dropped,
        "problems": [each.as_json for each in problems],
    }
