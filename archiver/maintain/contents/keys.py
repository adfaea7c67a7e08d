"""What opens encrypted chunks in a rewrite, and what encrypts those in their place: never does one become plain."""

from dataclasses import dataclass

from archiver.commit.sealing import ChunkSeal, Sealing
from archiver.maintain.contents.chunks import NewChunk, OldChunk
from archiver.maintain.contents.data import ChunkData, data_of_body
from blockgz.encryption.keyring import Keyring, joined_keys, keyring_of, required
from index_format.chunk_index import ChunkIndex


@dataclass(frozen=True)
class RewriteKeys:
    """The keys of a rewrite; without any, only plain chunks are rewritten."""

    keyring: Keyring | None = None
    """Opens old chunks; its newest key encrypts new ones."""
    encrypts_all: bool = False
    """Whether what stands in the place of plain chunks is encrypted, too."""

    @classmethod
    def of(cls, keyring: str | None, encrypt: str | None) -> "RewriteKeys":
        """Of the settings that say where the keys are; raises UsageError where these cannot be had.

        Those of `encrypt` are the newer ones, and encrypt all that is stored again.
        """
        return cls(keyring_of(joined_keys(keyring, encrypt)), encrypts_all=encrypt is not None)

    def opens(self, index: ChunkIndex) -> bool:
        """Whether a chunk is plain, or its key is at hand, as far as names tell."""
        return not index.encryption or (self.keyring is not None and self.keyring.has(index.encryption.key))

    def seal(self, old: OldChunk) -> ChunkSeal | None:
        """What encrypts the chunk in the place of that one and those behind it; None where it is plain.

        Raises KeyMissing, and what a key service raises.
        """
        if not old.index.encryption and not self.encrypts_all:
            return None
        return self._sealing(old.index).of_chunk(old.entry.start_offset)

    def data_of(self, new: NewChunk, old: OldChunk) -> ChunkData:
        """The data of a chunk that is not stored yet; `old` is the first that it replaces."""
        if not new.encryption:
            return data_of_body(new.body)
        return data_of_body(new.body, self._sealing(old.index).opener(new.start_offset, new.encryption))

    def _sealing(self, index: ChunkIndex) -> Sealing:
        keyring = required(self.keyring, f"{index.topic}:{index.partition}")
        return Sealing(keyring, index.archive_id, index.topic, index.partition)


NO_KEYS = RewriteKeys()
