import subprocess
import sys

import pytest

from blockgz.errors import UsageError
from blockgz.spark.formats import require_spark

AS_IN_SPARK_4_0 = """
import sys
import pyspark.sql.datasource as api

filters = [each.__name__ for each in api.Filter.__subclasses__()]
for name in ("Filter", *filters, "DataSourceStreamArrowWriter"):
    delattr(api, name)
sys.modules["pyspark.sql.streaming.datasource"] = None
import archiver.spark.sink, replayer.spark, replayer.spark.sink, replayer.spark.source
"""


@pytest.mark.slow
def test_formats_load_in_spark_4_0() -> None:
    """It has neither filters nor limits of a stream's batches nor writers of streams that take Arrow."""
    done = subprocess.run([sys.executable, "-c", AS_IN_SPARK_4_0], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("found", ["4.2.0", "4.2.1.dev0", "4.10.0", "5.0.0"])
def test_a_spark_that_is_new_enough(found: str) -> None:
    require_spark("4.2", "a stream", found)


def test_an_older_spark_is_one_error_that_says_from_where_it_works() -> None:
    with pytest.raises(UsageError) as caught:
        require_spark("4.2", "a stream", "4.1.4")
    assert caught.value.what == "a stream needs Spark 4.2 or later"
    assert "4.1.4" in caught.value.why
    assert "batch" in caught.value.remedy
