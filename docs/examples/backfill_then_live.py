"""A topic's past from the archive, then its present from Kafka: no record twice, none missing in between.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 backfill_then_live.py
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import blockgz

ARCHIVE, KAFKA, OUT = os.environ["BLOCKGZ_ARCHIVE"], os.environ["KAFKA"], os.environ["OUT"]
COLUMNS = ("partition", "offset", "timestamp", "key", "value")

spark = SparkSession.builder.getOrCreate()


def seam() -> str:
    """The offsets where the archive's part ends and Kafka's begins: settled in the first run, and kept."""
    kept = Path(OUT, "seam.json")
    if not kept.exists():
        with blockgz.open_archive(ARCHIVE) as archive:
            places = archive.find("orders", datetime.now(UTC))  # the archive's end, as no record is newer
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"orders": {place.partition: place.offset for place in places}}))
        unfinished.replace(kept)
    return kept.read_text()


def keep(batch: DataFrame, number: int | str) -> None:
    """Writes a batch where nothing but this batch writes: run again, it takes its own place."""
    batch.select(*COLUMNS).write.mode("overwrite").parquet(f"{OUT}/orders/batch={number}")


if not Path(OUT, "orders/batch=archive/_SUCCESS").exists():
    past = {"path": ARCHIVE, "subscribe": "orders", "endingOffsets": seam()}
    keep(spark.read.format("blockgz").options(**past).load(), "archive")

live = {"kafka.bootstrap.servers": KAFKA, "kafka.isolation.level": "read_committed", "subscribe": "orders"}
query = (
    spark.readStream.format("kafka")
    .options(**live, startingOffsets=seam())
    .load()
    .writeStream.foreachBatch(keep)
    .option("checkpointLocation", f"{OUT}/checkpoint")
    .trigger(availableNow=True)  # or processingTime="1 minute", to stay live
    .start()
)
query.awaitTermination()
