"""pyarrow without pandas: asked of a process of its own, as this one may have both."""

import subprocess
import sys

import pytest

CONVERSIONS = """
import sys
import pyarrow as pa
{first}
pa.array([b"a"]).to_numpy(zero_copy_only=False)
pa.array([1, 2]).filter(pa.array([True, False]))
print("pandas" in sys.modules)
"""
REFUSED = """
from blockgz.process import pandas_refused
with pandas_refused():
    pa.array([])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "comes"),
    [("", True), (REFUSED, False)],
    ids=["as it is", "kept out"],
)
def test_pandas_comes_with_the_first_conversion_unless_it_is_kept_out(first: str, *, comes: bool) -> None:
    assert _printed(CONVERSIONS.format(first=first)) == str(comes)


@pytest.mark.slow
def test_who_asks_for_pandas_still_gets_it() -> None:
    program = "import pyarrow as pa\n" + REFUSED
    assert _printed(program + "print(len(pa.table({'a': [1, 2]}).to_pandas()))") == "2"


def _printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()
