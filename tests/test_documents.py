"""The pages name files and sections that exist, and are short enough to read."""

import ast
import contextlib
import io
import re
import shlex
from pathlib import Path

import click
import pytest
from fastapi.routing import APIRoute

import blockgz
from archiver.cli import main as archiver_main
from archiver.importing import IMPORT_GROUP
from archiver.logs import LogEvent
from blockgz.program.main import EXIT_CODES
from index_format.objects import UNVERIFIED
from index_format.old_objects import OLD_FORMATS
from index_format.records import Record
from replayer.cli import main as replayer_main
from replayer.library_choice import Choice
from replayer.library_replay import ReplayChoice
from replayer.serve import archive_routes, job_routes
from replayer.serve.app import ERRORS
from replayer.serve.errors import MAX_BODY_BYTES, STATUS_OF_CODE
from replayer.serve.guard import LOGINS_A_MINUTE, SESSION_SECONDS
from replayer.serve.replays import MOST_PLANS
from replayer.serve.settings import LEAST_TOKEN
from replayer.serve.tasks import MOST_FOUND, MOST_RUNNING
from tests.support.archives import ArchiveWriter
from tests.support.mock_cluster import MockCluster

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
EVERY_PAGE = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "index_format/**/*.md", "blockgz/**/*.md")
    for path in ROOT.glob(pattern)
)
LONG = "FORMAT.md", "docs/configuration.md"
"""Pages over 250 lines: the specification, and the page whose tables are made from the configuration model."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
FOLDERS = "archiver|benchmarks|blockgz|deploy|docs|index_format|replayer|system_test|tests"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = re.sub(r"https?://[^\s)]+", "", (ROOT / page).read_text())
    named = re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*", text)
    linked = (target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text))
    assert not [path for path in (*named, *linked) if not (ROOT / path.rstrip(".")).exists()]


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """Return the names by which links reach the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_links_lead_to_pages_and_sections(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(ROOT / page)):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", sorted({*EVERY_PAGE} - {*LONG}))
def test_a_page_has_at_most_250_lines(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= 250, "split it by reader, or shorten it"


def test_the_site_shows_every_page() -> None:
    shown = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert shown >= {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = "archiver", "blockgz", "index_format", "replayer"
    folders = [path.parent for package in packages for path in (ROOT / package).rglob("__init__.py")]
    assert folders
    assert [str(folder) for folder in folders if f"{folder.relative_to(ROOT).as_posix()}/" not in text] == []


def _members(file: Path) -> set[str]:
    """Return the classes, functions and names of a module, and `Class.method` for each method."""
    members = set[str]()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members |= {
                node.name,
                *(f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, FUNCTIONS)),
            }
        elif isinstance(node, FUNCTIONS):
            members.add(node.name)
        elif isinstance(node, ast.Assign):
            members |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return members


def test_the_architecture_names_functions_and_classes_that_exist() -> None:
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    named = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", text)
    named += [(path, name) for name, path in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", text)]
    assert len(named) > 50
    assert [(path, name) for path, name in named if name not in _members(ROOT / path)] == []


def test_a_walk_has_ten_steps() -> None:
    walks = re.findall(r"^## (.*)\n\n(1\. (?:.|\n)*?)\n\n", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert len(walks) == 4
    assert [(name, len(re.findall(r"^\d+\. ", walk, re.MULTILINE))) for name, walk in walks] == [
        (name, 10) for name, _ in walks
    ]


def test_the_index_of_questions_is_in_order() -> None:
    rows = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is")[2].splitlines()
    questions = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")][1:]
    assert len(questions) > 40
    assert questions == sorted(questions, key=str.lower)


def test_the_page_lists_the_exit_codes() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)
    assert [int(code) for row in rows for code in row.split(", ")] == list(EXIT_CODES)


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text


OLD_ARCHIVES_PAGE = (Path(__file__).parent.parent / "docs/old-archives.md").read_text()
SYMPTOMS_PAGE = (Path(__file__).parent.parent / "docs/symptoms.md").read_text()
COMMANDS = re.findall(r"^(?:archiver|replayer) .+$", OLD_ARCHIVES_PAGE, re.MULTILINE)
REMEDIES = sorted({*re.findall(r"`((?:archiver|replayer) [^`…]+)`", SYMPTOMS_PAGE)})
SYMPTOMS = sorted(
    {
        quote
        for row in re.findall(r"^\| (.+?) \|", SYMPTOMS_PAGE, re.MULTILINE)
        for quote in re.findall("`([^`]+)`", row)
    }
)


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """All strings of the programs, with … in place of what is filled in."""

    def text(node: ast.AST) -> str | None:
        if isinstance(node, ast.JoinedStr):
            return "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    files = (file for top in ("archiver", "blockgz", "index_format", "replayer") for file in (ROOT / top).rglob("*.py"))
    return [found for file in files for node in ast.walk(ast.parse(file.read_text())) if (found := text(node))]


@pytest.mark.parametrize("quote", SYMPTOMS)
def test_a_symptom_is_in_the_words_of_the_programs(quote: str, messages: list[str]) -> None:
    if re.fullmatch("[a-z_]+", quote):
        assert quote in set(LogEvent)
        return
    parts = quote.split("…")
    assert len("".join(parts).strip()) > 5
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(message) for message in messages)


@pytest.mark.parametrize("line", [*COMMANDS, *REMEDIES])
def test_commands_exist(line: str) -> None:
    program, *words = shlex.split(line)
    command: click.Command = archiver_main if program == "archiver" else replayer_main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    with command.make_context(line, words, resilient_parsing=True):
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known


def test_words() -> None:
    _, table = OLD_ARCHIVES_PAGE[OLD_ARCHIVES_PAGE.index("| `--old-format` |") :].split("\n\n")[0].split("|---|---|")
    assert re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE) == list(OLD_FORMATS)
    assert f"`{IMPORT_GROUP}`" in OLD_ARCHIVES_PAGE and f"`{UNVERIFIED}`" in OLD_ARCHIVES_PAGE


SERVICE_PAGE = (Path(__file__).parent.parent / "docs" / "service.md").read_text()


def test_every_operation_is_named() -> None:
    routes = [*archive_routes.api.routes, *job_routes.api.routes]
    there = {f"{next(iter(route.methods))} {route.path}" for route in routes if isinstance(route, APIRoute)}
    assert set(re.findall(r"^\| `((?:GET|POST) [^`]+)`", SERVICE_PAGE, re.MULTILINE)) == there


def test_every_status_is_named() -> None:
    rows = re.findall(r"^\| ([0-9]{3}[0-9, ]*) \| [^|]+ \|([0-9, ]*)\|$", SERVICE_PAGE, re.MULTILINE)
    told = {int(status): codes for statuses, codes in rows for status in statuses.split(", ")}
    assert set(told) == set(ERRORS) - {405}
    for code, status in STATUS_OF_CODE.items():
        assert str(code) in told[status].strip().split(", ")


def test_its_bounds_are_those_of_the_program() -> None:
    assert f"at least {LEAST_TOKEN} characters" in SERVICE_PAGE
    assert f"lasts {SESSION_SECONDS // 3600} hours" in SERVICE_PAGE
    assert LOGINS_A_MINUTE == 10 and "Ten wrong tokens a" in SERVICE_PAGE
    assert f"up to {MAX_BODY_BYTES // 1024} KiB" in SERVICE_PAGE
    assert f"{MOST_RUNNING} tasks and {MOST_PLANS} plans at once" in SERVICE_PAGE
    assert f"{MOST_FOUND:,} hits a search" in SERVICE_PAGE


PYTHON_PAGE = (Path(__file__).parent.parent / "docs/python.md").read_text()
NOON_MS = 1_795_176_000_000
"""2026-11-20T12:00:00Z."""


def orders(count: int) -> list[Record]:
    return [
        Record(each, NOON_MS + each * 1000, 0, b"customer-%d" % (each % 7), b'{"id": %d}' % each, ())
        for each in range(count)
    ]


@pytest.mark.slow
def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ArchiveWriter(tmp_path / "archive")
    writer.partition("orders", 0).commit(orders(1000))
    writer.partition("orders", 1).commit(orders(10))
    writer.partition("users", 0).commit(orders(10))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    examples = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", PYTHON_PAGE, re.DOTALL)
    assert len(examples) == PYTHON_PAGE.count("```python")
    cluster = MockCluster()
    cluster.create_topic("orders-copy")
    names: dict[str, object] = {}
    for code, output in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code.replace("localhost:9092", cluster.bootstrap_servers), names)
        assert printed.getvalue() == output, code


def test_the_page_names_every_error_and_argument() -> None:
    kinds = [name for name in blockgz.__all__ if isinstance(getattr(blockgz, name), type)]
    errors = [name for name in kinds if issubclass(getattr(blockgz, name), Exception)]
    assert [name for name in errors if f"`{name}`" not in PYTHON_PAGE and f"`blockgz.{name}`" not in PYTHON_PAGE] == []
    assert [name for name in (*Choice.__annotations__, "limit") if f"`{name}=" not in PYTHON_PAGE] == []
    replaying = ReplayChoice.__annotations__.keys() - Choice.__annotations__.keys()
    assert [name for name in replaying if f"`{name}`" not in PYTHON_PAGE] == []
