"""What travels to Spark's workers arrives whole, or says that they lack the package."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from blockgz.spark.formats import Shipped

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
