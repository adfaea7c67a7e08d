"""Files of a checkpoint, read as Spark itself reads them: whatever file system it is on, with its settings."""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from archiver.spark.offset_log import ReadFile


def checkpoint_files(spark: SparkSession, checkpoint: str) -> ReadFile:
    """The files of the checkpoint; what cannot be read, for whatever reason, is None."""

    def read(name: str) -> str | None:
        jvm: Any = spark._jvm
        try:
            settings = spark._jsparkSession.sessionState().newHadoopConf()
            path = jvm.org.apache.hadoop.fs.Path(checkpoint, name)
            stream = path.getFileSystem(settings).open(path)
            try:
                text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
        except Py4JError:
            return None
        return text

    return read
