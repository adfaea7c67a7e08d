"""Blocks as they are stored, opened with the keys at hand where their chunk is encrypted."""

from blockgz_runtime.encryption.keyring import Keyring
from index_format import encryption
from index_format.blocks import Stored
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.errors import KeyMissing

REMEDY = "give its keys: --keys KEYS, --encrypt KEYS to write, or `encrypt` in the configuration file"


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


def required(keyring: Keyring | None, what: str) -> Keyring:
    """The keyring; raises KeyMissing where there is none. `what` is encrypted."""
    if keyring is None:
        raise KeyMissing(f"{what} is encrypted", why="no keys were given", remedy=REMEDY)
    return keyring
