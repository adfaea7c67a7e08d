"""The Spark session of a job: spark-submit's, or one on this machine."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from blockgz_runtime.spark.errors import spark_errors


@contextmanager
def session(
    name: str, master: str | None, settings: Mapping[str, str], *, quiet: bool = True
) -> Iterator[SparkSession]:
    """A session, stopped in the end; one that was there before is used and stays.

    Without a `master` Spark's configuration says where it runs, and that is this machine unless it is set. Times are
    UTC. `quiet` keeps Spark's log to itself, unless `settings` say otherwise.
    """
    before = SparkSession.getActiveSession()
    if "PYSPARK_GATEWAY_PORT" not in os.environ and (master or "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    own |= {"spark.log.level": "OFF"} if quiet else {}
    own |= {"spark.master": master} if master is not None else {}
    builder = SparkSession.builder.appName(name)
    for setting, value in {**own, **settings}.items():
        builder = builder.config(setting, value)
    with spark_errors():
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()
