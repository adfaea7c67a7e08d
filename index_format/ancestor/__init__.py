"""Archives that kafka-connect-s3 and its forks wrote, and which records lie in them (docs/old-archives.md).

Nothing here reads or writes. Offsets in such archives were counted by their writers, not told by Kafka: they are
inexact wherever the log had holes.
"""
