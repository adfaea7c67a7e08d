"""`archiver drop`."""

from typing import Any

import click

from archiver.cli.planned import carry_out
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_source import CLIENT_ID
from archiver.maintain.drop import PlannedDrop
from blockgz.kafka.connection import client_settings
from blockgz.program.archive_options import store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import DURATION, kafka_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store


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
    *, topic: str, archive: str, s3: S3Settings, kafka: dict[str, str], idle: float, **outcome: Any
) -> int:
    """Delete a whole topic from the archive, all its incarnations, for good and at once.

    TOPIC is a name; patterns are not taken. Refused if the topic was written to within --idle, and, if brokers are
    given, if the cluster still has it. There is no grace: jobs that read the topic fail. Prints the plan, and asks for
    the topic's name to be typed.
    """
    cluster = KafkaCluster(client_settings(kafka, CLIENT_ID)) if "bootstrap.servers" in kafka else None
    command = PlannedDrop(open_existing_store(archive, s3), archive, topic, idle, cluster)
    return carry_out(command, archive, **outcome)
