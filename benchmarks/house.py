"""`python -m benchmarks.house`: count the product's code, before and after, side by side.

The product is every tracked Python file outside tests, system_test, benchmarks and docs. "Before" is a Git revision,
"after" is the working tree. A tree of sources maps paths, such as `archiver/cli/run.py`, to text.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from benchmarks.running import programs_files
from benchmarks.tables import Table, as_text

ROOT = Path(__file__).parent.parent
TESTS = ("tests", "system_test", "benchmarks")
OUTSIDE = (*TESTS, "docs")
SMALL = 60
"""Lines that a small module has at most."""
RECORDS = frozenset({"NamedTuple", "TypedDict", "dataclass", "Struct", "BaseModel"})
DIRECTIVES = ("# noqa", "# type:", "# fmt:", "# pragma", "# ruff:", "# mypy:", "#!")
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)

Sources = Mapping[str, str]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef


class Function(NamedTuple):
    """A function with its lines, decorators left out, and its cyclomatic complexity as ruff's C901 counts it."""

    name: str
    """Such as `archiver/cli/run.py: Job.start`."""
    lines: int
    complexity: int


def main() -> None:
    """Print the counts of both trees, or the files that run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--base", default="", help="the Git revision to compare with")
    parser.add_argument("--verbose", action="store_true", help="name what was counted in the working tree")
    parser.add_argument("--running", action="store_true", help="count the files that run in four commands instead")
    given = parser.parse_args()
    if given.running:
        called = programs_files()
        print(
            as_text(Table("Files that run", ("", "now"), [(name, str(len(files))) for name, files in called.items()]))
        )
        if given.verbose:
            print("\n".join(f"{name}: {file}" for name, files in called.items() for file in files))
        return
    columns = {given.base: counts(revision(given.base))} if given.base else {}
    columns["now"] = counts(worktree())
    rows = [(what, *(column[what] for column in columns.values())) for what in columns["now"]]
    print(as_text(Table("The product, counted", ("", *columns), rows)))
    if given.verbose:
        print("\n" + "\n".join(details(product(worktree()))))


def worktree() -> Sources:
    """Return the Python files of the working tree that Git does not ignore."""
    git = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {name: (ROOT / name).read_text() for name in sorted(set(listed)) if (ROOT / name).is_file()}


def revision(name: str) -> Sources:
    """Return the Python files of a Git revision without checking it out."""
    git = ("git", "archive", f"{name}^{{commit}}")
    run = subprocess.run(git, cwd=ROOT, capture_output=True, check=False)
    if run.returncode:
        raise SystemExit(f"Git has no revision {name} here")
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(run.stdout)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".py"):
                file = archive.extractfile(member)
                assert file is not None
                sources[member.name] = file.read().decode()
    return dict(sorted(sources.items()))


def product(sources: Sources) -> Sources:
    """Return the files outside tests, benchmarks and docs."""
    return {path: text for path, text in sources.items() if PurePosixPath(path).parts[0] not in OUTSIDE}


def counts(sources: Sources) -> dict[str, str]:
    """Return each figure, ready to print, by its name."""
    house = product(sources)
    trees = {path: ast.parse(text, path) for path, text in house.items()}
    lines = sum(map(_line_count, house.values()))
    documented = Counter(is_documented for _, is_documented in public_names(trees))
    found = list(functions(house))
    longest = max(found, key=lambda function: function.lines)
    hardest = max(found, key=lambda function: function.complexity)
    file = max(house, key=lambda path: _line_count(house[path]))
    tests = (text for path, text in sources.items() if PurePosixPath(path).parts[0] in TESTS)
    return {
        "lines": f"{lines:,}",
        "lines of code": f"{sum(map(code_lines, house.values())):,}",
        "statements": f"{sum(map(statements, trees.values())):,}",
        "modules": f"{len(house):,}",
        f"modules of at most {SMALL} lines": str(sum(_line_count(text) <= SMALL for text in house.values())),
        "record types": str(len(records(trees))),
        "public class names with several meanings": str(len(shared_names(trees, private=False))),
        "class names with several meanings": str(len(shared_names(trees))),
        "lines that import": f"{sum(map(import_lines, trees.values())) / lines:.1%}",
        "lines that comment": f"{sum(map(comment_lines, house.values())) / lines:.2%}",
        "public names with a docstring": f"{documented[True] / max(documented.total(), 1):.1%}",
        "longest function": f"{PurePosixPath(longest.name).name}: {longest.lines}",
        "highest complexity": f"{PurePosixPath(hardest.name).name}: {hardest.complexity}",
        "longest file": f"{file}: {_line_count(house[file])}",
        "lines of tests and benchmarks": f"{sum(map(_line_count, tests)):,}",
    }


def details(house: Sources) -> Iterator[str]:
    """Yield long and complex functions, small modules, record types and class names with several meanings."""
    trees = {path: ast.parse(text, path) for path, text in house.items()}
    for function in functions(house):
        if function.lines > 50 or function.complexity > 10:
            yield f"{function.name}: {function.lines} lines, complexity {function.complexity}"
    for path, text in house.items():
        if _line_count(text) <= SMALL:
            yield f"small: {path}: {_line_count(text)}"
    yield from (f"record: {place}" for place in records(trees))
    yield from (f"{name}: {', '.join(places)}" for name, places in shared_names(trees).items())
    yield from (f"no docstring: {name}" for name, is_documented in public_names(trees) if not is_documented)


def code_lines(text: str) -> int:
    """Return the number of lines that are not blank, a comment or a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if _is_docstring(node):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def comment_lines(text: str) -> int:
    """Return the number of lines that only comment, without directives for tools."""
    lines = map(str.strip, text.splitlines())
    return sum(line.startswith("#") and not line.startswith(DIRECTIVES) for line in lines)


def statements(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in ast.walk(tree))


def _is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a string and nothing else: docstrings of attributes count as well."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def records(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the place of each class that leads, through bases or decorators, to one of RECORDS."""
    classes = list(_classes(trees))
    own = {path: _own_names(tree, {PurePosixPath(other).parts[0] for other in trees}) for path, tree in trees.items()}
    found = set[tuple[str, str]]()
    while True:
        names = {name for _, name in found}
        more = {
            (path, node.name)
            for path, node in classes
            for base in map(_last_name, (*node.bases, *node.decorator_list))
            if base in RECORDS or (path, base) in found or (base in own[path] and base in names)
        }
        if more == found:
            return [f"{path}: {node.name}" for path, node in classes if (path, node.name) in found]
        found = more


def _own_names(tree: ast.Module, packages: set[str]) -> set[str]:
    """Return the names that a module imports from the product."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        alias.asname or alias.name
        for node in imports
        if (node.module or "").partition(".")[0] in packages
        for alias in node.names
    }


def shared_names(trees: Mapping[str, ast.Module], *, private: bool = True) -> dict[str, list[str]]:
    """Return the files of each name that several classes have; a leading underscore makes no other name."""
    places = defaultdict[str, list[str]](list)
    for path, node in _classes(trees):
        if private or not node.name.startswith("_"):
            places[node.name.lstrip("_")].append(path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def _classes(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


def _last_name(node: ast.expr) -> str:
    """Return `Struct` for `msgspec.Struct`, `dataclass` for `dataclass(frozen=True)`, `Page` for `Page[T]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def public_names(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, bool]]:
    """Yield each public class, function and method, and whether it has a docstring."""
    for path, tree in trees.items():
        for name, node in _definitions(tree, ""):
            if not any(part.startswith("_") for part in name.split(".")):
                yield f"{path}: {name}", ast.get_docstring(node) is not None


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield the classes and functions of a module or a class, but no function within a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _definitions(child, prefix)


def import_lines(tree: ast.Module) -> int:
    """Return the number of lines of import statements, late imports included."""
    return sum(_height(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def functions(sources: Sources) -> Iterator[Function]:
    """Yield every function and method, nested ones too."""
    for path, text in sources.items():
        for name, node in _functions_in(ast.parse(text), ""):
            yield Function(f"{path}: {name}", _height(node), 1 + _decisions(node.body))


def _functions_in(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _functions_in(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions_in(child, f"{prefix}{child.name}.")
        else:
            yield from _functions_in(child, prefix)


def _decisions(statements: Iterable[ast.AST]) -> int:
    """Count branches, loops, handlers, cases and nested functions as ruff's C901 does."""
    return sum(_own_decisions(statement) + _decisions(_inner(statement)) for statement in statements)


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    within = ast.stmt | ast.excepthandler | ast.match_case
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, within))


def _own_decisions(node: ast.AST) -> int:
    match node:
        case ast.Match(cases=cases):
            return len(cases) - _is_default(cases[-1])
        case ast.Try(orelse=orelse, handlers=handlers):
            return len(handlers) + bool(orelse)
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return 1
        case _:
            return 0


def _is_default(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _line_count(text: str) -> int:
    return len(text.splitlines())


if __name__ == "__main__":
    main()
