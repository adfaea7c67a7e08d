"""Settings of transforms as files have them: Java properties, YAML, or Connect's JSON, told by the name's ending.

Maps may nest, `{transforms: {mask: {type: …}}}` being `transforms.mask.type`; where `transforms` itself is not listed,
the order is that of the file. Scalars are taken as they are written.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import javaproperties
import yaml

from blockgz_runtime.errors import UsageError


def parse_document(name: str, text: str) -> dict[str, str]:
    """Raises UsageError for a file that cannot be read as what its name says, or that says something twice."""
    if name.endswith(".properties"):
        pairs: Iterable[tuple[str, str]] = _properties(name, text)
    elif name.endswith((".yaml", ".yml", ".json")):
        pairs = _yaml(name, text)
    else:
        raise UsageError(
            f"{name} is of no known kind",
            why="transforms are told by the ending of the file: .properties, .yaml, .yml or .json",
            remedy="rename the file",
        )
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{name} says {key} twice", why="one of them would be lost", remedy="keep one of them")
        found[key] = value
    for kind in ("transforms", "predicates"):
        # Dictionaries keep the order of the file.
        nested = dict.fromkeys(key.split(".")[1] for key in found if key.startswith(f"{kind}."))
        if nested and kind not in found:
            found[kind] = ",".join(nested)
    return found


def _properties(name: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                yield element.key, element.value
    except javaproperties.InvalidUEscapeError as error:
        raise _malformed(name, "a properties file", str(error)) from error


def _yaml(name: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        # JSON is YAML; composing keeps scalars as text and shows keys that are given twice.
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise _malformed(name, "YAML", " ".join(str(error).split())) from error
    if not isinstance(root, yaml.MappingNode):
        raise _malformed(name, "a map of settings", "the document is empty, a list or a single value")
    yield from _flattened(name, root, ())


def _flattened(name: str, mapping: yaml.MappingNode, outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key_node, node in mapping.value:
        if not isinstance(key_node, yaml.ScalarNode) or len(outer) > 4:
            raise _malformed(name, "a map of settings", f"line {key_node.start_mark.line + 1}: keys are plain words")
        # Connect's own form is {"name": …, "config": {…}}.
        key = outer if key_node.value == "config" and not outer else (*outer, key_node.value)
        if isinstance(node, yaml.MappingNode):
            yield from _flattened(name, node, key)
        else:
            yield ".".join(key), _scalar(name, node)


def _scalar(name: str, node: Any) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(item.value for item in node.value)
    raise _malformed(
        name, "a map of settings", f"line {node.start_mark.line + 1}: a value is a text or a list of texts"
    )


def _malformed(name: str, kind: str, why: str) -> UsageError:
    return UsageError(f"{name} is not {kind}", why=why, remedy="correct the file")
