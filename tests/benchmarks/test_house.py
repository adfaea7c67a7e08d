"""What `make house` counts."""

import subprocess
from textwrap import dedent

import pytest

from benchmarks import house
from benchmarks.house import Function, Twin, circles, counts, functions, import_graph, import_lines, twins

SHARED = [f"value_{number} = {number}" for number in range(6)]


def source(text: str) -> dict[str, str]:
    return {"archiver/a.py": dedent(text)}


def complexity(body: str) -> int:
    (function,) = functions(source("def f():\n" + "".join(f"    {line}\n" for line in dedent(body).splitlines())))
    return function.complexity


def test_a_function_counts_without_its_decorators():
    found = functions(source("@one\n@two\ndef f():\n    def g():\n        pass\n\nclass C:\n    def m(self): ..."))
    assert list(found) == [
        Function("archiver/a.py: f", 3, 2),
        Function("archiver/a.py: f.g", 2, 1),
        Function("archiver/a.py: C.m", 1, 1),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", 1),
        ("if a:\n  pass\nelif b:\n  pass\nelse:\n  pass", 3),
        ("for a in b:\n  while c:\n    pass\nelse:\n  pass", 3),
        ("with a:\n  try:\n    b()\n  except C:\n    pass\n  else:\n    pass", 3),
        ("match a:\n  case 1:\n    pass\n  case 2 if b:\n    pass\n  case _:\n    pass", 3),
        ("return [a for a in b if a or c]", 1),
    ],
)
def test_complexity_counts_what_the_linter_counts(body: str, expected: int):
    assert complexity(body) == expected


def test_import_lines():
    assert import_lines("import a\nfrom b import (\n    c,\n)\n\ndef f():\n    import d\n") == 5


def test_circles_go_through_late_imports_and_packages_but_not_through_types():
    graph = import_graph(
        {
            "archiver/__init__.py": "",
            "archiver/a.py": "from archiver import b\n",
            "archiver/b.py": "def late():\n    import archiver.c\n",
            "archiver/c.py": "from archiver.a import name\nimport os\n",
            "archiver/d.py": "if TYPE_CHECKING:\n    from archiver.e import E\n",
            "archiver/e.py": "from archiver.d import D\n",
        }
    )
    assert graph["archiver.c"] == {"archiver.a"}
    assert circles(graph) == [["archiver.a", "archiver.b", "archiver.c"]]


def test_twins_ignore_indentation_blank_lines_comments_and_imports():
    left = "\n".join(["import os", *SHARED, "left = 1"])
    right = "\n".join(["class C:", "    import sys", *("    # why\n\n    " + line for line in SHARED), "    right = 1"])
    found = twins({"archiver/a.py": left, "replayer/r.py": right, "archiver/copy.py": left})
    assert found == [Twin("archiver/a.py", "replayer/r.py", 6)]
    assert not twins({"archiver/a.py": left, "replayer/r.py": "\n".join(SHARED[1:])})
    assert not twins({"archiver/a.py": left, "archiver/copy.py": left})


def test_counts():
    tree = {
        "archiver/__init__.py": "",
        "archiver/__main__.py": "import archiver.cli.a\n",
        "archiver/errors.py": "\n" * 50,
        "archiver/cli/a.py": "def f(): ...\n",
        "archiver/cli/b.py": "def g():\n    if a: ...\n",
        "archiver/cli/c.py": "",
    }
    found = counts(tree)
    assert found["modules"] == "6"
    assert found["lines"] == "54"
    assert found["largest folder"] == "archiver/cli: 3"
    assert (found["files at the top of archiver"], found["files at the top of replayer"]) == ("1", "0")
    assert found["modules under 50 lines"] == "3"
    assert (found["longest function"], found["highest complexity"]) == ("b.py: g: 2", "b.py: g: 2")


def test_a_revision_is_read_without_a_checkout():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=house.ROOT, capture_output=True, check=False)
    if commit.returncode:
        pytest.skip("not a clone")
    sources = house.revision("HEAD")
    assert sources is not None
    assert "archiver/__main__.py" in sources
    assert house.revision("no-such-revision") is None
