"""Escape what a terminal would obey: record content, names and error texts may come from anyone.

Control characters and those that change the direction of text are shown as `\\x1b` and `\\u202e`. A pipe or a file gets
every byte as it is.
"""

import io
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# All control characters except tab and line feed; direction marks, and Unicode's line ends.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text without control characters, except tabs and line feeds."""
    return _OBEYED.sub(lambda found: _shown(ord(found[0])), text)


def _shown(code: int) -> str:
    # Above ASCII as JSON does, in whose strings these may stand.
    return f"\\x{code:02x}" if code < 0x7F else f"\\u{code:04x}"


class _Escaping(io.BufferedIOBase):
    """The bytes below a text stream on a terminal; those that are not UTF-8 are shown as `\\xff`."""

    def __init__(self, terminal: TextIO) -> None:
        self.name = terminal.name
        self.terminal = terminal
        self.passes_all = False
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.terminal.fileno()

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        if not self.passes_all:
            text = printable(self._decoder.decode(content))
            self.terminal.buffer.write(text.encode(self.terminal.encoding, "backslashreplace"))
        else:
            self.terminal.buffer.write(content)
        return len(content)

    def flush(self) -> None:
        self.terminal.flush()


@contextmanager
def escaped_terminals() -> Iterator[None]:
    """Escape what is printed on stdout and stderr inside the block, if they are terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _escaped(sys.stdout), _escaped(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _escaped(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or not stream.isatty() or _layer(stream) is not None:
        return stream
    return io.TextIOWrapper(_Escaping(stream), encoding="utf-8", errors="surrogateescape", line_buffering=True)


def _layer(stream: TextIO) -> _Escaping | None:
    layer = getattr(stream, "buffer", None)
    return layer if isinstance(layer, _Escaping) else None


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below, for output that may control the terminal, such as a progress bar."""
    layer = _layer(stream)
    return stream if layer is None else layer.terminal


def pass_everything() -> None:
    """Write every byte to stdout unchanged from now on, also on a terminal."""
    layer = _layer(sys.stdout)
    if layer is not None:
        layer.passes_all = True
