"""Blocks as they are stored, opened with the keys at hand where their chunk is encrypted."""

from blockgz_runtime.encryption.keyring import Keyring
from index_format import encryption
from index_format.blocks import Stored
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.errors import KeyMissing

REMEDY = "give the keys with which it was encrypted: --keys KEYS, BLOCKGZ_KEYS, or `encrypt` in the configuration file"


def opened_block(
    stored: Stored, number: int, index: ChunkIndex, data_key: str, keyring: Keyring | None
) -> tuple[Stored, BlockEntry]:
    """A block and its entry as `index_format.blocks.decode_block` takes them; one that is not encrypted as it is.

    `data_key` is what the error calls the chunk. Raises KeyMissing, a FormatError, and what a key service raises.
    """
    if not index.encryption:
        return stored, index.blocks[number]
    if keyring is None:
        raise KeyMissing(f"{data_key} is encrypted", why="no keys were given", remedy=REMEDY)
    secret = keyring.unwrap(index.encryption.key, data_key)
    return encryption.opened_block(stored, number, index, secret)
