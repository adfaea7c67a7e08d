"""Makes format `blockgz` known to Spark, which looks for modules of such names."""

from replayer.spark import ArchiveSource as DefaultSource

__all__ = ["DefaultSource"]
