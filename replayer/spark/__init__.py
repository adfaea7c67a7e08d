"""Spark formats of the replayer: `blockgz` reads an archive, as a batch or as a stream.

Needs the extra `spark` (pyspark 4.3 or later). ::

    from replayer.spark import register

    register(spark)
    spark.read.format("blockgz").option("path", "s3://bucket/prefix").option("subscribe", "orders").load()
"""

from pyspark.sql import SparkSession

from .source import ArchiveSource

__all__ = ["ArchiveSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `blockgz` known to a session."""
    spark.dataSource.register(ArchiveSource)
