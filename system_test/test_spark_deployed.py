"""Where Spark runs: a standalone cluster whose workers unpack an environment, and Spark Connect."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from system_test.support.environment import accepts_connections, free_port, run_tool
from system_test.support.spark_environments import ROOT, spark_command, spark_environment, spark_variables
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import LONG

pytestmark = [
    pytest.mark.skipif(not LONG, reason="minutes: make lakehouse runs it"),
    pytest.mark.timeout(1200, func_only=True),
]

NEWEST = "4.3"
COUNT = 500

ON_A_CLUSTER = """
import json, os
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("blockgz").load(os.environ["ARCHIVE"], subscribe="orders", minPartitions="4")
where = spark.sparkContext.range(4).map(lambda _: __import__("replayer").__file__).distinct().collect()
print(json.dumps({"records": rows.count(), "where": where}))
"""

BY_CONNECT = """
import json, os
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
archive, copy = os.environ["ARCHIVE"], os.environ["COPY"]
rows = spark.read.format("blockgz").load(archive, subscribe="orders")
view = f"CREATE TEMPORARY VIEW orders USING blockgz OPTIONS (path '{archive}', subscribe 'orders')"
spark.sql(view)
stream = spark.readStream.format("blockgz").options(path=archive, subscribe="orders", startingOffsets="earliest").load()
writer = stream.writeStream.format("parquet").option("checkpointLocation", copy + "-checkpoint")
writer.trigger(availableNow=True).start(copy).awaitTermination()
try:
    spark.read.format("blockgz").load(archive, subscribe="nothing").count()
except Exception as error:
    message = str(error)
result = {"kind": type(spark).__module__, "records": rows.count(), "streamed": spark.read.parquet(copy).count()}
result["last"] = spark.sql("SELECT max(offset) FROM orders WHERE offset > 10").collect()[0][0]
print(json.dumps(result | {"error": message}))
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path / "archive")
    part = writer.partition("orders", 0)
    for first in range(0, COUNT, 100):
        part.commit(records(range(first, first + 100)), block_bytes=1024)
    return writer.root


@contextmanager
def daemon(environment: Path, log: Path, name: str, *options: str) -> Iterator[None]:
    (spark_class,) = environment.glob("lib/python*/site-packages/pyspark/bin/spark-class")
    command = [str(spark_class), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *options]
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def test_a_cluster_whose_workers_unpack_an_environment(archive: Path, tmp_path: Path) -> None:
    """As docs/spark-running.md has it: nothing but the packed file is on the workers' path."""
    run_tool([sys.executable, "-m", "venv", str(tmp_path / "env")], seconds=60)
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_tool([*pip, "-c", str(ROOT / "constraints.txt"), f"{ROOT}[spark]", "venv-pack"], seconds=900)
    pack = [str(tmp_path / "env" / "bin" / "venv-pack"), "-p", str(tmp_path / "env")]
    run_tool([*pack, "--compress-level", "1", "-o", str(tmp_path / "env.tar.gz")], seconds=600)
    program, port = tmp_path / "program.py", free_port()
    program.write_text(ON_A_CLUSTER)
    master = f"spark://127.0.0.1:{port}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    variables |= {"ARCHIVE": str(archive), "PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": "./env/bin/python"}
    variables |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    with ExitStack() as stack:
        ports = ("--port", str(port), "--webui-port", "0")
        stack.enter_context(daemon(tmp_path / "env", tmp_path / "master.log", "master.Master", *ports))
        wait_until(lambda: accepts_connections(port), 60, "the master")
        home = str(tmp_path / "work")
        worker = ("--cores", "2", "--memory", "1g", "--work-dir", home, "--webui-port", "0", master)
        stack.enter_context(daemon(tmp_path / "env", tmp_path / "worker.log", "worker.Worker", *worker))
        packed = ("--archives", f"{tmp_path / 'env.tar.gz'}#env")
        command = spark_command(tmp_path / "env", program, "--master", master, *packed)
        done = subprocess.run(
            command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == COUNT
    assert found["where"] and all(place.startswith(home) and "/env/lib/" in place for place in found["where"])


def test_spark_connect(archive: Path, tmp_path: Path) -> None:
    """Batch, SQL, stream and an error by a client that has no Java of its own."""
    environment = spark_environment(NEWEST, f"pyspark[connect]=={NEWEST}.*")
    program = tmp_path / "program.py"
    program.write_text(BY_CONNECT)
    variables = spark_variables(environment, ARCHIVE=str(archive), COPY=str(tmp_path / "copy"))
    command = [str(environment / "bin" / "python"), str(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in found["kind"]
    assert (found["records"], found["streamed"], found["last"]) == (COUNT, COUNT, COUNT - 1)
    assert "topic nothing is not in the archive" in found["error"]
