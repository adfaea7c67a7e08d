"""Record content for people."""

import json
import random

import pytest

from replayer.serve import content
from replayer.serve.content import MOST_NODES, Node, hex_dump, json_tree, preview_of, shown

HOSTILE = "\x1b[31m\u202eevil\u2066\u0000\x9b\r"


def test_null_empty_text_and_binary() -> None:
    assert shown(None).size == "null"
    empty = shown(b"")
    assert (empty.text, empty.tree, empty.hex) == ("", None, "")
    binary = shown(b"\xff\xfe")
    assert (binary.text, binary.preview, binary.hex) == (None, "2 bytes binary", hex_dump(b"\xff\xfe"))
    assert shown("Kännchen ☕".encode()).text == "Kännchen ☕"


def test_what_a_browser_or_a_terminal_would_obey_is_escaped() -> None:
    found = shown(HOSTILE.encode())
    assert found.text is not None
    for text in (found.text, found.preview, preview_of(HOSTILE.encode())):
        assert not any(character in text for character in "\x1b\u202e\u2066\x00\x9b\r")
        assert "\\u202e" in text
    tree = json_tree(json.dumps({HOSTILE: [HOSTILE]}).encode())
    assert tree is not None
    assert "\u202e" not in str(tree)


def test_a_tree_keeps_numbers_names_and_order_as_they_are_written() -> None:
    tree = json_tree(b'{"b":12345678901234567890.10,"a":[1e3,null,true,"x"],"b":{},"c":[]}')
    assert tree is not None
    assert [(child.name, child.kind, child.text) for child in tree.children] == [
        ("b", "number", "12345678901234567890.10"),
        ("a", "array", "4"),
        ("b", "object", "0"),
        ("c", "array", "0"),
    ]
    assert [(child.kind, child.text) for child in tree.children[1].children] == [
        ("number", "1e3"),
        ("word", "null"),
        ("word", "true"),
        ("string", "x"),
    ]


@pytest.mark.parametrize("text", [b"17", b'"text"', b"null", b"{", b"\xff", b"[1,]", b"[" * 100_000])
def test_what_is_no_object_or_array_has_no_tree(text: bytes) -> None:
    assert json_tree(text) is None


def test_half_a_character_is_escaped() -> None:
    tree = json_tree(b'{"a\\udfff":["\\ud800"]}')
    assert tree is not None
    assert (tree.children[0].name, tree.children[0].children[0].text) == ("a\\udfff", "\\ud800")


def count(node: Node) -> int:
    return 1 + sum(map(count, node.children))


def test_a_tree_is_bounded() -> None:
    wide, deep = json_tree(json.dumps(list(range(10_000))).encode()), json_tree(b"[" * 400 + b"]" * 400)
    assert wide is not None and deep is not None
    assert count(wide) <= MOST_NODES + 1
    assert wide.children[-1].kind == "cut"
    assert count(deep) < 50


def test_large_content_is_cut_at_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "TEXT_BYTES", 10)
    for size in range(12, 18):
        found = shown(("ä" * size).encode())
        assert found.text == "ä" * 5
        assert found.is_cut
    found = shown(("x" + "ä" * 20).encode())
    assert found.text == "xääää"
    assert len(preview_of(b"long " * 10_000)) < 200


def test_hex() -> None:
    assert hex_dump(b"<script>\x00\xff") == ("00000000  3c 73 63 72 69 70 74 3e 00 ff                    <script>..")


def test_any_bytes_can_be_shown() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        found = shown(rng.randbytes(rng.randrange(60)))
        assert found.hex is not None
