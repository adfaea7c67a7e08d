"""The Spark session of a job: spark-submit's, or one on this machine."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from blockgz_runtime.spark.errors import spark_errors

LOCAL = "local[*]"


@contextmanager
def session(
    name: str, master: str | None, settings: Mapping[str, str], *, quiet: bool = True
) -> Iterator[SparkSession]:
    """A session, stopped in the end; one that was there before is used and stays.

    Times are UTC. `quiet` keeps Spark's log to itself, unless `settings` say otherwise.
    """
    before = SparkSession.getActiveSession()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and (master or LOCAL).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if quiet:
        builder = builder.config("spark.log.level", "OFF")
    if master is not None or not submitted:
        builder = builder.master(master or LOCAL)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    with spark_errors():
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()
