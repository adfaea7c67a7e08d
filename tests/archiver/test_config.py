"""The configuration of `archiver run`: what it understands, what it refuses, and in which words."""

from typing import Any

import pytest

from archiver.config import KAFKA_RESERVED, RunConfig, parse_duration, parse_size, run_config
from archiver.errors import UsageError

LEAST: dict[str, Any] = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": ("orders",)}


def refused(**values: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        run_config(**LEAST | values)
    assert caught.value.exit_code == 2 and caught.value.why and caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("1kB", 1000),
        ("1MB", 10**6),
        ("2GB", 2 * 10**9),
        ("1KiB", 1024),
        ("128MiB", 128 * 1024**2),
        ("1.5MiB", 3 * 512 * 1024),
        ("10 GiB", 10 * 1024**3),
        (" 5MB ", 5 * 10**6),
        ("9007199254740993B", 9007199254740993),
        (17, 17),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 parsec", "1mib", "1e6", "1,5MB", "٣MB", "1MiB2", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number with one of B, kB, "):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("5s", 5), ("5m", 300), ("1.5h", 5400), ("2d", 172800), (" 1 m ", 60), (3.5, 3.5)],
)
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5S", "5 fortnights", "1h30m", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write a number with one of ms, s, "):
        parse_duration(text)


def test_the_defaults() -> None:
    config = run_config(**LEAST)
    assert config == RunConfig(**LEAST)
    assert (config.layout, config.record_format, config.isolation_level) == ("topic", "json", "read_committed")
    assert (config.block_bytes, config.chunk_bytes) == (1024**2, 128 * 1024**2)
    assert (config.chunk_interval, config.grace, config.chunk_records) == (300, 25, None)
    assert (config.gzip_library, config.compression_level) == ("isal", 1)
    assert (config.on_gap, config.on_bad_record, config.once, config.single_writer) == ("record", "stop", False, False)


def test_what_is_not_given_is_left_at_its_default() -> None:
    assert run_config(**LEAST, gzip_level=None, block_bytes=None, region=None) == run_config(**LEAST)


@pytest.mark.parametrize(
    ("library", "given", "level"), [("isal", None, 1), ("isal", 0, 0), ("zlib", None, 6), ("zlib", 9, 9)]
)
def test_compression_levels(library: str, given: int | None, level: int) -> None:
    assert run_config(**LEAST, gzip_library=library, gzip_level=given).compression_level == level


def test_text_values_are_understood() -> None:
    config = run_config(**LEAST, chunk_bytes="64MiB", chunk_interval="90s", memory="1GiB")
    assert (config.chunk_bytes, config.chunk_interval, config.memory) == (64 * 1024**2, 90, 1024**3)


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        run_config(**LEAST).once = True


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_bytes", 0),
        ("block_bytes", "1GiB"),
        ("block_bytes", "1 parsec"),
        ("chunk_bytes", 0),
        ("chunk_records", 0),
        ("chunk_interval", 0.0),
        ("chunk_interval", float("inf")),
        ("chunk_interval", float("nan")),
        ("chunk_interval", "9" * 400 + "s"),
        ("grace", 0),
        ("gzip_level", -1),
        ("gzip_level", 10),
        ("gzip_library", "lzma"),
        ("memory", "1MiB"),
        ("buffer_bytes", 0),
        ("layout", "flat"),
        ("record_format", "avro"),
        ("isolation_level", "serializable"),
        ("on_gap", "ignore"),
        ("on_bad_record", "retry"),
        ("group_id", ""),
        ("bootstrap_servers", ""),
        ("topics", ()),
        ("chunk_size", "1MiB"),
    ],
)
def test_refusals_name_the_option(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert f"--{field.replace('_', '-')} cannot be " in error.what


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gzip_level": 6}, "ISA-L has the gzip levels 0 to 3"),
        ({"layout": "seed"}, "layout seed holds record format text only"),
        ({"topics": ("a b",)}, "'a b' is not a topic name"),
        ({"topics": ("ok", "..")}, "'..' is not a topic name"),
        *[({"kafka": {name: "x"}}, f"-X {name} may not be set: {why}") for name, why in KAFKA_RESERVED.items()],
    ],
)
def test_refusals_of_what_cannot_be(values: dict[str, Any], reason: str) -> None:
    assert reason in refused(**values).why


def test_every_reserved_setting_has_its_reason() -> None:
    assert {
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "isolation.level",
        "enable.partition.eof",
        "group.id",
        "bootstrap.servers",
    } <= set(KAFKA_RESERVED)
    assert run_config(**LEAST, kafka={"security.protocol": "SSL"}).kafka == {"security.protocol": "SSL"}


def test_seed_with_text_is_accepted() -> None:
    assert run_config(**LEAST, layout="seed", record_format="text").layout == "seed"
