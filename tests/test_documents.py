"""The pages at the top of the repository name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("CONTRIBUTING.md", "README.md", "SECURITY.md")
FOLDERS = "archiver|benchmarks|blockgz_runtime|docs|index_format|replayer|system_test|tests"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = re.sub(r"https?://\S+", "", (ROOT / page).read_text())
    named = re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*", text)
    linked = (target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text))
    assert not [path for path in (*named, *linked) if not (ROOT / path.rstrip(".")).exists()]


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
