"""Makes format `blockgz-kafka` known to Spark, which looks for modules of such names."""

from replayer.spark import TopicSink as DefaultSource

__all__ = ["DefaultSource"]
