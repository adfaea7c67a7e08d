"""Maintenance by policy: retention and compaction that `archiver run` applies to the partitions that it archives."""
