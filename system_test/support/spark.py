"""A Spark session as a user would start it, and Spark's own Kafka source beside it."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark import SparkContext
from pyspark.sql import SparkSession

from archiver.cli import main
from system_test.support.archiving import Site
from system_test.support.environment import QUICK_JAVA, filled_once
from system_test.support.java_classes import SPARK_CLASSES, keeping_classes, kept_classes
from system_test.support.maven import single_jars

_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
_JAVA_ENDS_SECONDS = 400
"""To keep classes takes minutes beside three processes of tests."""
JAVA_OPTIONS = " ".join(["-Xss8m", *QUICK_JAVA, *kept_classes(SPARK_CLASSES)])
_ROOT = Path(__file__).parents[2]
_AVRO = ("org.apache.spark:spark-avro_2.13:4.0.1",)


def avro_jar() -> str:
    """Spark's own data source for Avro files, the newest that is to be had; tried with Spark 4.3."""
    (jar,) = single_jars("spark-avro-4.0.1", _AVRO).glob("*.jar")
    return str(jar)


def kafka_jars() -> str:
    """The jars of Spark's Kafka source, as `--jars` takes them."""
    return ",".join(map(str, sorted(single_jars("spark-kafka-4.2.0", _JARS).glob("*.jar"))))


def job_command(site: Site, topic: str, checkpoint: Path, *options: str) -> list[str]:
    """`archiver spark --once` on this archive, as a command."""
    return [sys.executable, "-m", "archiver", *_job_arguments(site, topic, checkpoint, *options)]


def run_job(site: Site, topic: str, checkpoint: Path, *options: str) -> Result:
    """`archiver spark --once` in this process, which finds the session that is there: seconds instead of a minute."""
    return CliRunner().invoke(main, _job_arguments(site, topic, checkpoint, *options), prog_name="archiver")


def _job_arguments(site: Site, topic: str, checkpoint: Path, *options: str) -> list[str]:
    where = ("--checkpoint", str(checkpoint), "--master", "local[1]", "--jars", kafka_jars())
    return ["spark", topic, *site.kafka, *site.archive, "--once", "--json", *where, *options]


def job_environment() -> dict[str, str]:
    """What such a command needs beside this process's environment."""
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    return {**os.environ, **own}


def keep_spark_classes() -> Path:
    """What a session loads, kept for all that start later."""

    def keep(folder: Path) -> None:
        flags = " ".join(["-Xss8m", *keeping_classes(folder / SPARK_CLASSES.name)])
        with spark_session(**{"spark.driver.extraJavaOptions": flags}) as spark:
            spark.range(10).groupBy("id").count().collect()

    return filled_once(SPARK_CLASSES.parent, keep)


@contextmanager
def spark_session(master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """A session whose Python workers are this interpreter's, with more settings by name; stopped in the end.

    Its Java ends too: the next one is started with the environment of its day, credentials among it.
    """
    with tempfile.TemporaryDirectory(prefix="blockgz-spark-") as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # Executors of a local cluster work elsewhere, and find the tests' own modules only so.
        environment.setenv("PYTHONPATH", str(_ROOT), prepend=os.pathsep)
        # Where they work, by default inside pyspark's own folder.
        environment.setenv("SPARK_WORKER_DIR", folder)
        yield from _started(master, settings)


def _started(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.jars", f"{kafka_jars()},{avro_jar()}")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executor.memory", "768m")
        .config("spark.ui.enabled", "false")
        # Queries of some hundred rows are over before code that is made for them would be compiled.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.executor.extraJavaOptions", JAVA_OPTIONS)
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    try:
        yield spark
    finally:
        gateway: Any = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_JAVA_ENDS_SECONDS)
        SparkContext._gateway = SparkContext._jvm = None
