"""Patterns of English that native readers stumble over, counted in pages, docstrings, messages, comments and names.

`python -m tests.support.plain_english` prints the counts; with a word of an advice, such as `verb`, places as well.
"""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = "archiver", "blockgz", "index_format", "replayer"
MIN_WORDS = 4
"""Words that make a string a message."""


class Text(NamedTuple):
    """A docstring, a message, a comment, a line of a page, or a name, with its place."""

    kind: str
    path: str
    line: int
    text: str


class Pattern(NamedTuple):
    """A regular expression for one kind of stumble, and what to write instead."""

    expression: re.Pattern[str]
    advice: str
    kinds: frozenset[str]


class Stumble(NamedTuple):
    """A hit of a pattern in a text."""

    pattern: Pattern
    text: Text
    words: str

    def __str__(self) -> str:
        return f"{self.text.path}:{self.text.line}: {self.words!r}: write {self.pattern.advice}"


def _starts(words: str, advice: str) -> Pattern:
    return Pattern(re.compile(rf"(?:{words})\b"), advice, frozenset({"docstring"}))


def _anywhere(words: str, advice: str) -> Pattern:
    return Pattern(re.compile(words, re.IGNORECASE), advice, frozenset({"page", "docstring", "message", "comment"}))


PARTICIPLES = (
    "told asked held pinned followed continued agreed settled begun narrowed booked spared guarded found meant wanted "
    "named alone around kept"
)
PATTERNS = (
    _starts(r"\AWhat|\AWhere|\AWhich|\AWhose|\AThat|\AWho|\AWhoever", "a verb, or a noun with its article"),
    _starts(r"\AWhether", "'Return whether' for a function, 'True if' for an attribute"),
    _starts(r"\AOf|\ABy|\AAs|\AThose|\AThese|\ABelow it|\AAbove it|\AInto|\AFrom", "the thing's name"),
    _starts(r"\AThe same|\AThe reverse|\ALikewise", "it again in full"),
    _starts(r"\ASo (?:long|many|often|much)|\AAbout so", "'Seconds between', 'Attempts before'"),
    _anywhere(
        r"\bwhere (?:there|it|they|that|this|no|none|nothing|nobody|one|those|he|both|all|neither)\b", "'if' or 'when'"
    ),
    _anywhere(
        r"\b(?:is|are|was|were|be|been) (?:told|asked)\b|\b(?:tells?|told) (?:of|what|whether|that|where|which|who)\b",
        "report, show, know, request",
    ),
    _anywhere(r"\b(?:stands?|stood|lies|lay) (?:there|in|at|where|beside|below|above|behind|for)\b", "is, are"),
    _anywhere(
        r"\bso (?:long|many|often|much) (?:as )?(?:a|an|the|it|that|they|of|is|are)?\b", "how long, after N tries"
    ),
    _anywhere(
        r"\b(?:of (?:them|these|those|which)) (?:is|are|that|one|each|all)\b|\bof (?:them|those) (?:alone|all)\b",
        "the noun",
    ),
    _anywhere(
        r"\bwhat (?:is|was|are|were|there is|it) (?:left|to do|not|no|of|in|at|meant|needed|found|held)\b", "the noun"
    ),
    _anywhere(r"\bis no (?:mere )?(?!longer|one\b)[a-z]+\b", "is not a"),
    _anywhere(
        r"\b(?:anew|mend(?:s|ed|ing)?|besides?|meanwhile|for ever|any more|goes on|go on|went on|gone on|else[,.;:]"
        r"|but for|for want of)\b",
        "again, fix, next to, in the meantime, forever, any longer, continue, otherwise, except, because",
    ),
    _anywhere(
        r"\b(?:at work|under way|in hand|at hand|at the least|at the most|as it stands|as they stand|on the way)\b",
        "running, pending, available, at least, at most",
    ),
    _anywhere(r"\b(?:made|written|wrapped|told|begun|done|read|asked|looked at) (?:again|anew)\b", "rebuilt, repeated"),
    _anywhere(r"\b(?:whoever|whatever|wherever|whichever)\b", "anyone who, regardless of"),
    _anywhere(
        r"\b(?:brings about|comes of it|what comes of|becomes of|is meant|are meant|for good and all)\b",
        "causes, results in, refers to",
    ),
    Pattern(re.compile(rf"\A_?(?:{'|'.join(PARTICIPLES.split())})(?:_|\Z)"), "a verb", frozenset({"name"})),
)


def texts() -> Iterator[Text]:
    """Yield the prose of the project: all pages but the changelog, and the text and names of the four packages."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        if name.endswith(".md") and not name.startswith("CHANGELOG") and (ROOT / name).exists():
            yield from _lines_of(name)
        elif name.endswith(".py") and name.split("/")[0] in PACKAGES and (ROOT / name).exists():
            yield from _code_of(name)


def stumbles(texts: Iterator[Text]) -> Iterator[Stumble]:
    for text in texts:
        for pattern in PATTERNS:
            if text.kind in pattern.kinds:
                for match in pattern.expression.finditer(text.text):
                    yield Stumble(pattern, text, match[0])


def _lines_of(name: str) -> Iterator[Text]:
    is_code = False
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code:
            yield Text("page", name, number, line)


def _code_of(name: str) -> Iterator[Text]:
    path = ROOT / name
    docstrings = set[int]()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text("name", name, node.lineno, node.name)
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                    docstrings.add(id(constant))
                    yield Text("docstring", name, child.lineno, text)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and text.count(" ") >= MIN_WORDS - 1:
                yield Text("message", name, node.lineno, text)
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield Text("comment", name, token.start[0], token.string)


if __name__ == "__main__":
    every = list(stumbles(texts()))
    if len(sys.argv) > 1:
        print("\n".join(str(stumble) for stumble in every if sys.argv[1] in stumble.pattern.advice))
    for pattern in PATTERNS:
        print(f"{sum(stumble.pattern is pattern for stumble in every):5}  {pattern.advice}")
