"""What `make house` counts."""

import ast
import subprocess
from textwrap import dedent

import pytest

from benchmarks import house
from benchmarks.house import (
    Function,
    code_lines,
    comment_lines,
    counts,
    functions,
    import_lines,
    public_names,
    records,
    shared_names,
    statements,
)


def trees(sources: dict[str, str]) -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources.items()}


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


def test_records_lead_to_a_record_through_bases_and_decorators():
    found = records(
        trees(
            {
                "archiver/a.py": "class A(NamedTuple): ...\n@dataclasses.dataclass(frozen=True)\nclass B: ...\n"
                "class C(D): ...",
                "archiver/d.py": "class D(msgspec.Struct, frozen=True): ...\nclass E(click.Option): ...",
                "archiver/e.py": "from archiver.d import D\nclass F(D): ...\nclass G(F): ...\n"
                "class Option(TypedDict): ...",
            }
        )
    )
    names = [place.partition(": ")[2] for place in found]
    assert names == ["A", "B", "D", "F", "G", "Option"]


def test_an_underscore_makes_no_other_name():
    house = trees({"archiver/a.py": "class A: ...\nclass B: ...", "archiver/b.py": "class _A: ...\nclass C: ..."})
    assert shared_names(house) == {"A": ["archiver/a.py", "archiver/b.py"]}
    assert not shared_names(house, private=False)


def test_public_names():
    text = """
class C:
    def m(self):
        "Return nothing."
        def inner(): ...
    def _p(self): ...
class _P:
    def q(): ...
"""
    assert list(public_names(trees({"a.py": text}))) == [("a.py: C", False), ("a.py: C.m", True)]


def test_lines_and_statements():
    text = '''"""Doc
more."""

# why
import a
# noqa: E501
def f():
    "Doc."
    def g():
        import d
    x = """a
b"""  # end
'''
    assert code_lines(text) == 6
    assert comment_lines(text) == 1
    assert statements(ast.parse(text)) == 5
    assert import_lines(ast.parse("import a\nfrom b import (\n    c,\n)\n\ndef f():\n    import d\n")) == 5


def test_counts():
    found = counts(
        {
            "archiver/__init__.py": "",
            "archiver/errors.py": "\n" * 61,
            "archiver/cli/b.py": "def g():\n    if a: ...\n",
            "setup.py": "import a\n",
            "tests/test_a.py": "a = 1\n",
            "docs/example.py": "a = 1\n",
        }
    )
    assert (found["modules"], found["lines"], found["lines of code"]) == ("4", "64", "3")
    assert (found["modules of at most 60 lines"], found["lines of tests and benchmarks"]) == ("3", "1")
    assert (found["longest function"], found["highest complexity"]) == ("b.py: g: 2", "b.py: g: 2")
    assert found["longest file"] == "archiver/errors.py: 61"


def test_a_revision_is_read_without_a_checkout():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=house.ROOT, capture_output=True, check=False)
    if commit.returncode:
        pytest.skip("not a clone")
    assert "archiver/__main__.py" in house.revision("HEAD")
    with pytest.raises(SystemExit, match="no-such-revision"):
        house.revision("no-such-revision")
