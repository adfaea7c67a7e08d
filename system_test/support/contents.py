"""Keys, values and headers of every class that an encoder could get wrong."""

from __future__ import annotations

from system_test.support.topics import NewRecord

TEXT = "Zürich \u2028 Ελλάδα 🚲 \ud7ff\ue000\ufeff"
CONTENTS: list[bytes | None] = [
    None,
    b"",
    b"plain",
    b"\n",
    b"a line\nand another\r\n",
    b"\0",
    bytes(range(256)),
    bytes(range(0x20)) + b'"\\/\x7f',
    TEXT.encode(),
    b"\xef\xbb\xbfwith a byte order mark",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"cut short \xf0\x9f\x9a",
    b"null",
    b"{}",
    *(bytes([byte]) for byte in range(256)),
]
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [
    (("h", b"v"),),
    (("h", None),),
    (("h", b""),),
    (("twice", b"1"), ("twice", b"2"), ("twice", None), ("twice", b"1")),
    (("", b"the key is empty"),),
    ((TEXT, TEXT.encode()),),
    (('\n"', b'\0\n"'),),
    tuple((f"h{number}", bytes([number % 256])) for number in range(300)),
]


def records_of_every_content() -> list[NewRecord]:
    """A record for each content as its value, as its key, and for each list of headers; then tombstones."""
    records = [NewRecord(content, key=b"k", timestamp=1) for content in CONTENTS]
    records += [NewRecord(b"v", key=content, timestamp=1) for content in CONTENTS]
    records += [NewRecord(b"v", headers=headers, timestamp=1) for headers in HEADERS]
    return records + [NewRecord(None, timestamp=time) for time in (0, 1, 1_700_000_000_000)]
