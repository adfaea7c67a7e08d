"""What producers note of a record and the checker compares: a hash over everything that must survive."""

import hashlib
import struct
from collections.abc import Sequence


def fingerprint(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, str | bytes | None]], timestamp: int
) -> str:
    """20 hexadecimal digits over key, value, headers in order, and timestamp (ms)."""
    parts = [struct.pack(">q", timestamp), _field(key), _field(value)]
    for name, content in headers:
        parts += [_field(name.encode()), _field(content.encode() if isinstance(content, str) else content)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:20]


def key_hash(key: bytes | None) -> str | None:
    """12 hexadecimal digits of a key; None of a null one."""
    return None if key is None else hashlib.sha256(key).hexdigest()[:12]


def _field(content: bytes | None) -> bytes:
    return b"\0" if content is None else b"\1" + struct.pack(">I", len(content)) + content
