import sys
from types import SimpleNamespace

import pytest

from blockgz.spark.session import use_drivers_python, worker_python


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


@pytest.mark.parametrize(
    ("master", "environ", "python"),
    [
        ("local[2]", {}, sys.executable),
        ("spark://head:7077", {}, "python3"),
        ("local", {"PYSPARK_PYTHON": "p"}, "python3"),
    ],
)
def test_a_notebooks_session_gets_the_drivers_python(
    master: str, environ: dict[str, str], python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environ)
    context = SimpleNamespace(master=master, pythonExec="python3", getConf=lambda: SimpleNamespace(getAll=list))
    use_drivers_python(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
    assert context.pythonExec == python
    use_drivers_python(SimpleNamespace())  # type: ignore[arg-type]  # Spark Connect
