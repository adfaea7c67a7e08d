"""Blocks under codec `zstd`: one frame a block, with its content size and checksum (RFC 8878)."""

import zstandard

from .errors import CorruptBlock

LARGEST_WINDOW_BYTES = 128 * 1024 * 1024
"""What a reader allocates for a window at most: more than any level here asks for."""


class ZstdCompressor:
    """zstd, levels 1 to 19: smaller than gzip, and slower than ISA-L."""

    def __init__(self, level: int) -> None:
        if not 1 <= level <= 19:
            raise ValueError(f"zstd has the levels 1 to 19, not {level}")
        self._level = level

    def compress(self, raw: bytes) -> bytes:
        """See blocks.Compressor."""
        # One for each call: they may not be shared by threads.
        return zstandard.ZstdCompressor(self._level, write_checksum=True, write_content_size=True).compress(raw)


def decompress(frame: bytes, expected_bytes: int) -> bytes:
    """The content of exactly one frame that says itself that it has `expected_bytes`; raises CorruptBlock.

    The caller bounds `expected_bytes`: so much is allocated once the frame's header has agreed.
    """
    try:
        header = zstandard.get_frame_parameters(frame)
        if header.content_size != expected_bytes or header.window_size > LARGEST_WINDOW_BYTES or header.dict_id:
            raise CorruptBlock(
                "a block is not one zstd frame of its recorded length",
                why=f"expected {expected_bytes} bytes, its header says {header.content_size}",
            )
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBlock("a block does not decompress", why=str(error)) from error
    if len(raw) != expected_bytes:
        raise CorruptBlock("a block is not of its recorded length", why=f"{len(raw)} bytes, not {expected_bytes}")
    return raw
