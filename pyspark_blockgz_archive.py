"""Makes format `blockgz-archive` known to Spark, which looks for modules of such names."""

from archiver.spark import ArchiveSink as DefaultSource

__all__ = ["DefaultSource"]
