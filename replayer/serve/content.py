"""Record content for people: as text that no browser obeys, as a JSON tree, as hex, each of it bounded."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blockgz.program.terminal import printable
from blockgz.units import bytes_text

PREVIEW_CHARACTERS = 160
TEXT_BYTES = 64 * 1024
JSON_BYTES = 256 * 1024
HEX_BYTES = 2 * 1024
MOST_NODES = 1000
MOST_LEVELS = 40
_HEX_LINE = 16


class ShownContent(NamedTuple):
    """One key, value or header as it is shown; None if it cannot be shown in this form."""

    size: str
    """The size as text; `null` for none."""
    preview: str
    text: str | None = None
    tree: "Node | None" = None
    hex: str | None = None
    is_cut: bool = False
    """True if text and hex show only its beginning."""


@dataclass
class Node:
    """A JSON value: a leaf with its `text`, or an object or array with `children`."""

    name: str | None
    kind: str
    text: str = ""
    children: list["Node"] = field(default_factory=list)


def shown(content: bytes | None) -> ShownContent:
    """Return a content in every form that it has."""
    if content is None:
        return ShownContent("null", "null")
    head = bytes(content[:TEXT_BYTES])
    is_cut = len(content) > TEXT_BYTES
    text = _decoded(head, is_cut=is_cut)
    size = bytes_text(len(content))
    if text is None:
        return ShownContent(size, f"{size} binary", None, None, hex_dump(head[:HEX_BYTES]), len(content) > HEX_BYTES)
    tree = json_tree(bytes(content)) if len(content) <= JSON_BYTES else None
    return ShownContent(size, preview(text), printable(text), tree, hex_dump(head[:HEX_BYTES]), is_cut)


def preview(text: str) -> str:
    """Return the beginning as one line."""
    line = printable(" ".join(text[: 4 * PREVIEW_CHARACTERS].split()))
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[:PREVIEW_CHARACTERS]}…"


def preview_of(content: bytes | None) -> str:
    """Return the beginning of a content as one line."""
    if content is None:
        return "null"
    head = bytes(content[: 8 * PREVIEW_CHARACTERS])
    text = _decoded(head, is_cut=len(content) > len(head))
    return f"{bytes_text(len(content))} binary" if text is None else preview(text)


def hex_dump(content: bytes) -> str:
    """Return lines as `hexdump -C` writes them."""
    lines = []
    for start in range(0, len(content), _HEX_LINE):
        part = content[start : start + _HEX_LINE]
        digits = " ".join(f"{byte:02x}" for byte in part)
        characters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {digits:<{3 * _HEX_LINE}} {characters}")
    return "\n".join(lines)


def json_tree(content: bytes) -> Node | None:
    """Return the value of JSON text, numbers as they are written; None unless it is an object or array."""
    try:
        value = json.loads(
            content, object_pairs_hook=_Pairs, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list):
        return None
    return _Growing().node(None, value, MOST_LEVELS)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, in order, those of one name all."""


class _Literal(str):
    """A number as it is written."""


class _Growing:
    """Nodes, until there are too many."""

    def __init__(self) -> None:
        self._left = MOST_NODES

    def node(self, name: str | None, value: Any, levels: int) -> Node:
        self._left -= 1
        shown_name = None if name is None else _told(name)
        if not isinstance(value, list):
            return Node(shown_name, _kind(value), _leaf(value))
        members = (
            list(value) if isinstance(value, _Pairs) else [(str(number), each) for number, each in enumerate(value)]
        )
        node = Node(shown_name, "object" if isinstance(value, _Pairs) else "array", f"{len(members)}")
        for inner_name, inner in members:
            if self._left <= 0 or levels <= 0:
                node.children.append(Node(None, "cut", "…"))
                break
            node.children.append(self.node(inner_name, inner, levels - 1))
        return node


def _kind(value: Any) -> str:
    if isinstance(value, _Literal):
        return "number"
    return "string" if isinstance(value, str) else "word"


def _leaf(value: Any) -> str:
    if isinstance(value, _Literal):
        return str(value)
    if isinstance(value, str):
        return _told(value)
    return json.dumps(value)


def _told(text: str) -> str:
    """Return a string of JSON, which may hold half of a character (`"\\ud800"`)."""
    return printable(text.encode(errors="backslashreplace").decode())


def _decoded(head: bytes, *, is_cut: bool) -> str | None:
    """Return the text of the bytes; None if they are not UTF-8, a character that is cut at the end apart."""
    for cut in range(4 if is_cut else 1):
        try:
            return head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None
