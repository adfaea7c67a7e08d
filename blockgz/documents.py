"""The three syntaxes of configuration files, read into keys, texts and line numbers; what they mean is not known here.

Maps may nest in YAML and JSON, `{a: {b: 1}}` being the key `a.b`; Java properties are flat. Scalars are taken as they
are written, so that `no` and `007` stay what they are. A key that is given twice is an error in all of them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import javaproperties
import yaml

from blockgz.errors import UsageError

_LINE_END = re.compile(r"\r\n|\r|\n")
_YAML_TAGS = "tag:yaml.org,2002:"
_DEEPEST = 8
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")

DocumentValue = str | tuple[str, ...] | None


@dataclass(frozen=True)
class DocumentEntry:
    """One key, its value, and its place (`file:line`)."""

    key: str
    value: DocumentValue
    place: str


def parse_document(name: str, text: str) -> list[DocumentEntry]:
    """Return the entries of a file, its syntax told by its name's ending. Raises UsageError, naming the line."""
    if name.endswith(".properties"):
        entries = list(_properties(name, text))
    elif name.endswith(".json"):
        entries = list(_json(name, text))
    elif name.endswith((".yaml", ".yml")):
        entries = list(_yaml(name, text))
    else:
        raise UsageError(
            f"{name} is not of a known kind",
            why="the file extension must be .yaml, .yml, .properties or .json",
            remedy="rename the file",
        )
    return _unique(entries)


def _unique(entries: list[DocumentEntry]) -> list[DocumentEntry]:
    seen: dict[str, DocumentEntry] = {}
    for entry in entries:
        if entry.key in seen:
            raise UsageError(
                f"{entry.place}: {entry.key} is given twice",
                why=f"it is already set in {seen[entry.key].place}",
                remedy="keep one of them",
            )
        seen[entry.key] = entry
    return entries


def _yaml(name: str, text: str, transparent: str | None = None) -> Iterator[DocumentEntry]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _malformed(f"{name}:{line}", "YAML", error.problem or str(error)) from error
    except yaml.YAMLError as error:
        raise _malformed(name, "YAML", " ".join(str(error).split())) from error
    except RecursionError as error:
        raise _malformed(name, "YAML", "it is nested too deeply") from error
    if root is None or root.tag == _YAML_TAGS + "null":
        return
    if not isinstance(root, yaml.MappingNode):
        raise _malformed(f"{name}:1", "a map of settings", "the document is a list or a single value")
    yield from _yaml_map(name, root, (), transparent)


def _yaml_map(
    name: str, mapping: yaml.MappingNode, outer: tuple[str, ...], transparent: str | None = None
) -> Iterator[DocumentEntry]:
    for key_node, node in mapping.value:
        place = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _YAML_TAGS + "merge" or len(outer) > _DEEPEST:
            raise _malformed(place, "a setting", "keys must be plain words, in maps that are not nested deeply")
        key = (*outer, key_node.value)
        if isinstance(node, yaml.MappingNode) and node.value:
            yield from _yaml_map(name, node, () if key == (transparent,) else key)
        else:
            yield DocumentEntry(".".join(key), _yaml_value(node, place), place)


def _yaml_value(node: yaml.Node, place: str) -> DocumentValue:
    if isinstance(node, yaml.ScalarNode) and node.tag.startswith(_YAML_TAGS) and "/" not in node.tag:
        return None if node.tag == _YAML_TAGS + "null" else str(node.value)
    if isinstance(node, yaml.MappingNode) and not node.value:
        return None
    if isinstance(node, yaml.SequenceNode):
        items = [_yaml_value(item, place) for item in node.value]
        if all(isinstance(item, str) for item in items):
            return tuple(str(item) for item in items)
    raise _malformed(place, "a setting", "a value must be a text, a number, or a list of texts, without tags")


def _json(name: str, text: str) -> Iterator[DocumentEntry]:
    """Yield the entries of Connect's `{"name": …, "config": {…}}`, or of its config alone."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise _malformed(f"{name}:{error.lineno}", "JSON", error.msg) from error
    except RecursionError as error:
        raise _malformed(name, "JSON", "it is nested too deeply") from error
    # JSON is YAML, which knows its lines, but for tabs between tokens and for characters escaped as two.
    plain = _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text.replace("\t", " "))
    yield from _yaml(name, plain, transparent="config")


def _properties(name: str, text: str) -> Iterator[DocumentEntry]:
    """Yield the entries as java.util.Properties reads them, but in UTF-8."""
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                if not element.key:
                    raise _malformed(f"{name}:{line}", "a property", "there is no name before the =")
                yield DocumentEntry(element.key, element.value, f"{name}:{line}")
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise _malformed(f"{name}:{line}", "a property", str(error)) from error


def _malformed(place: str, kind: str, why: str) -> UsageError:
    return UsageError(f"{place} is not {kind}", why=why, remedy="correct the file")
