"""An archived topic into an Iceberg table, each record once, however often this is killed and run again.

spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 iceberg_from_archive.py
"""

import json
import os

from pyspark.sql import SparkSession

import blockgz

ARCHIVE, WAREHOUSE = os.environ["BLOCKGZ_ARCHIVE"], os.environ["WAREHOUSE"]

spark = (
    SparkSession.builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", WAREHOUSE)
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .getOrCreate()
)
COLUMNS = "topic STRING, incarnation INT, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
spark.sql(f"CREATE TABLE IF NOT EXISTS lake.orders ({COLUMNS}) USING iceberg PARTITIONED BY (incarnation, partition)")


def starts(partition: int) -> str:
    """Where to continue, which the table itself knows: behind its last offset of each incarnation."""
    last = spark.sql(
        f"SELECT incarnation, max(offset) AS offset FROM lake.orders WHERE partition = {partition} GROUP BY ALL"
    )
    known = {f"orders~{row.incarnation}": {partition: row.offset + 1} for row in last.collect()}
    return json.dumps({"orders": {partition: -2}, **known})  # -2: from the start, where the table has nothing


with blockgz.open_archive(ARCHIVE) as archive:
    partitions = archive.partitions("orders")
for number in partitions:
    source = {"path": ARCHIVE, "assign": json.dumps({"orders": [number]}), "startingOffsets": starts(number)}
    records = spark.read.format("blockgz").options(**source, includeIncarnation="true").load()
    records.drop("timestampType").createOrReplaceTempView("new")
    spark.sql(
        """
        MERGE INTO lake.orders AS old USING new
        ON old.topic = new.topic AND old.incarnation = new.incarnation
            AND old.partition = new.partition AND old.offset = new.offset
        WHEN NOT MATCHED THEN INSERT *
        """
    )
