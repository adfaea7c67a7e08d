"""`python -m benchmarks.house`: counts the product's modules and lines, before and after, side by side.

The product is every Python file of the packages that are installed. Before is a revision of Git, after is the working
tree. A tree of sources is a mapping of paths, such as `archiver/cli/run.py`, to text.
"""

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from benchmarks.tables import Table, as_text

ROOT = Path(__file__).parent.parent
PACKAGES = ("archiver", "blockgz", "blockgz_runtime", "index_format", "replayer")
PROGRAMS = ("archiver", "replayer")
BASE = "aa55ef0"
"""The revision that is compared with where none is given."""
SMALL = 50
"""A module with fewer lines counts as small."""
RUN = 6
"""Lines that two files share in a row before they count as copied."""

Sources = Mapping[str, str]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function with its lines, decorators left out, and its cyclomatic complexity as ruff's C901 counts it."""

    name: str
    """Such as `archiver/cli/run.py: Job.start`."""
    lines: int
    complexity: int


class Twin(NamedTuple):
    """A run of lines that stands in a file of each program."""

    left: str
    right: str
    lines: int


def main() -> None:
    """Print the counts of both trees."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--base", default="", help=f"the Git revision to compare with ({BASE})")
    parser.add_argument("--verbose", action="store_true", help="name what was counted in the working tree")
    given = parser.parse_args()
    base, now = given.base or BASE, worktree()
    columns = {"now": counts(now)}
    if (before := revision(base)) is not None:
        columns = {base: counts(before), **columns}
    elif given.base:
        raise SystemExit(f"Git has no revision {base} here")
    rows = [(what, *(column[what] for column in columns.values())) for what in columns["now"]]
    print(as_text(Table("The product, counted", ("", *columns), rows)))
    if given.verbose:
        print("\n" + "\n".join(details(now)))


def worktree() -> Sources:
    """The product's sources as they stand in the working tree, without files that Git would ignore."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def revision(name: str) -> Sources | None:
    """The product's sources in a revision; None where Git does not have it. Checks nothing out."""
    run = subprocess.run(["git", "archive", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    if run.returncode:
        return None
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(run.stdout)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".py" and path.parts[0] in PACKAGES:
                file = archive.extractfile(member)
                assert file is not None
                sources[member.name] = file.read().decode()
    return dict(sorted(sources.items()))


def counts(sources: Sources) -> dict[str, str]:
    """Each figure, ready to print, by its name."""
    total = sum(map(_line_count, sources.values()))
    folder, files = Counter(folders(sources)).most_common(1)[0]
    found = list(functions(sources))
    longest = max(found, key=lambda function: function.lines)
    hardest = max(found, key=lambda function: function.complexity)
    copied = twins(sources)
    return {
        "modules": f"{len(sources):,}",
        "lines": f"{total:,}",
        "lines that import": f"{sum(map(import_lines, sources.values())) / total:.1%}",
        "largest folder": f"{folder}: {files}",
        **{f"files at the top of {name}": str(len(loose_files(sources, name))) for name in PROGRAMS},
        f"modules under {SMALL} lines": str(len(small_modules(sources))),
        "longest function": f"{_short(longest.name)}: {longest.lines}",
        "highest complexity": f"{_short(hardest.name)}: {hardest.complexity}",
        "import circles": str(len(circles(import_graph(sources)))),
        f"runs of {RUN} lines in both programs": str(len(copied)),
        "lines in such runs": str(sum(twin.lines for twin in copied)),
    }


def details(sources: Sources) -> Iterator[str]:
    """What the figures count: long and complex functions, circles, copied runs."""
    for function in functions(sources):
        if function.lines > 50 or function.complexity > 10:
            yield f"{function.name}: {function.lines} lines, complexity {function.complexity}"
    for circle in circles(import_graph(sources)):
        yield "circle: " + ", ".join(circle)
    for twin in twins(sources):
        yield f"{twin.lines} lines: {twin.left} and {twin.right}"


def folders(sources: Iterable[str]) -> Iterator[str]:
    """The folder of every module but `__init__`."""
    return (str(path.parent) for path in map(PurePosixPath, sources) if path.name != "__init__.py")


def loose_files(sources: Iterable[str], program: str) -> list[str]:
    """The modules that stand at the top of a program, beside `__init__` and `__main__`."""
    dunder = {"__init__.py", "__main__.py"}
    return [path for path in sources if PurePosixPath(path).parts[:-1] == (program,) and Path(path).name not in dunder]


def small_modules(sources: Sources) -> list[str]:
    """The modules of fewer than 50 lines, `__init__` and `__main__` left out."""
    return [path for path, text in sources.items() if _line_count(text) < SMALL and not Path(path).name.startswith("_")]


def import_lines(text: str) -> int:
    """The lines of import statements, wherever they stand."""
    nodes = ast.walk(ast.parse(text))
    return sum(_height(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def functions(sources: Sources) -> Iterator[Function]:
    """Every function and method, nested ones too."""
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
    """Branches, loops, handlers, cases and nested functions, as ruff's C901 counts them."""
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


def import_graph(sources: Sources) -> dict[str, set[str]]:
    """The modules of the product that each one imports at once or later; imports for the type checker are left out."""
    names = {_dotted(path) for path in sources}
    return {_dotted(path): set(_imported(ast.parse(text), names)) - {_dotted(path)} for path, text in sources.items()}


def _imported(tree: ast.Module, names: set[str]) -> Iterator[str]:
    for node in _at_run_time(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from {inner if inner in names else node.module} & names


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _at_run_time(child)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other by imports: strongly connected components of more than one."""
    reached = {module: _reachable(graph, module) for module in graph}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted(sorted(group) for group in groups if group)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def twins(sources: Sources) -> list[Twin]:
    """The longest runs of at least six equal lines that a file of each program shares.

    Indentation, blank lines, comments and imports do not count. A run of the second program is counted once, with the
    longest run of the first that it equals.
    """
    left, right = ({path: _normal(text) for path, text in sources.items() if _in(path, name)} for name in PROGRAMS)
    places: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for path, lines in left.items():
        for at in range(len(lines) - RUN + 1):
            places.setdefault(tuple(lines[at : at + RUN]), []).append((path, at))
    found = []
    for path, lines in right.items():
        at = 0
        while at + RUN <= len(lines):
            starts = places.get(tuple(lines[at : at + RUN]), [])
            runs = [Twin(other, path, _shared(left[other][begin:], lines[at:])) for other, begin in starts]
            if runs:
                found.append(max(runs, key=lambda twin: twin.lines))
                at += found[-1].lines
            else:
                at += 1
    return found


def _normal(text: str) -> list[str]:
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [line for number, line in lines if line and not line.startswith("#") and number not in imports]


def _shared(left: Sequence[str], right: Sequence[str]) -> int:
    for count, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return count
    return min(len(left), len(right))


def _in(path: str, package: str) -> bool:
    return PurePosixPath(path).parts[0] == package


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _line_count(text: str) -> int:
    return len(text.splitlines())


def _short(name: str) -> str:
    """A function without the path of its file."""
    return PurePosixPath(name).name


if __name__ == "__main__":
    main()
