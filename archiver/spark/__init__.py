"""Spark format of the archiver: `blockgz-archive` writes what Spark's Kafka source reads into an archive.

Needs the extra `spark` (pyspark 4.0 or later; streams 4.2). ::

    from archiver.spark import register

    register(spark)
    df.write.format("blockgz-archive").mode("append").option("path", "s3://bucket/prefix").save()
"""

from pyspark.sql import SparkSession

from archiver.spark.formats import ArchiveSink
from blockgz.spark.session import use_drivers_python

__all__ = ["ArchiveSink", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `blockgz-archive` known to a session, and workers on this machine run its Python."""
    use_drivers_python(spark)
    spark.dataSource.register(ArchiveSink)
