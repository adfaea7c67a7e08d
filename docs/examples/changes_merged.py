"""Debezium's changes of a table, archived as topic `customers`, into a Delta table with the rows as they are now.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 changes_merged.py
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

ARCHIVE, TABLE = os.environ["BLOCKGZ_ARCHIVE"], os.environ["TABLE"]
CHECKPOINT = os.environ["CHECKPOINT"]
BATCH = os.environ.get("BATCH", "1000000")

spark = (
    SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
ROW = "id BIGINT, name STRING"
spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{TABLE}` ({ROW}, incarnation INT, offset BIGINT) USING delta")


def merge(batch: DataFrame, _: int) -> None:
    """Applies the last change of each key; the offset says which is last, as a key stays in its partition."""
    last = fn.max_by(fn.struct("*"), fn.struct("incarnation", "offset")).alias("last")
    batch.groupBy("id").agg(last).select("last.*").createOrReplaceTempView("new")
    newer = "struct(new.incarnation, new.offset) > struct(old.incarnation, old.offset)"
    batch.sparkSession.sql(
        f"""
        MERGE INTO delta.`{TABLE}` AS old USING new ON old.id = new.id
        WHEN MATCHED AND {newer} AND new.op = 'd' THEN DELETE
        WHEN MATCHED AND {newer} THEN UPDATE SET *
        WHEN NOT MATCHED AND new.op <> 'd' THEN INSERT *
        """
    )


source = {"path": ARCHIVE, "subscribe": "customers", "includeIncarnation": "true", "startingOffsets": "earliest"}
values = {"valueFormat": "json", "valueSchema": StructType.fromDDL(ROW).json(), "envelope": "debezium"}
records = spark.readStream.format("blockgz").options(**source, **values, maxOffsetsPerTrigger=BATCH).load()
changes = records.where("op IS NOT NULL").selectExpr(  # not the tombstones that follow deletes
    "coalesce(after.id, before.id) AS id", "after.name", "op", "incarnation", "offset"
)
query = (
    changes.writeStream.foreachBatch(merge)
    .option("checkpointLocation", CHECKPOINT)
    .trigger(availableNow=True)  # or processingTime="1 minute", to follow the archive
    .start()
)
query.awaitTermination()
