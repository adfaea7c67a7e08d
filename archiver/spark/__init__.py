"""Spark format of the archiver: `blockgz-archive` writes what Spark's Kafka source reads into an archive.

Needs the extra `spark` (pyspark 4.0 or later; streams 4.2). ::

    from archiver.spark import register

    register(spark)
    df.write.format("blockgz-archive").mode("append").option("path", "s3://bucket/prefix").save()
"""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from blockgz.spark.session import use_drivers_python

if TYPE_CHECKING:
    from archiver.spark.sink import ArchiveBatchWriter, ArchiveStreamWriter


__all__ = ["ArchiveSink", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `blockgz-archive` known to a session, and workers on this machine run its Python."""
    use_drivers_python(spark)
    spark.dataSource.register(ArchiveSink)


FORMAT = "blockgz-archive"


class ArchiveSink(DataSource):
    """Records of Spark's Kafka source into an archive; its writers raise WriteFailed."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "ArchiveBatchWriter":
        """Return a batch; mode append alone."""
        from archiver.spark.sink import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveStreamWriter":  # noqa: N802
        """Return a stream in mode append. Spark makes one for the tasks of every batch, and another to commit."""
        from archiver.spark.sink import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)
