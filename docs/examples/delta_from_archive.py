"""An archived topic into a Delta table, each record once, however often this is killed and run again.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 delta_from_archive.py
"""

import os

from pyspark.sql import DataFrame, SparkSession

ARCHIVE, TABLE = os.environ["BLOCKGZ_ARCHIVE"], os.environ["TABLE"]
CHECKPOINT = os.environ["CHECKPOINT"]
BATCH = os.environ.get("BATCH", "1000000")

spark = (
    SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
COLUMNS = "topic STRING, incarnation INT, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{TABLE}` ({COLUMNS}) USING delta")


def merge(batch: DataFrame, _: int) -> None:
    """Adds the records that the table does not have: all of them, or none where the batch is run again."""
    batch.createOrReplaceTempView("new")
    batch.sparkSession.sql(
        f"""
        MERGE INTO delta.`{TABLE}` AS old USING new
        ON old.topic = new.topic AND old.incarnation = new.incarnation
            AND old.partition = new.partition AND old.offset = new.offset
        WHEN NOT MATCHED THEN INSERT *
        """
    )


source = {"path": ARCHIVE, "subscribe": "orders", "includeIncarnation": "true", "startingOffsets": "earliest"}
records = spark.readStream.format("blockgz").options(**source, maxOffsetsPerTrigger=BATCH).load().drop("timestampType")
query = (
    records.writeStream.foreachBatch(merge)
    .option("checkpointLocation", CHECKPOINT)
    .trigger(availableNow=True)  # or processingTime="1 minute", to follow the archive
    .start()
)
query.awaitTermination()
