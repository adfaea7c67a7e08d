"""Spark formats of the replayer: `blockgz` reads an archive, `blockgz-kafka` writes to a topic, as batch or stream.

Needs the extra `spark` (pyspark 4.0 or later; streams 4.2). ::

    from replayer.spark import register

    register(spark)
    spark.read.format("blockgz").option("path", "s3://bucket/prefix").option("subscribe", "orders").load()
"""

from pyspark.sql import SparkSession

from blockgz.spark.session import use_drivers_python
from replayer.spark.formats import ArchiveSource, TopicSink

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the formats known to a session, and workers on this machine run its Python."""
    use_drivers_python(spark)
    spark.dataSource.register(ArchiveSource)
    spark.dataSource.register(TopicSink)
