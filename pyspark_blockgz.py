"""Makes format `blockgz` known to Spark 4.1 and later, which looks for modules of such names."""

from replayer.spark.formats import ArchiveSource as DefaultSource

__all__ = ["DefaultSource"]
