"""Pages, docstrings, messages, comments and names are plain English: stumbles may only become fewer."""

from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.plain_english import PATTERNS, Stumble, Text, stumbles, texts

PAGES_PER_10_000_WORDS = 10
MOST: Mapping[str, int] = {"docstring": 60, "message": 70, "comment": 16, "name": 66}
"""Stumbles in the code by kind of text, as last counted: lower a number when you can, and never raise it."""
SHOWN = 20


@pytest.fixture(scope="module")
def prose() -> list[Text]:
    return list(texts())


@pytest.fixture(scope="module")
def found(prose: list[Text]) -> list[Stumble]:
    return list(stumbles(iter(prose)))


def test_pages_are_plain_english(prose: list[Text], found: list[Stumble]) -> None:
    words = sum(len(text.text.split()) for text in prose if text.kind == "page")
    of_pages = [stumble for stumble in found if stumble.text.kind == "page"]
    assert words > 10_000
    assert 10_000 * len(of_pages) / words <= PAGES_PER_10_000_WORDS, _shown(of_pages)


@pytest.mark.parametrize("kind", MOST)
def test_the_code_does_not_become_harder_to_read(kind: str, found: list[Stumble]) -> None:
    of_kind = [stumble for stumble in found if stumble.text.kind == kind]
    assert len(of_kind) <= MOST[kind], _shown(of_kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("docstring", "What the archive holds."),
        ("docstring", "Whether a chunk is whole."),
        ("docstring", "Of its newest folder alone."),
        ("docstring", "The same of blocks."),
        ("docstring", "So many attempts before it gives up."),
        ("page", "Where there is no marker, it starts."),
        ("message", "this is asked of the store"),
        ("comment", "# it lies in the buffer"),
        ("page", "it is no error"),
        ("docstring", "Return it; the writer goes on."),
        ("page", "a writer that is at work"),
        ("page", "it is read again, whatever happens"),
        ("name", "_held_offsets"),
    ],
)
def test_a_stumble_is_found(kind: str, text: str) -> None:
    assert list(stumbles(iter([Text(kind, "x", 1, text)])))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("docstring", "Return the newest marker of a partition."),
        ("message", "what happened"),
        ("page", "The marker is no longer read."),
        ("name", "hold_lock"),
        ("name", "is_asked_for"),
        ("page", "What the archive holds."),
    ],
)
def test_plain_english_is_not_found(kind: str, text: str) -> None:
    assert not list(stumbles(iter([Text(kind, "x", 1, text)])))


def _shown(found: list[Stumble]) -> str:
    counts = Counter(stumble.pattern for stumble in found)
    totals = [f"{counts[pattern]:5}  {pattern.advice}" for pattern in PATTERNS if counts[pattern]]
    return "\n".join([*map(str, found[:SHOWN]), *totals])
