"""The columns of Spark's own Kafka source, which the formats read and write (Spark's KafkaRecordToRowConverter)."""

KAFKA_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Their types in Spark's simple notation; `headers` comes with includeHeaders."""
