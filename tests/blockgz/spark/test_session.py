"""Sessions, versions, errors and code on their way to Spark's workers."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pyspark import cloudpickle

from blockgz.errors import UsageError
from blockgz.spark.errors import ReadFailed, carry_errors, in_options, report_errors
from blockgz.spark.formats import Shipped, require_spark
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


WITHOUT_BLOCKGZ = """
import pickle, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("blockgz", "tests"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
pickle.load(open(sys.argv[1], "rb"))
"""


class Parcel(Shipped):
    """Something with state."""

    def __init__(self, content: object) -> None:
        self.content = content


def test_it_arrives_whole() -> None:
    arrived = cloudpickle.loads(cloudpickle.dumps(Parcel({"a": (1, 2)})))
    assert isinstance(arrived, Parcel) and arrived.content == {"a": (1, 2)}


@pytest.mark.slow
def test_a_worker_without_the_package_says_so(tmp_path: Path) -> None:
    parcel = tmp_path / "parcel"
    parcel.write_bytes(cloudpickle.dumps(Parcel(1)))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BLOCKGZ, parcel], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    *_, error, why, remedy = done.stderr.splitlines()
    assert f"the Python of Spark's workers, {sys.executable}, has no blockgz: No module named 'tests'" in error
    assert why.startswith("why:   tasks run in Python processes") and remedy.startswith("do:    install the driver")


def test_errors_name_options_rather_than_flags() -> None:
    assert in_options("use --group-id x, or --takeover - not -a") == "use groupId x, or takeover - not -a"
    assert in_options("another --archive") == "another path"
    assert in_options("check -a/--archive, or archiver run --once -a X") == "check path, or archiver run --once -a X"
    assert in_options("topic~e1--x-y") == "topic~e1--x-y"


@pytest.mark.parametrize(("program", "hidden"), [("pyspark.daemon", "1"), ("pytest.__main__", None)])
@pytest.mark.parametrize("raising", [report_errors, carry_errors])
def test_a_worker_of_sparks_shows_the_text_alone(
    program: str,
    hidden: str | None,
    raising: Callable[[type[Exception]], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the process goes on after the exception, other tracebacks must stay."""
    environ: dict[str, str] = {}
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr("blockgz.spark.errors.os.environ", environ)
    with pytest.raises(ReadFailed, match="nothing"), raising(ReadFailed):
        raise UsageError("nothing", remedy="something")
    assert environ.get("SPARK_HIDE_TRACEBACK") == hidden


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
