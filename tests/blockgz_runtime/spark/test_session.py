import sys

import pytest

from blockgz_runtime.spark.session import worker_python


@pytest.mark.parametrize(
    ("master", "settings", "environ", "python"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local-cluster[2,1,768]", {}, {}, sys.executable),
        ("local", {}, {"PYSPARK_PYTHON": "/their/python"}, None),
        ("spark://head:7077", {}, {}, None),
        ("yarn", {"spark.pyspark.python": "./env/bin/python"}, {}, "./env/bin/python"),
        ("local", {"spark.pyspark.python": "/my/python"}, {"PYSPARK_PYTHON": "/their/python"}, "/my/python"),
    ],
)
def test_workers_here_run_the_drivers_python(
    master: str, settings: dict[str, str], environ: dict[str, str], python: str | None
) -> None:
    assert worker_python(master, settings, environ) == python
