"""Who may import what, how large things may grow, where tests are; the contracts of import-linter are run as well."""

import ast
import importlib
import re
import subprocess
import sys
from configparser import ConfigParser
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

from benchmarks.house import functions, product, public_names, shared_names, worktree
from system_test.mutants.faults import MUTANTS
from tests.support.campaign import SIMULATIONS

ROOT = Path(__file__).parent.parent
PACKAGES = ("archiver", "blockgz", "index_format", "replayer")
TYPES_ONLY = {"types_boto3_s3"}
"""Imported for the type checker alone."""
NOT_MODULES = {
    *("archiver.a", "archiver.b", "archiver.c", "archiver.yaml", "blockgz.archiver", "blockgz.gz", "blockgz.json"),
    *("blockgz.yaml", "replayer.nothing"),
}
"""Strings that look like the name of a module and are not: files, a logger, modules of invented trees."""
SHARED_CLASS_NAMES = set[str]()
"""Names that several classes have, with or without a leading underscore: the list may only get shorter."""
MAKERS = {"exec", "compile", "make_dataclass", "defstruct", "create_model", "new_class"}
NAMELESS = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def imported(module: Path) -> frozenset[str]:
    """The top-level packages that a module imports, wherever in it the import stands."""
    found = set[str]()
    for node in ast.walk(ast.parse((ROOT / module).read_text(), str(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return frozenset(found)


def importers(*libraries: str) -> set[Path]:
    return {module for module in modules() if imported(module) & set(libraries)}


KAFKA = (
    *("archiver/demo.py", "archiver/doctor.py", "archiver/ingest/dead_letters.py", "archiver/ingest/kafka_cluster.py"),
    *("archiver/ingest/kafka_source.py", "blockgz/kafka", "replayer/kafka"),
    *("replayer/replay/sinks",),
)
"""Where the Kafka seam is: a folder or a module."""


@pytest.mark.parametrize(
    ("libraries", "homes"),
    [
        (("confluent_kafka",), KAFKA),
        (("boto3",), ("blockgz/store/s3_writer.py", "blockgz/encryption/key_service.py")),
        (("s3transfer",), ("blockgz/store/s3_writer.py",)),
        (("aiobotocore",), ("blockgz/store/s3_reader.py",)),
        (("botocore",), ("blockgz/store", "blockgz/encryption/key_service.py")),
        (("cryptography",), ("index_format/encryption.py", "blockgz/signing.py")),
        (("click", "rich"), ("archiver/cli", "replayer/cli", "blockgz/program")),
        (("pyspark",), ("archiver/spark", "replayer/spark", "blockgz/spark")),
    ],
)
def test_a_library_is_known_where_it_belongs(libraries: tuple[str, ...], homes: tuple[str, ...]) -> None:
    found = importers(*libraries)
    assert found
    assert not {module for module in found if not any(module.is_relative_to(home) for home in homes)}


def test_calls_that_abort_the_process_are_made_by_a_child_process() -> None:
    """librdkafka fails an assertion in them if a broker goes away."""
    calls = re.compile(r"\.(describe_consumer_groups|delete_consumer_groups|describe_cluster)\b")
    found = {str(module) for module in modules() if calls.search((ROOT / module).read_text())}
    assert found == {"blockgz/kafka/admin_apart.py"}


@pytest.mark.slow
def test_what_the_programs_import_is_installed_with_them() -> None:
    """The tests bring so much along that a missing requirement shows nowhere but where only the programs are."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    required = {_requirement(line) for line in setup["options"]["install_requires"].split("\n") if line}
    for_spark = {_requirement(line) for line in extras["spark"].split("\n") if line}
    of_package = packages_distributions()
    missing = {
        (str(module), name)
        for module in modules()
        for name in imported(module) - sys.stdlib_module_names - set(PACKAGES) - TYPES_ONLY
        if not {_normal(each) for each in of_package[name]}
        & (required | (for_spark if "spark" in module.parts else set()))
    }
    assert not missing


def _requirement(line: str) -> str:
    return _normal(re.split(r"[<>=\[]", line)[0])


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_modules_are_named_for_what_they_hold() -> None:
    names = {part.removesuffix(".py") for module in modules() for part in module.parts}
    assert not names & NAMELESS


@pytest.mark.slow
def test_functions_are_short() -> None:
    """Decorators, such as a command's options, do not count. The linter bounds complexity."""
    assert [function for function in functions(product(worktree())) if function.lines > 60] == []


def test_files_are_short() -> None:
    assert [path for path, text in product(worktree()).items() if text.count("\n") > 800] == []


@cache
def trees() -> dict[str, ast.Module]:
    return {path: ast.parse(text, path) for path, text in product(worktree()).items()}


@pytest.mark.slow
def test_no_code_is_made_from_text_at_run_time() -> None:
    made = [f"{path}:{node.lineno}" for path, tree in trees().items() for node in ast.walk(tree) if _makes_code(node)]
    assert made == []


def _makes_code(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_, _, _]):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in MAKERS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
            return name in MAKERS and module != "re"
        case _:
            return False


def test_public_names_have_a_docstring() -> None:
    named = list(public_names(trees()))
    missing = [name for name, is_documented in named if not is_documented]
    assert len(missing) <= 0.18 * len(named), missing


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    found = shared_names(trees())
    assert not {name: paths for name, paths in found.items() if name not in SHARED_CLASS_NAMES}, "rename one of them"
    assert not SHARED_CLASS_NAMES - found.keys(), "delete these from SHARED_CLASS_NAMES"


def test_no_planted_bug_is_dropped() -> None:
    """Compare the bugs that tests plant with their list: if code moves, the bug planted in it moves along."""
    bugs = {kind: list(simulation.bugs) for kind, simulation in SIMULATIONS.items()}
    bugs["mutants"] = [mutant.name for mutant in MUTANTS]
    found = sorted(f"{kind}: {name}" for kind, names in bugs.items() for name in names)
    assert found == (ROOT / "tests/golden/planted_bugs.txt").read_text().splitlines()


@pytest.mark.slow
def test_modules_that_strings_name_exist() -> None:
    """Fail if a string in a test names a module or an attribute that was renamed: a patch of it would do nothing."""
    named = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[a-z_]\w*)+(?:\.\w+)?")
    missing = set[str]()
    for folder in ("tests", "system_test", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and named.fullmatch(text) and not _exists(text):
                    missing.add(text)
    assert not missing - NOT_MODULES


def _exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_the_programs_exist() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    scripts = dict(line.replace(" ", "").split("=") for line in lines if line)
    assert set(scripts) == {"archiver", "replayer"}
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert (ROOT / name / "__main__.py").is_file(), f"python -m {name}"


def test_no_module_is_in_an_import_cycle() -> None:
    """What two modules of a circle share belongs into a third below both."""
    graph = grimp.build_graph(*PACKAGES)
    sorter = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.slow
def test_the_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
