"""How what is asked for becomes librdkafka's settings."""

import pytest

from blockgz.errors import UsageError
from blockgz.kafka.batch_producer import batch_producer
from replayer.replay.request import LEVELS, Compression, parse_compression
from replayer.replay.sinks.producer import producer_settings

EVERY = [codec for codec, levels in LEVELS.items() for codec in (codec, *(f"{codec}:{level}" for level in levels))]


@pytest.mark.parametrize("text", EVERY)
def test_the_client_takes_every_codec_and_level(text: str) -> None:
    asked = parse_compression(text)
    assert str(asked) == text
    settings = producer_settings(asked.added_to({"bootstrap.servers": "127.0.0.1:1"}), None)
    assert settings["compression.type"] == asked.codec
    assert settings.get("compression.level") == (None if asked.level is None else str(asked.level))
    batch_producer(settings, "t")


def test_lz4_is_the_default() -> None:
    assert producer_settings({"bootstrap.servers": "x"}, None)["compression.type"] == "lz4"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("brotli", "Kafka has lz4, zstd, snappy, gzip, none"),
        ("", "Kafka has"),
        ("lz4:13", "those of lz4 are 0 to 12"),
        ("zstd:", "those of zstd are 1 to 12"),
        ("gzip:-1", "those of gzip are 1 to 9"),
        ("none:1", "none has none"),
        ("snappy:0", "snappy has none"),
    ],
)
def test_what_is_not_known_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_compression(text)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("properties", "is_refused"),
    [
        ({"compression.type": "lz4"}, True),
        ({"compression.codec": "gzip"}, True),
        ({"compression.level": "4"}, True),
        ({"compression.type": "zstd", "compression.level": "3"}, False),
        ({"compression.codec": "zstd"}, False),
    ],
)
def test_settings_that_say_something_else_are_refused(properties: dict[str, str], is_refused: bool) -> None:
    asked = Compression("zstd", 3)
    if not is_refused:
        assert asked.added_to(properties)["compression.type"] == "zstd"
        return
    with pytest.raises(UsageError, match="--compression zstd:3 contradicts -X compression"):
        asked.added_to(properties)


def test_a_level_alone_is_not_a_contradiction() -> None:
    assert Compression("gzip").added_to({"compression.level": "9"}) == {
        "compression.type": "gzip",
        "compression.level": "9",
    }
