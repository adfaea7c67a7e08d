"""docs/configuration.md says what the model says; `python -m` and the name of this module makes it so."""

import re
from pathlib import Path

import pytest

from blockgz.config.files import ALIASES, BUCKETS, NOT_USED, PREFIXES, REFUSED, Settings, settings_of
from blockgz.config.kinds import FIELDS, FieldKind, default_text, field_kind, meaning, option_name, variable_name
from blockgz.config.model import KAFKA_RESERVED
from blockgz.config.resolution import resolve
from blockgz.documents import parse_document

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def markdown_fields() -> str:
    """The table of fields in docs/configuration.md."""
    rows = ["| field | flag | environment | default | meaning |", "|---|---|---|---|---|"]
    for field, info in FIELDS.items():
        default = f"`{default_text(field)}`" if default_text(field) else "required" if info.is_required() else ""
        flag = option_name(field)
        if field_kind(field) is FieldKind.SWITCH:
            flag += f"`, `{flag.replace('--', '--no-', 1)}"
        rows.append(f"| `{field}` | `{flag}` | `{variable_name(field)}` | {default} | {meaning(field)} |")
    return "\n".join(rows) + "\n"


def markdown_connect_names() -> str:
    """The table of Connect's names in docs/configuration.md."""
    rows = ["| Connect's name | here | note |", "|---|---|---|"]
    rows += [f"| `{name}` | `archive` | the bucket of `s3://bucket/prefix` |" for name in BUCKETS]
    rows += [f"| `{name}` | `archive` | the prefix of `s3://bucket/prefix` |" for name in PREFIXES]
    rows += [f"| `{name}` | `{alias.field}` | {alias.note} |" for name, alias in ALIASES.items()]
    rows += [f"| `{name}` | not used | {note} |" for name, note in NOT_USED.items()]
    rows += [f"| `{name}` | refused | {reason} |" for name, reason in REFUSED.items()]
    return "\n".join(rows) + "\n"


def markdown_reserved() -> str:
    """The table of librdkafka's settings that may not be set, in docs/configuration.md."""
    rows = ["| setting | why |", "|---|---|"]
    rows += [f"| `{name}` | {reason} |" for name, reason in KAFKA_RESERVED.items()]
    return "\n".join(rows) + "\n"


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
    settings: Settings = settings_of(parse_document(f"example.{kind}", text))[0]
    assert resolve(settings, environ={}).config.archive == "s3://backup/kafka"


def test_there_is_an_example_of_every_kind() -> None:
    assert {kind for kind, _ in EXAMPLES} == {"yaml", "properties", "json"}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
