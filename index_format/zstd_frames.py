"""Blocks under codec `zstd`: one frame a block, with its content size and checksum (RFC 8878)."""

from collections.abc import Iterator

import zstandard

from index_format.errors import CorruptBlock

# The most bytes that a reader allocates for a window: more than any level here needs.
LARGEST_WINDOW_BYTES = 128 * 1024 * 1024
_LARGEST_HEADER_BYTES = 18
_CHECKSUM_FLAG = 1 << 2
_CHECKSUM_BYTES = 4
_BLOCK_HEADER_BYTES = 3
# The type of a block of one byte, repeated; its size is that of the result.
_REPEATED_BYTE = 1


class ZstdCompressor:
    """zstd, levels 1 to 19: smaller than gzip, and slower than ISA-L."""

    def __init__(self, level: int) -> None:
        if not 1 <= level <= 19:
            raise ValueError(f"zstd has the levels 1 to 19, not {level}")
        self._level = level

    def compress(self, raw: bytes) -> bytes:
        # One for each call: they may not be shared by threads.
        return zstandard.ZstdCompressor(self._level, write_checksum=True, write_content_size=True).compress(raw)


def decompress(frame: bytes | memoryview, expected_bytes: int) -> bytes:
    """Return the content of one frame of `expected_bytes`, which the caller bounds; raises CorruptBlock."""
    try:
        _check_header(frame, expected_bytes)
        # That many bytes are allocated, once the header has agreed.
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBlock("a block does not decompress", why=str(error)) from error
    if len(raw) != expected_bytes:
        raise CorruptBlock("a block does not have its recorded length", why=f"{len(raw)} bytes, not {expected_bytes}")
    return raw


def steps(frame: bytes | memoryview, expected_bytes: int, step_bytes: int) -> Iterator[bytes]:
    """Yield the content in pieces of at most `step_bytes`; the caller compares their total length."""
    try:
        _check_header(frame, expected_bytes)
        if frame_end(frame, 0) != len(frame):
            raise zstandard.ZstdError("the frame ends elsewhere than the block")
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            while piece := reader.read(step_bytes):
                yield piece
    except zstandard.ZstdError as error:
        raise CorruptBlock("a block does not decompress", why=str(error)) from error


def _check_header(frame: bytes | memoryview, expected_bytes: int) -> None:
    # The header decides how much is allocated, so it is checked before anything is inflated.
    header = zstandard.get_frame_parameters(frame)
    if header.content_size != expected_bytes or header.window_size > LARGEST_WINDOW_BYTES or header.dict_id:
        raise CorruptBlock(
            "a block is not one zstd frame of its recorded length",
            why=f"expected {expected_bytes} bytes, its header says {header.content_size}",
        )


def frame_end(data: bytes | memoryview, start: int) -> int:
    """Return the end of the frame at byte `start`, or one beyond the data; raises ZstdError for other bytes."""
    head = bytes(data[start : start + _LARGEST_HEADER_BYTES])
    if not head.startswith(zstandard.FRAME_HEADER):
        raise zstandard.ZstdError("no frame begins there")
    position = start + zstandard.frame_header_size(head)
    is_last = False
    # Blocks say their lengths: nothing is inflated.
    while not is_last and position < len(data):
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        position += _BLOCK_HEADER_BYTES + (1 if kind == _REPEATED_BYTE else size)
    has_checksum = head[len(zstandard.FRAME_HEADER)] & _CHECKSUM_FLAG
    return position + (_CHECKSUM_BYTES if has_checksum else 0) if is_last else len(data) + 1
