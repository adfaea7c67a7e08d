"""Blocks as they are stored, opened with the keys at hand where their chunk is encrypted."""

from blockgz_runtime.encryption.keyring import Keyring, required
from index_format import encryption
from index_format.blocks import Stored
from index_format.chunk_index import BlockEntry, ChunkIndex


def opened_block(
    stored: Stored, number: int, index: ChunkIndex, data_key: str, keyring: Keyring | None
) -> tuple[Stored, BlockEntry]:
    """A block and its entry as `index_format.blocks.decode_block` takes them; one that is not encrypted as it is.

    `data_key` is what the error calls the chunk. Raises KeyMissing, a FormatError, and what a key service raises.
    """
    if not index.encryption:
        return stored, index.blocks[number]
    secret = required(keyring, data_key).unwrap(index.encryption.key, data_key)
    return encryption.opened_block(stored, number, index, secret)
