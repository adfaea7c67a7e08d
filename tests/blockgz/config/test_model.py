"""The model: what it takes, what it refuses, and that it shows no secret."""

import pytest
from pydantic import SecretStr, ValidationError

from blockgz.config.kinds import FIELDS, default_text, field_kind, value_text, wanted
from blockgz.config.model import KAFKA_RESERVED, RunConfig

REQUIRED = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": ("orders",)}


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
        ("encrypt", "keys"),
        ("encrypt", "file:keys"),
        ("gzip_level", 10),
        ("dlq_topic", "a/b"),
        ("archive_retention", "often"),
        ("archive_retention", ("orders=1d", "~(=2d")),
        ("archive_retention", "0s"),
        ("archive_retention_bytes", "orders=1d"),
        ("compact", "~("),
        ("compact_chunks", 1),
        ("kafka", {"debug": None}),
        ("kafka", "debug"),
        ("no_such_field", 1),
    ],
)
def test_what_cannot_be(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        RunConfig(**REQUIRED | {field: value})


@pytest.mark.parametrize(
    "values",
    [
        {"layout": "seed"},
        {"layout": "seed", "record_format": "text", "encrypt": "env:KEYS"},
        {"encrypt": "env:KEYS", "key_filter": 10},
        {"single_writer": True, "compact": "*"},
        {"layout": "seed", "record_format": "text", "archive_retention": "90d"},
        {"gzip_level": 4},
        {"on_bad_record": "dlq"},
        {"on_bad_record": "dlq", "dlq_topic": "orders"},
        {"on_bad_record": "dlq", "dlq_topic": "orders-dead", "exclude": "dead"},
    ],
)
def test_what_does_not_go_together(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig(**REQUIRED | {"topics": ("orders*",)}, **values)
    assert caught.value.errors()[0]["type"] == "together"


@pytest.mark.parametrize("exclude", ["*-dead", "~.*-(dead|test)"])
def test_a_topic_of_bad_records_that_is_left_out(exclude: str) -> None:
    config = RunConfig(
        **REQUIRED | {"topics": "orders*"}, on_bad_record="dlq", dlq_topic="orders-dead", exclude=exclude
    )
    assert config.dlq_topic == "orders-dead"


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
