"""A Spark session as a user would start it, and Spark's own Kafka source beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from system_test.support.environment import cache_folder, filled_once, run_tool, tool

LOCAL = "local[2]"
CLUSTER = "local-cluster[2,1,768]"
"""Two workers with executors of their own: what is sent to them is pickled."""

_JARS = {
    "spark-sql-kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "spark-token-provider": "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "kafka-clients": "org.apache.kafka:kafka-clients:3.9.1",
    "commons-pool2": "org.apache.commons:commons-pool2:2.12.0",
}
_DOWNLOAD_SECONDS = 600.0


def kafka_source_jars() -> Path:
    """The folder with Spark's Kafka source, each jar fetched by itself; PartMissingError where that fails."""

    def download(folder: Path) -> None:
        for artifact in _JARS.values():
            options = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}", "-Dtransitive=false"]
            quiet = ["--quiet", "--batch-mode", "--no-transfer-progress", "-Dstyle.color=never"]
            run_tool([tool("mvn"), *quiet, "dependency:copy", *options], seconds=_DOWNLOAD_SECONDS)

    return filled_once(cache_folder() / "spark-kafka-4.2.0" / "jars", download)


@contextmanager
def spark_session(master: str = LOCAL) -> Iterator[SparkSession]:
    """A session whose Python workers are this interpreter's; stopped in the end."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = ",".join(map(str, sorted(kafka_source_jars().glob("*.jar"))))
    spark = (
        SparkSession.builder.master(master)
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-Xss8m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")
    try:
        yield spark
    finally:
        spark.stop()
