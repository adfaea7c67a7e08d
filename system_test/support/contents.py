"""Keys, values and headers of every class that an encoder could get wrong."""

from dataclasses import replace

from system_test.support.topics import NewRecord, Transactions, create_topic, produce

NASTY_MS = 1_600_000_000_000
"""The timestamp of the first record of `produce_nasty`; the others follow by the millisecond."""

TEXT = "Zürich \u2028 Ελλάδα 🚲 \ud7ff\ue000\ufeff"
CONTENTS: list[bytes | None] = [
    *(None, b"", b"plain", b"\n", b"a line\nand another\r\n", b"\0", bytes(range(256))),
    *(bytes(range(0x20)) + b'"\\/\x7f', TEXT.encode(), b"\xef\xbb\xbfwith a byte order mark", b"\xff\xfe"),
    *(b"\xed\xa0\x80", b"cut short \xf0\x9f\x9a", b"null", b"{}", *(bytes([byte]) for byte in range(256))),
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


def produce_nasty(bootstrap: str, topic: str, partitions: int) -> int:
    """Create a topic of every content, with transactions committed and aborted; return how many records can be read."""
    create_topic(bootstrap, topic, partitions)
    every = [
        replace(record, partition=n % partitions, timestamp=NASTY_MS + n)
        for n, record in enumerate(records_of_every_content())
    ]
    produce(bootstrap, topic, every)
    with Transactions(bootstrap, topic) as transactions:
        for number, end in enumerate((transactions.commit, transactions.abort, transactions.commit)):
            end(topic, [NewRecord(b"%d" % number, partition=n % partitions) for n in range(20)])
    return len(every) + 40
