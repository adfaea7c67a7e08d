"""`python -m benchmarks.codecs`: what each codec and level makes of blocks of several kinds of records, on one core.

Prints a markdown table. Speeds are of processor time, the least of several rounds over the same blocks of 1 MiB, as the
archiver cuts them; libdeflate takes part where the system has it.
"""

import argparse
import ctypes
import ctypes.util
import gzip
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from benchmarks.data import generated
from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from index_format.blocks import COMPRESSORS
from index_format.record_formats import record_format
from index_format.records import NO_TIMESTAMP_TYPE, batch_without_timestamps

SEED = 11
BLOCK_BYTES = 1024 * 1024
NAMES = ["anna", "bert", "clara", "dana", "emil", "finn", "gwen", "hugo", "ida", "jan", "karl", "lena"]
PATHS = [f"/api/v{version}/{what}" for version in (1, 2) for what in ("orders", "users", "carts", "items", "search")]

Compress = Callable[[bytes], bytes]


def json_event(chance: random.Random, words: int) -> bytes:
    """An event of a web shop, with some words of free text."""
    text = " ".join(
        f"{chance.getrandbits(22):05x}" if chance.random() < 0.4 else chance.choice(NAMES) for _ in range(words)
    )
    return (
        b'{"event_id":"%032x","type":"%s","user":{"id":%d,"name":"%s"},"amount":%.2f,"ts":%d,"note":"%s"}'
        % (
            chance.getrandbits(128), chance.choice((b"order", b"payment", b"refund")), chance.randrange(10**6),
            chance.choice(NAMES).encode(), chance.random() * 500, 1_760_000_000_000 + chance.randrange(10**9),
            text.encode(),
        )
    )  # fmt: skip


def avro_record(chance: random.Random) -> bytes:
    """The binary layout of Avro behind a registry's five bytes: variable-length integers, doubles and strings."""
    fields = [b"\0" + struct.pack(">I", 42)]
    for _ in range(6):
        fields += [_varint(chance.randrange(10**6)), struct.pack("<d", round(chance.random() * 500, 2))]
        name = chance.choice(NAMES).encode() + b"-%d" % chance.randrange(1000)
        fields += [_varint(len(name) * 2), name]
    return b"".join(fields)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def log_line(chance: random.Random) -> bytes:
    """A line of a web server's access log."""
    address = ".".join(str(chance.randrange(256)) for _ in range(4))
    path, code = chance.choice(PATHS), chance.choice((200, 200, 200, 304, 404, 500))
    when = f"{chance.randrange(24):02d}:{chance.randrange(60):02d}:{chance.randrange(60):02d}"
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
    size, took = chance.randrange(50_000), chance.random()
    request = f"GET {path}/{chance.randrange(10**6)} HTTP/1.1"
    return f'{address} - - [23/Nov/2025:{when} +0000] "{request}" {code} {size} {took:.3f} "{agent}"'.encode()


_GENERATED = generated(1024)

KINDS: dict[str, tuple[str, Callable[[random.Random], bytes]]] = {
    "JSON, 1 KB": ("json", lambda chance: json_event(chance, 150)),
    "JSON, 200 B": ("json", lambda chance: json_event(chance, 12)),
    "generated, 1 KB": ("json", lambda _: next(_GENERATED)),
    "Avro": ("arrow", avro_record),
    "log lines": ("text", log_line),
    "compressed": ("arrow", lambda chance: gzip.compress(json_event(chance, 150), 6, mtime=0)),
}
"""Record format and record of each kind; `generated` are the records of the other benchmarks."""


def blocks(kind: str, count: int) -> list[bytes]:
    """So many blocks of records of that kind."""
    chance = random.Random(SEED)
    name, made = KINDS[kind]
    codec = record_format(name)

    def values() -> Iterator[bytes]:
        while True:
            yield made(chance)

    each, found, first = values(), [], 0
    for _ in range(count):
        content: list[bytes] = []
        while sum(map(len, content[-1:])) == 0 or len(content) * len(content[0]) < BLOCK_BYTES:
            content += islice(each, 256)
        keys = [None if name == "text" else b"key-%d" % chance.randrange(10_000) for _ in content]
        batch = batch_without_timestamps(first, keys, content)
        found.append(codec.join([codec.piece(*codec.encode(batch, NO_TIMESTAMP_TYPE), 0, len(content))]))
        first += len(content)
    return found


def libdeflate(level: int) -> Compress | None:
    """The system's libdeflate, which makes gzip members; None where there is none."""
    path = ctypes.util.find_library("deflate")
    if path is None:
        return None
    library = ctypes.CDLL(path)
    library.libdeflate_alloc_compressor.restype = ctypes.c_void_p
    library.libdeflate_gzip_compress.restype = ctypes.c_size_t
    library.libdeflate_gzip_compress.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t
    ]  # fmt: skip
    compressor = ctypes.c_void_p(library.libdeflate_alloc_compressor(level))

    def compress(raw: bytes) -> bytes:
        room = ctypes.create_string_buffer(len(raw) + 1024)
        size = library.libdeflate_gzip_compress(compressor, raw, len(raw), room, len(room))
        return room.raw[:size]

    return compress


def codecs() -> dict[str, Compress]:
    found: dict[str, Compress | None] = {
        f"gzip, ISA-L {level}": COMPRESSORS["isal"](level).compress for level in range(4)
    }
    found |= {f"gzip, libdeflate {level}": libdeflate(level) for level in (1, 6)}
    found |= {"gzip, zlib 6": COMPRESSORS["zlib"](6).compress}
    found |= {f"zstd {level}": COMPRESSORS["zstd"](level).compress for level in (1, 2, 3, 5, 9)}
    return {name: each for name, each in found.items() if each is not None}


class Measured(NamedTuple):
    """Of one codec on one kind: bytes in a second of processor time, and how many times smaller."""

    rate: float
    ratio: float


def measured(compress: Compress, raw: Sequence[bytes], rounds: int) -> Measured:
    """The least of the rounds."""
    seconds, stored = [], 0
    for _ in range(rounds):
        begun = time.thread_time()
        packed = [compress(block) for block in raw]
        seconds.append(time.thread_time() - begun)
        stored = sum(map(len, packed))
    size = sum(map(len, raw))
    return Measured(size / min(seconds), size / stored)


def main() -> None:
    """Measure all, in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codecs", description=__doc__)
    parser.add_argument("--blocks", type=int, default=8, help="blocks of 1 MiB of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over them; the least counts")
    given = parser.parse_args()
    rows = []
    data = {kind: blocks(kind, given.blocks) for kind in KINDS}
    for name, compress in codecs().items():
        found = [measured(compress, raw, given.rounds) for raw in data.values()]
        rows.append((name, *(f"{each.rate / 1e6:,.0f} at {each.ratio:.2f}" for each in found)))
    print(f"{measured_on()}, one core, {given.blocks} blocks of 1 MiB\n")
    print(as_markdown(Table("MB/s of one core, and how many times smaller", ("", *KINDS), rows)))


if __name__ == "__main__":
    main()
