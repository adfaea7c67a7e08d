"""The oldest Spark that works, in an environment of its own: batches there, and one clear error for streams."""

import json
import subprocess
from pathlib import Path

import pytest

from system_test.support.spark_environments import OLDEST, spark_command, spark_environment, spark_variables
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import LONG

pytestmark = [
    pytest.mark.skipif(not LONG, reason="minutes: make lakehouse runs it"),
    pytest.mark.timeout(900, func_only=True),
]

PROGRAM = """
import json, os, pyspark
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
archive, copy = os.environ["ARCHIVE"], os.environ["COPY"]


def read(path):
    return spark.read.format("blockgz").options(path=path, subscribe="orders", includeHeaders="true").load()


def failure(query):
    try:
        query().awaitTermination()
    except Exception as error:
        return str(error)


def started(rows, format):
    writer = rows.writeStream.format(format).option("checkpointLocation", copy + "-" + format)
    return writer.trigger(availableNow=True).start(copy + "-stream")


orders = read(archive)
orders.write.format("blockgz-archive").mode("append").save(copy)
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
orders.coalesce(1).sortWithinPartitions("partition", "offset").write.parquet(copy + "-rows")
rows = spark.readStream.schema(orders.schema).parquet(copy + "-rows")
archived = spark.readStream.format("blockgz").options(path=archive, subscribe="orders").load()
result = {
    "version": pyspark.__version__,
    "offsets": sorted([row.partition, row.offset] for row in orders.collect()),
    "some": orders.where("partition = 1 AND offset < 30").count(),
    "different": read(copy).exceptAll(orders).count() + orders.exceptAll(read(copy)).count(),
    "read": failure(lambda: started(archived, "parquet")),
    "written": failure(lambda: started(rows, "blockgz-archive")),
}
print(json.dumps(result))
"""


def test_batches_on_the_oldest_spark(tmp_path: Path) -> None:
    """Read with and without filters, written as an archive and read again."""
    writer = ArchiveWriter(tmp_path / "archive")
    for number in range(2):
        part = writer.partition("orders", number)
        for first in range(0, 1000, 250):
            part.commit(records(range(first, first + 250)))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = spark_environment(OLDEST)
    variables = spark_variables(environment, ARCHIVE=str(writer.root), COPY=str(tmp_path / "copy"))
    command = spark_command(environment, program)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"].startswith(f"{OLDEST}.")
    assert found["offsets"] == [[number, offset] for number in range(2) for offset in range(1000)]
    assert (found["some"], found["different"]) == (30, 0)
    assert "a stream that reads an archive needs Spark 4.2 or later" in found["read"]
    assert "a stream into an archive needs Spark 4.1 or later" in found["written"]
