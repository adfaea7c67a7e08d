"""The model: what it takes, what it refuses, and that it shows no secret."""

import random

import pytest
from pydantic import SecretStr, ValidationError

from archiver.config.kinds import FIELDS, default_text, field_kind, value_text, wanted
from archiver.config.model import KAFKA_RESERVED, RunConfig, format_duration, format_size, parse_duration, parse_size

REQUIRED = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": ("orders",)}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64kB", 64_000), ("1.5KiB", 1536), ("128 MiB", 128 * 1024**2), ("0.1GB", 100_000_000), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1 mib", "1KB", "-1B", "1e6", "١MiB", "1 MiB MiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("250ms", 0.25), ("1.5h", 5400), ("7d", 604800), ("30", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-1s", "nan", "1M"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_what_is_written_reads_back() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for _ in range(300):
        size = numbers.randrange(1, 2**20) * numbers.choice([1, 1024, 1024**2])
        assert parse_size(format_size(size)) == size
        milliseconds = numbers.randrange(1, 10**6) * numbers.choice([1, 1000, 60_000])
        assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_described_and_its_default_reads_back(field: str) -> None:
    info = FIELDS[field]
    assert info.description
    assert info.description.endswith(".")
    assert wanted(field)
    assert field_kind(field)
    if default_text(field):
        config = RunConfig(**REQUIRED, **{field: default_text(field)})
        assert getattr(config, field) == info.get_default(call_default_factory=True)


def test_the_defaults_of_the_rotation() -> None:
    config = RunConfig(**REQUIRED)
    assert (config.chunk_bytes, config.chunk_interval, config.chunk_idle) == (128 * 1024**2, 300, 60)
    assert (config.chunk_records, config.chunk_span, config.workers, config.http) == (None, None, 1, None)


def test_none_switches_a_limit_off() -> None:
    config = RunConfig(**REQUIRED, chunk_idle="none", chunk_span="none", chunk_records="none")
    assert (config.chunk_idle, config.chunk_span, config.chunk_records) == (None, None, None)
    assert value_text("chunk_idle", None) == "none"


@pytest.mark.parametrize(
    ("text", "topics"),
    [("orders", ("orders",)), ("a, b c", ("a", "b", "c")), ("~a{1,2}", ("~a{1,2}",)), (["a", "~b"], ("a", "~b"))],
)
def test_topics(text: object, topics: tuple[str, ...]) -> None:
    assert RunConfig(**REQUIRED | {"topics": text}).topics == topics


@pytest.mark.parametrize("address", ["127.0.0.1:9404", "localhost:0", "[::1]:9404", "0.0.0.0:65535"])
def test_http_addresses(address: str) -> None:
    assert RunConfig(**REQUIRED, http=address).http == address


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("archive", "nowhere"),
        ("archive", "s3://"),
        ("bootstrap_servers", ""),
        ("topics", ()),
        ("topics", "~("),
        ("exclude", "~("),
        ("topics", "a/b"),
        ("group_id", ""),
        ("block_bytes", "129MiB"),
        ("chunk_bytes", 0),
        ("chunk_interval", 0),
        ("chunk_interval", float("inf")),
        ("chunk_idle", "-1s"),
        ("chunk_span", 0),
        ("chunk_records", 0),
        ("memory", "1MiB"),
        ("workers", 0),
        ("http", "9404"),
        ("http", "localhost:65536"),
        ("log_format", "xml"),
        ("gzip_level", 10),
        ("kafka", {"debug": None}),
        ("kafka", "debug"),
        ("no_such_field", 1),
    ],
)
def test_what_cannot_be(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        RunConfig(**REQUIRED | {field: value})


@pytest.mark.parametrize("values", [{"layout": "seed"}, {"gzip_level": 4}])
def test_what_does_not_go_together(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig(**REQUIRED, **values)
    assert caught.value.errors()[0]["type"] == "together"


@pytest.mark.parametrize("name", KAFKA_RESERVED)
def test_safety_settings_are_refused(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig(**REQUIRED, kafka={name: "x"})
    assert caught.value.errors()[0]["ctx"]["reason"] == KAFKA_RESERVED[name]


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
    ],
)
def test_secrets_show_themselves_nowhere(name: str) -> None:
    config = RunConfig(**REQUIRED, kafka={name: "hunter2", "client.rack": "r1"})
    value = config.kafka[name]
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config) + str(config) + config.model_dump_json()
    assert config.kafka["client.rack"] == "r1"


def test_masked_fields_show_themselves_nowhere() -> None:
    config = RunConfig(**REQUIRED, region="hidden-1").masking(frozenset({"region"}))
    assert config.region == "hidden-1"
    assert "hidden-1" not in repr(config) + str(config)


def test_kafka_takes_numbers_and_booleans_as_librdkafka_writes_them() -> None:
    config = RunConfig(**REQUIRED, kafka={"socket.keepalive.enable": True, "socket.timeout.ms": 5000})
    assert config.kafka == {"socket.keepalive.enable": "true", "socket.timeout.ms": "5000"}
