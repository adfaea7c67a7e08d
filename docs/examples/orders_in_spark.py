# %% [markdown]
# # Orders, from an archive, in Spark
#
# Cells as Jupyter, VS Code and Databricks know them. Runs as it is: `python orders_in_spark.py`, with the archive in
# BLOCKGZ_ARCHIVE and a folder for what it writes in OUT. The topic `orders` holds JSON.

# %%
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

ARCHIVE = os.environ["BLOCKGZ_ARCHIVE"]
OUT = os.environ["OUT"]

spark = SparkSession.builder.getOrCreate()

# %% [markdown]
# ## A batch
# The columns are those of `format("kafka")`, and `incarnation`: a topic that was created again has offset 0 twice.
# Times choose blocks: what lies before is not read.

# %%
SOURCE = {"path": ARCHIVE, "subscribe": "orders", "includeIncarnation": "true"}
records = spark.read.format("blockgz").options(**SOURCE, startingTimestamp="0").load()
partitions = records.groupBy("topic", "incarnation", "partition")
partitions.agg(fn.count("*"), fn.min("timestamp"), fn.max("timestamp")).show(truncate=False)

# %% [markdown]
# ## Values with fields
# Tombstones are null, and so is what is no JSON.

# %%
fields = fn.from_json(fn.col("value").cast("string"), "id BIGINT, country STRING")
orders = records.select("partition", "offset", "timestamp", fields.alias("o")).select(
    "partition", "offset", "timestamp", "o.*"
)
by_country = orders.where("id IS NOT NULL").groupBy("country").count().orderBy("country")
by_country.show()

# %% [markdown]
# ## A stream, exactly once
# Run this cell as often as you like: it takes what was archived since the last time. A batch that is run again after a
# crash has the same id and the same records, so its output is put in the place of what it had written.


# %%
def keep(batch: DataFrame, number: int) -> None:
    """Writes a batch where nothing but this batch writes."""
    batch.write.mode("overwrite").parquet(f"{OUT}/orders/batch={number}")


stream = spark.readStream.format("blockgz").options(**SOURCE, startingOffsets="earliest").load()
query = (
    stream.selectExpr("incarnation", "partition", "offset", "timestamp", "CAST(value AS STRING) AS value")
    .writeStream.foreachBatch(keep)
    .option("checkpointLocation", f"{OUT}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %%
kept = spark.read.parquet(f"{OUT}/orders")
print(f"{kept.count()} records kept")
