"""The three syntaxes of configuration files, read into keys, texts and line numbers; what they mean is not known here.

Maps may nest in YAML and JSON, `{a: {b: 1}}` being the key `a.b`; Java properties are flat. Scalars are taken as they
are written, so that `no` and `007` stay what they are. A key that is given twice is an error in all of them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from blockgz_runtime.errors import UsageError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.?))", re.DOTALL)
_YAML_TAGS = "tag:yaml.org,2002:"
_DEEPEST = 8

Value = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Entry:
    """One key, its value, and where it stands (`file:line`)."""

    key: str
    value: Value
    place: str


def parse_document(name: str, text: str) -> list[Entry]:
    """The entries of a file, its syntax told by its name's ending. Raises UsageError, naming the line."""
    if name.endswith(".properties"):
        entries = list(_properties(name, text))
    elif name.endswith(".json"):
        entries = list(_json(name, text))
    elif name.endswith((".yaml", ".yml")):
        entries = list(_yaml(name, text))
    else:
        raise UsageError(
            f"{name} is of no known kind",
            why="a configuration is told by its ending: .yaml, .yml, .properties or .json",
            remedy="rename the file",
        )
    return _unique(entries)


def _unique(entries: list[Entry]) -> list[Entry]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.key in seen:
            raise UsageError(
                f"{entry.place}: {entry.key} is given twice",
                why=f"it stands in {seen[entry.key].place} already",
                remedy="keep one of them",
            )
        seen[entry.key] = entry
    return entries


def _yaml(name: str, text: str) -> Iterator[Entry]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _malformed(f"{name}:{line}", "YAML", error.problem or str(error)) from error
    except yaml.YAMLError as error:
        raise _malformed(name, "YAML", " ".join(str(error).split())) from error
    if root is None or root.tag == _YAML_TAGS + "null":
        return
    if not isinstance(root, yaml.MappingNode):
        raise _malformed(f"{name}:1", "a map of settings", "the document is a list or a single value")
    yield from _yaml_map(name, root, ())


def _yaml_map(name: str, mapping: yaml.MappingNode, outer: tuple[str, ...]) -> Iterator[Entry]:
    for key_node, node in mapping.value:
        place = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _YAML_TAGS + "merge" or len(outer) > _DEEPEST:
            raise _malformed(place, "a setting", "keys are plain words, in maps that are not deep")
        key = (*outer, key_node.value)
        if isinstance(node, yaml.MappingNode) and node.value:
            yield from _yaml_map(name, node, key)
        else:
            yield Entry(".".join(key), _yaml_value(node, place), place)


def _yaml_value(node: yaml.Node, place: str) -> Value:
    if isinstance(node, yaml.ScalarNode) and node.tag.startswith(_YAML_TAGS):
        return None if node.tag == _YAML_TAGS + "null" else str(node.value)
    if isinstance(node, yaml.MappingNode) and not node.value:
        return None
    if isinstance(node, yaml.SequenceNode):
        items = [_yaml_value(item, place) for item in node.value]
        if all(isinstance(item, str) for item in items):
            return tuple(str(item) for item in items)
    raise _malformed(place, "a setting", "a value is a text, a number, or a list of texts, without tags")


def _json(name: str, text: str) -> Iterator[Entry]:
    """Connect's `{"name": …, "config": {…}}`, or its config alone."""
    try:
        root = json.loads(text, object_pairs_hook=_Pairs, parse_float=str, parse_int=str)
    except json.JSONDecodeError as error:
        raise _malformed(f"{name}:{error.lineno}", "JSON", error.msg) from error
    except RecursionError as error:
        raise _malformed(name, "JSON", "it is nested too deep") from error
    if not isinstance(root, _Pairs):
        raise _malformed(f"{name}:1", "a map of settings", "the document is a list or a single value")
    yield from _json_map(_JsonLines(name, text), root, ())


def _json_map(lines: "_JsonLines", pairs: "_Pairs", outer: tuple[str, ...]) -> Iterator[Entry]:
    for inner, value in pairs:
        place = lines.place(inner)
        if isinstance(value, _Pairs):
            key = outer if inner == "config" and not outer else (*outer, inner)
            yield from _json_map(lines, value, key)
        else:
            yield Entry(".".join((*outer, inner)), _json_value(value, place), place)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object in the order in which it was written, twins included."""


class _JsonLines:
    """Lines of keys, asked for in the order of the text."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._at = 0

    def place(self, key: str) -> str:
        found = re.compile(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:").search(self._text, self._at)
        if found is None:
            return self._name
        self._at = found.end()
        return f"{self._name}:{self._text.count(chr(10), 0, found.start()) + 1}"


def _json_value(value: Any, place: str) -> Value:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise _malformed(place, "a setting", "a value is a text, a number, or a list of texts")


def _properties(name: str, text: str) -> Iterator[Entry]:
    """As java.util.Properties reads them, but in UTF-8."""
    for number, line in _logical_lines(text):
        match = _PROPERTY.fullmatch(line)
        key = _unescaped(match[1]) if match else ""
        if not match or not key:
            raise _malformed(f"{name}:{number}", "a property", "there is no name before the =")
        yield Entry(key, _unescaped(match[2]), f"{name}:{number}")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, less comments and blank ones, each with the number of its first line."""
    begun, first = "", 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        stripped = line.lstrip(" \t\f")
        if not first and (not stripped or stripped[0] in "#!"):
            continue
        first = first or number
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            begun += stripped[:-1]
            continue
        yield first, begun + stripped
        begun, first = "", 0
    if first:
        yield first, begun


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPES.get(match[2], match[2]), text)


def _malformed(place: str, kind: str, why: str) -> UsageError:
    return UsageError(f"{place} is not {kind}", why=why, remedy="correct the file; archiver config init prints one")
