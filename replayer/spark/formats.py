"""Formats `blockgz` and `blockgz-kafka` as Spark knows them (Python Data Source API).

Spark loads this module in every session that has the package; what reads and writes is imported with the first use.
"""

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from blockgz.spark.errors import ReadFailed, report_errors
from blockgz.spark.versions import require_spark

if TYPE_CHECKING:
    from replayer.spark.sink.topic_sink import BatchWriter, StreamWriter
    from replayer.spark.source.source import BatchReader
    from replayer.spark.source.stream import StreamReader

_FILTER_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program in which Spark 4.1 and later asks a reader for filters, where the session's setting lets it."""


class ArchiveSource(DataSource):
    """An archive with the columns and options of Spark's own Kafka source; its readers raise ReadFailed."""

    @classmethod
    def name(cls) -> str:
        return "blockgz"

    def schema(self) -> StructType:
        """The columns of Spark's Kafka source, keys and values decoded as the options say."""
        from replayer.spark.source.source import schema_of  # noqa: PLC0415

        return schema_of(self.options)

    def reader(self, schema: StructType) -> "BatchReader":
        """A batch: from the earliest offset to the latest, unless the options say otherwise."""
        from replayer.spark.source.source import batch_reader  # noqa: PLC0415

        # Anywhere else Spark refuses a reader that takes filters.
        return batch_reader(self.options, schema, takes_filters=_FILTER_PLANNER in sys.modules)

    def streamReader(self, schema: StructType) -> "StreamReader | RefusedStream":  # noqa: N802
        """A stream: what is committed from now on, unless the options say otherwise."""
        try:
            with report_errors(ReadFailed):
                require_spark("4.2", "a stream that reads an archive")
            from replayer.spark.source.stream import stream_reader  # noqa: PLC0415

            return stream_reader(self.options, schema)
        except ReadFailed as error:
            return RefusedStream(error)


class RefusedStream(DataSourceStreamReader):
    """Raises an error as soon as it is used: one raised by `streamReader`, Spark covers with an error of its own."""

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

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """A batch; raises WriteFailed before anything is written, where the target would not keep the rows."""
        from replayer.spark.sink.topic_sink import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        """A stream, asked for again with every batch: the topic holds records then."""
        from replayer.spark.sink.topic_sink import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)
