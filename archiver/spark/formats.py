"""Format `blockgz-archive` as Spark knows it (Python Data Source API).

Spark loads this module in every session that has the package; what writes is imported with the first use.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from archiver.spark.sink import BatchWriter, StreamWriter

FORMAT = "blockgz-archive"


class ArchiveSink(DataSource):
    """Records of Spark's Kafka source into an archive; its writers raise WriteFailed."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """A batch; mode append alone."""
        from archiver.spark.sink import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        """A stream; output mode append alone. Spark makes one for the tasks of every batch, and another to commit."""
        from archiver.spark.sink import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)
