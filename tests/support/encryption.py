"""Keys of tests."""

import base64
from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from archiver.commit.commit import FinishedChunk
from blockgz.encryption.keyring import ChunkSeal, Keyring, LocalKey, Sealing
from index_format.objects import BlockEntry
from index_format.records import Record, record_hash
from tests.support.chunks import ARCHIVE_ID
from tests.support.memory_store import MemoryBody


def key_of(number: int) -> LocalKey:
    """A master key."""
    return LocalKey(bytes([number]) * 32)


def key_line(number: int) -> str:
    """As it stands in a file of keys."""
    return f"{base64.b64encode(key_of(number).secret).decode()}\n"


def sealing(*numbers: int, topic: str = "orders", partition: int = 0) -> Sealing:
    """What encrypts with the last of these keys."""
    return Sealing(Keyring([key_of(number) for number in numbers or (1,)]), ARCHIVE_ID, topic, partition)


def sealed(blocks: Sequence[BlockEntry], data: bytes, seal: ChunkSeal) -> tuple[tuple[BlockEntry, ...], bytes]:
    """The blocks of a chunk and its data, encrypted."""
    entries, stored = list[BlockEntry](), b""
    for number, entry in enumerate(blocks):
        block, sealed_entry = seal.sealed(number, data[entry.byte_offset : entry.byte_end], entry)
        entries.append(replace(sealed_entry, byte_offset=len(stored)))
        stored += block
    return tuple(entries), stored


def sealed_chunk(chunk: FinishedChunk, last: Record, sealing: Sealing) -> FinishedChunk:
    seal = sealing.of_chunk(chunk.start.position)
    body = cast("MemoryBody", chunk.body)
    blocks, data = sealed(chunk.blocks, body.content, seal)
    return chunk._replace(
        body=MemoryBody.of(data),
        blocks=blocks,
        tail_hash=record_hash(last, seal.tail_secret),
        encryption=seal.encryption,
        tail_key=seal.tail_key,
    )
