"""The pages at the top of the repository name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
FOLDERS = "archiver|benchmarks|blockgz|deploy|docs|index_format|replayer|system_test|tests"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = re.sub(r"https?://[^\s)]+", "", (ROOT / page).read_text())
    named = re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*", text)
    linked = (target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text))
    assert not [path for path in (*named, *linked) if not (ROOT / path.rstrip(".")).exists()]


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = "archiver", "blockgz", "index_format", "replayer"
    folders = [path.parent for package in packages for path in (ROOT / package).rglob("__init__.py")]
    assert folders
    assert [str(folder) for folder in folders if f"{folder.relative_to(ROOT).as_posix()}/" not in text] == []


def test_the_pictures_name_modules() -> None:
    pictures = (ROOT / "ARCHITECTURE.md").read_text().partition("## Two data flows")[2].partition("## Seams")[0]
    modules = {path.stem for name in ("archiver", "replayer", "blockgz") for path in (ROOT / name).rglob("*.py")}
    folders = {path.name for path in (ROOT / "replayer").rglob("*/")}
    steps = set(re.findall(r"(?<=-> )\w+|\w+(?= +->)", pictures)) - {"Kafka", "store", "buffer"}
    assert steps
    assert steps - modules - folders == set()


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
