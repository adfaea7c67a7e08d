"""How the batches are compressed that a replay sends: `--compression`, beside the settings of librdkafka."""

from collections.abc import Mapping
from typing import NamedTuple

from blockgz.errors import UsageError

TYPE, LEVEL = "compression.type", "compression.level"
ALIAS = "compression.codec"
"""Another name of the type."""
DEFAULT = "lz4"
LEVELS: Mapping[str, range] = {
    "lz4": range(13),
    "zstd": range(1, 13),
    "snappy": range(0),
    "gzip": range(1, 10),
    "none": range(0),
}
"""The codecs, each with its levels as far as librdkafka knows them."""


def codec_of(properties: Mapping[str, str]) -> str:
    """Return the codec that a producer with these settings of librdkafka uses."""
    return properties.get(TYPE) or properties.get(ALIAS) or DEFAULT


class Compression(NamedTuple):
    """A codec, and its level where it is not the codec's own."""

    codec: str
    level: int | None = None

    def added_to(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The settings of librdkafka with this in them; raises UsageError where they say something else."""
        asked = {TYPE: self.codec} | ({} if self.level is None else {LEVEL: str(self.level)})
        told = {name: properties[name] for name in (TYPE, ALIAS, LEVEL) if name in properties}
        for name, value in told.items():
            wanted = asked.get(TYPE if name == ALIAS else name, value)
            if value != wanted:
                raise UsageError(
                    f"--compression {self} contradicts -X {name}={value}",
                    why="both set the compression of batches",
                    remedy=f"remove one of them; --compression {self} is enough",
                )
        return {**properties, **asked}

    def __str__(self) -> str:
        return self.codec if self.level is None else f"{self.codec}:{self.level}"


def parse_compression(text: str) -> Compression:
    """`CODEC` or `CODEC:LEVEL`; raises UsageError."""
    codec, colon, level = text.partition(":")
    levels = LEVELS.get(codec)
    if levels is None:
        raise UsageError(
            f"--compression {text[:80]} is not known",
            why=f"Kafka has {', '.join(LEVELS)}",
            remedy="use one of these, optionally with a level: zstd:3",
        )
    if not colon:
        return Compression(codec)
    if not (level.isascii() and level.isdigit() and len(level) <= 2 and int(level) in levels):
        known = f"those of {codec} are {levels.start} to {levels.stop - 1}" if levels else f"{codec} has none"
        raise UsageError(f"--compression {text[:80]} has no such level", why=known, remedy=f"write {codec}")
    return Compression(codec, int(level))
