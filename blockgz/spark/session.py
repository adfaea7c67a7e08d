"""The Spark session of a job: spark-submit's, or one on this machine."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from blockgz.spark.errors import spark_errors


def worker_python(master: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the Python that workers have to use; None if the environment, or each machine, sets it."""
    # Workers on this machine have the packages that the driver has: they run the same Python, not python3 of the path.
    if asked := settings.get("spark.pyspark.python"):
        return asked
    return sys.executable if "PYSPARK_PYTHON" not in environ and master.startswith("local") else None


def use_drivers_python(spark: SparkSession) -> None:
    """Make workers on this machine run the driver's Python in a session of the user's, unless one is configured."""
    # A notebook's kernel runs in an environment that is not activated: python3 of the path is another one.
    context: SparkContext | None = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        python = worker_python(context.master or "", dict(context.getConf().getAll()), os.environ)
        context.pythonExec = python or context.pythonExec


def _configured_master(settings: Mapping[str, str]) -> str:
    """Return the master that `settings` or spark-submit name; this machine otherwise."""
    if "spark.master" not in settings and "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        return SparkConf().get("spark.master") or "local"
    return settings.get("spark.master", "local")


@contextmanager
def session(
    name: str, master: str | None, settings: Mapping[str, str], *, quiet: bool = True
) -> Iterator[SparkSession]:
    """Yield a session, stopped in the end; one that was there before is used and stays.

    Without a `master` Spark's configuration says where it runs, and that is this machine unless it is set. Times are
    UTC. `quiet` keeps Spark's log to itself, unless `settings` say otherwise.
    """
    before = SparkSession.getActiveSession()
    if (python := worker_python(master or _configured_master(settings), settings, os.environ)) is not None:
        os.environ["PYSPARK_PYTHON"] = python
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
