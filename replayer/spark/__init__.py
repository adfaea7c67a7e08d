"""Spark formats of the replayer: `blockgz` reads an archive, `blockgz-kafka` writes to a topic, as batch or stream.

Needs the extra `spark` (pyspark 4.0 or later; streams 4.2). ::

    from replayer.spark import register

    register(spark)
    spark.read.format("blockgz").option("path", "s3://bucket/prefix").option("subscribe", "orders").load()
"""

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from blockgz.spark.errors import ReadFailed, report_errors
from blockgz.spark.formats import require_spark
from blockgz.spark.session import use_drivers_python

if TYPE_CHECKING:
    from replayer.spark.sink import TopicBatchWriter, TopicStreamWriter
    from replayer.spark.source import BatchReader
    from replayer.spark.stream import StreamReader


__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the formats known to a session, and workers on this machine run its Python."""
    use_drivers_python(spark)
    spark.dataSource.register(ArchiveSource)
    spark.dataSource.register(TopicSink)


# The program in which Spark 4.1 and later asks a reader for filters, where the session's setting lets it.
_FILTER_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


class ArchiveSource(DataSource):
    """An archive with the columns and options of Spark's own Kafka source; its readers raise ReadFailed."""

    @classmethod
    def name(cls) -> str:
        return "blockgz"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, keys and values decoded as the options say."""
        from replayer.spark.source import schema_of  # noqa: PLC0415

        return schema_of(self.options)

    def reader(self, schema: StructType) -> "BatchReader":
        """Return a batch: from the earliest offset to the latest, unless the options say otherwise."""
        from replayer.spark.source import batch_reader  # noqa: PLC0415

        # Anywhere else Spark refuses a reader that takes filters.
        return batch_reader(self.options, schema, takes_filters=_FILTER_PLANNER in sys.modules)

    def streamReader(self, schema: StructType) -> "StreamReader | RefusedStream":  # noqa: N802
        """Return a stream: what is committed from now on, unless the options say otherwise."""
        try:
            with report_errors(ReadFailed):
                require_spark("4.2", "a stream that reads an archive")
            from replayer.spark.stream import stream_reader  # noqa: PLC0415

            return stream_reader(self.options, schema)
        except ReadFailed as error:
            return RefusedStream(error)


class RefusedStream(DataSourceStreamReader):
    """A stream that raises an error once it is used: Spark hides one that `streamReader` raises behind its own."""

    def __init__(self, error: ReadFailed) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815


class TopicSink(DataSource):
    """Rows to a topic with their own timestamps, headers and partitions; its writers raise WriteFailed."""

    @classmethod
    def name(cls) -> str:
        return "blockgz-kafka"

    def writer(self, schema: StructType, overwrite: bool) -> "TopicBatchWriter":
        """Return a batch; raises WriteFailed before anything is written, where the target would not keep the rows."""
        from replayer.spark.sink import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TopicStreamWriter":  # noqa: N802
        """Return a stream, asked for again with every batch: the topic holds records then."""
        from replayer.spark.sink import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)
