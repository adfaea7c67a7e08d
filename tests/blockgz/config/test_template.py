"""docs/configuration.md says what the model says; `python -m` and the name of this module makes it so."""

import re
from pathlib import Path

import pytest

from blockgz.config.files import Settings, settings_of
from blockgz.config.kinds import markdown_connect_names, markdown_fields, markdown_reserved
from blockgz.config.resolution import resolve
from blockgz.documents import parse_document

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
TABLES = {"fields": markdown_fields, "reserved": markdown_reserved, "connect": markdown_connect_names}


def with_tables(text: str) -> str:
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
        content = table()
        text, found = pattern.subn(lambda match, content=content: f"{match[1]}{content}{match[2]}", text)  # type: ignore[misc]
        assert found == 1, name
    return text


def test_the_tables_are_those_of_the_model() -> None:
    text = PAGE.read_text()
    assert text == with_tables(text), "run python -m tests.blockgz.config.test_template"


EXAMPLES = re.findall(r"^```(yaml|properties|json)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("kind", "text"), EXAMPLES, ids=[kind for kind, _ in EXAMPLES])
def test_the_examples_are_valid(kind: str, text: str) -> None:
    settings: Settings = settings_of(parse_document(f"example.{kind}", text)).settings
    assert resolve(settings, environ={}).config.archive == "s3://backup/kafka"


def test_there_is_an_example_of_every_kind() -> None:
    assert {kind for kind, _ in EXAMPLES} == {"yaml", "properties", "json"}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
