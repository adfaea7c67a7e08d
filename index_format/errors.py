"""Errors that tell an operator what happened, why, and what to do next.

The tree::

    BlockgzError                what, why, remedy
    ├── FormatError             stored bytes are not what the format says (a ValueError)
    │   ├── MalformedObject     an index, marker or catalog is not what it must be
    │   ├── UnsupportedVersion  written by a newer major version of the format
    │   ├── TooLarge            a stored number or object exceeds the reader's bound
    │   └── CorruptBlock        a block does not decompress to what its index says
    ├── KeyMissing              a chunk is encrypted, and its key is missing
    └── BadName                 a topic or object name outside the format's alphabet (a ValueError)
"""

import re
from typing import Any

MASK = "********"
# User and password of a URL; the latter may hold a slash that should have been encoded.
_USER = re.compile(r'(?<=://)(?:[^\s/?#"@:]*:(?!\d+(?:[/?#]|$))[^\s"]*|[^\s/?#"]*)@')
_SIGNED = re.compile(
    r"(?<=[?&;])((?:X-Amz-(?:Credential|Security-Token|Signature)|AWSAccessKeyId|sig|signature|\w*token|\w*secret"
    r'|password|api[_-]?key)=)[^\s&;#"]+',
    re.IGNORECASE,
)


def masked_urls(text: str) -> str:
    """Return the text without users, passwords, signatures and tokens of the URLs in it."""
    return _SIGNED.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", text))


class BlockgzError(Exception):
    """A failure, its reason and its remedy, without secrets of URLs; `str()` says in a line what happened."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what, self.why, self.remedy = map(masked_urls, (what, why, remedy))
        super().__init__(self.what)

    @property
    def reason(self) -> str:
        """The event and its cause, in one line."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def __reduce__(self) -> tuple[Any, ...]:
        """Kinds are made of arguments of their own, so that another process gets the state instead."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[BlockgzError], args: tuple[object, ...], state: dict[str, object]) -> BlockgzError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class FormatError(BlockgzError, ValueError):
    """Stored bytes break a rule of the format: damage, or not an archive."""


class MalformedObject(FormatError):
    """An index, marker, catalog or identity object is not what it must be."""


class UnsupportedVersion(FormatError):
    """The object carries a major version that this reader does not know."""


class TooLarge(FormatError):
    """A stored number or object exceeds what the reader is configured to accept."""


class CorruptBlock(FormatError):
    """A block does not inflate, or not to the length, checksum, count or offsets in its index."""


class KeyMissing(BlockgzError):
    """A chunk is encrypted, and the key that would open it is missing: nothing is damaged."""


class BadName(BlockgzError, ValueError):
    """A topic or object name that the format cannot hold or that does not parse back to itself."""
