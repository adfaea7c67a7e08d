"""The pages name files and sections that exist, and are short enough to read."""

import ast
import re
from pathlib import Path

import pytest

from blockgz.program.main import EXIT_CODES

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
