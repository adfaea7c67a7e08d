"""Options of the Spark format `blockgz-archive` that are fields of the configuration, with defaults of their own."""

SPARK_NAMES = {
    "path": "archive",
    "endpointUrl": "endpoint_url",
    "region": "region",
    "layout": "layout",
    "recordFormat": "record_format",
    "codec": "codec",
    "gzipLibrary": "gzip_library",
    "gzipLevel": "gzip_level",
    "zstdLevel": "zstd_level",
    "blockBytes": "block_bytes",
    "chunkBytes": "chunk_bytes",
    "chunkRecords": "chunk_records",
    "chunkSpan": "chunk_span",
    "isolationLevel": "isolation_level",
    "groupId": "group_id",
    "takeover": "takeover",
    "onGap": "on_gap",
    "memory": "memory",
    "bufferDir": "buffer_dir",
    "singleWriter": "single_writer",
}
"""The option's name, and the field's."""

SPARK_DEFAULTS = {
    "group_id": "blockgz-spark",
    "isolation_level": "read_uncommitted",
    "memory": "128MiB",
}
"""Where they are others than a service's: a sink has a group of its own, Spark's Kafka source reads uncommitted records
unless told otherwise, and several tasks share a machine."""
