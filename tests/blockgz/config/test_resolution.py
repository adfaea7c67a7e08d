"""Configuration: the model, files in three syntaxes, and layers put together with their errors."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from blockgz.config import files
from blockgz.config.kinds import FIELDS, default_text, field_kind, value_text, wanted
from blockgz.config.model import KAFKA_RESERVED, RunConfig
from blockgz.config.resolution import Resolved, resolve
from blockgz.documents import DocumentEntry, parse_document
from blockgz.errors import UnresolvedReference, UsageError
from blockgz.references import check_references, has_reference, resolve_references
from index_format.errors import MASK


def layer(kind: files.OriginKind, place: str, **values: object) -> files.Settings:
    return {name: files.Setting(value, files.Origin(kind, place)) for name, value in values.items()}


REQUIRED = layer(files.OriginKind.FILE, "f.yaml:1", archive="./a", bootstrap_servers="h:9092", topics="orders")


def resolved(*layers: files.Settings, environ: dict[str, str] | None = None) -> Resolved:
    return resolve(REQUIRED, *layers, environ=environ or {})


def refused(*layers: files.Settings, environ: dict[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolved(*layers, environ=environ)
    assert caught.value.exit_code == 2
    assert caught.value.why
    assert caught.value.remedy
    return caught.value


def file(**values: object) -> files.Settings:
    return layer(files.OriginKind.FILE, "f.yaml:7", **values)


def environment(**values: object) -> files.Settings:
    return layer(files.OriginKind.ENVIRONMENT, "BLOCKGZ_X", **values)


def flag(**values: object) -> files.Settings:
    return layer(files.OriginKind.FLAG, "--x", **values)


def test_flag_before_environment_before_file_before_default() -> None:
    layers = [file(memory="64MiB"), environment(memory="65MiB"), flag(memory="66MiB")]
    for count, (text, kind) in enumerate(
        [("256MiB", "default"), ("64MiB", "file"), ("65MiB", "env"), ("66MiB", "flag")]
    ):
        found = resolved(*layers[:count])
        assert found.config.memory == int(text.removesuffix("MiB")) * 1024**2
        assert found.shown()["memory"][1].kind.value == kind


def test_settings_of_librdkafka_merge_by_name() -> None:
    found = resolved(file(**{"kafka.debug": "all", "kafka.client.rack": "r"}), flag(**{"kafka.debug": "cgrp"}))
    assert found.config.kafka == {"debug": "cgrp", "client.rack": "r"}
    shown = {name: str(origin) for name, (_, origin) in found.shown().items() if name.startswith("kafka.")}
    assert shown == {"kafka.debug": "flag --x", "kafka.client.rack": "file f.yaml:7"}


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (file(memory="1 parsec"), "f.yaml:7: memory cannot be '1 parsec'"),
        (environment(memory="1 parsec"), "BLOCKGZ_X: memory cannot be '1 parsec'"),
        (flag(memory="1 parsec"), "--x cannot be '1 parsec'"),
        (file(on_gap="explode"), "f.yaml:7: on_gap cannot be 'explode'"),
        (file(region=None, memory=None), "f.yaml:7: memory cannot be None"),
        (file(topics=("a", "~(")), "f.yaml:7: topics cannot be 'a ~('"),
        (file(archive="nowhere"), "f.yaml:7: archive cannot be 'nowhere'"),
        (file(**{"kafka.group.id": "x"}), "f.yaml:7: kafka.group.id may not be set"),
        (flag(**{"kafka.group.id": "x"}), "-X group.id may not be set"),
        (file(storage_class="GLACIER"), "f.yaml:7: storage_class cannot be 'GLACIER'"),
        (flag(kms_key_id="x"), "sse None (default) and kms_key_id x (--x) cannot be combined"),
        (flag(layout="seed"), "layout seed (--x) and record_format json (default) cannot be combined"),
    ],
)
def test_errors_name_place_field_and_value(settings: files.Settings, what: str) -> None:
    assert refused(settings).what == what


def test_an_alias_is_named_as_it_was_written() -> None:
    settings = {"workers": files.Setting("0", files.Origin(files.OriginKind.FILE, "c.json:3", "tasks.max"))}
    assert refused(settings).what == "c.json:3: tasks.max cannot be '0'"


def test_the_remedy_says_what_is_wanted_and_where() -> None:
    assert refused(file(on_gap="x")).remedy == "write one of record, stop; correct it in f.yaml:7"
    assert "at least 32MiB" in refused(flag(memory="1B")).remedy


@pytest.mark.parametrize("field", ["archive", "bootstrap_servers", "topics"])
def test_what_is_missing_can_be_given_in_three_ways(field: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({name: setting for name, setting in REQUIRED.items() if name != field}, environ={})
    assert caught.value.what == f"{field} is not set"
    assert "BLOCKGZ_" in caught.value.remedy


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, environ={})
    assert caught.value.what == "archive, bootstrap_servers and topics are not set"
    assert "add -a, -b and TOPIC" in caught.value.remedy


class TestReferences:
    def test_environment_and_files(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("from the file\n")
        text = f"${{env:A}}-${{file:{path}}}-$${{env:A}}-$A"
        assert resolve_references(text, {"A": "a"}) == "a-from the file-${env:A}-$A"
        assert has_reference(text)

    @pytest.mark.parametrize("text", ["plain", "$env", "$${env:A}", "a$", "{env:A}"])
    def test_none(self, text: str) -> None:
        assert not has_reference(text)
        check_references(text)

    @pytest.mark.parametrize("text", ["${A}", "${evn:A}", "${env:}", "${env:A", "${", "${vault:x}"])
    def test_malformed(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a reference"):
            check_references(text)
        assert "f.yaml:7: kafka.sasl.password" in refused(file(**{"kafka.sasl.password": text})).what

    @pytest.mark.parametrize("text", ["${env:NO_SUCH}", "${file:/no/such/file}"])
    def test_that_lead_nowhere(self, text: str) -> None:
        with pytest.raises(UnresolvedReference):
            resolve_references(text, {})
        assert refused(file(region=text)).what.startswith("f.yaml:7: region: the ")

    def test_a_relative_path(self) -> None:
        assert "absolute" in refused(file(region="${file:x}")).why

    def test_of_a_field_are_looked_up_and_masked(self) -> None:
        found = resolved(file(region="eu-${env:N}", topics=("${env:T}",)), environ={"N": "north-9", "T": "hidden"})
        assert (found.config.region, found.config.topics) == ("eu-north-9", ("hidden",))
        assert found.shown()["region"][0] == found.shown()["topics"][0] == MASK
        assert "north-9" not in repr(found)
        assert "hidden" not in repr(found)

    @pytest.mark.parametrize("url", ["http://user:hunter2@proxy:1", "http://user:${env:P}@proxy:1"])
    def test_the_password_of_a_proxy_is_masked(self, url: str) -> None:
        found = resolved(file(proxy_url=url), environ={"P": "hunter2"})
        assert found.config.s3.proxy_url == "http://user:hunter2@proxy:1"
        assert found.shown()["proxy_url"][0] == MASK and "hunter2" not in repr(found)

    def test_the_customer_key_is_looked_up_later_and_nothing_but_a_reference(self) -> None:
        found = resolved(file(archive="s3://backup/p", customer_key="${env:NO_SUCH}"))
        assert found.config.s3.customer_key == "${env:NO_SUCH}" and found.shown()["customer_key"][0] == MASK
        with pytest.raises(UnresolvedReference, match="customer_key"):
            found.check_secrets({})
        error = refused(file(archive="s3://backup/p", customer_key="aGlkZGVu"))
        assert "aGlkZGVu" not in error.what + error.why + error.remedy and "${file:/path}" in error.remedy
        error = refused(flag(archive="./archive", customer_key="${env:K}"))
        assert "archive ./archive (--x) and customer_key ******** (--x) cannot be combined" in error.what

    def test_of_librdkafka_are_looked_up_later(self) -> None:
        found = resolved(file(**{"kafka.client.rack": "${env:NO_SUCH}", "kafka.sasl.password": "plain"}))
        assert [found.shown()[f"kafka.{name}"][0] for name in ("client.rack", "sasl.password")] == [MASK, MASK]

    def test_a_wrong_value_that_came_from_one_is_not_shown(self) -> None:
        error = refused(file(memory="${env:SECRET}"), environ={"SECRET": "hunter2"})
        assert error.what == f"f.yaml:7: memory cannot be {MASK}"
        assert error.__cause__ is None
        assert "hunter2" not in error.what + error.why + error.remedy


def values(file: tuple[files.Settings, tuple[str, ...]]) -> dict[str, object]:
    return {name: setting.value for name, setting in file[0].items()}


def connect(**config: str) -> tuple[files.Settings, tuple[str, ...]]:
    return files.settings_of([DocumentEntry(name, value, "c.json:1") for name, value in config.items()])


def refused_files(name: str, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        files.settings_of(parse_document(name, text))
    return caught.value


def test_nothing_under_kafka_is_no_setting() -> None:
    assert "kafka" not in files.settings_of(parse_document("f.yml", "kafka: {}\n"))[0]


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("chunk_byte", "chunk_bytes"),
        ("chunkBytes", "chunk_bytes"),
        ("chunk.bytes", "chunk_bytes"),
        ("bootstrap_server", "bootstrap_servers"),
        ("s3.buckt.name", "s3.bucket.name"),
        ("rotate.interval", "rotate.interval.ms"),
        ("security.protocol", "kafka.security.protocol"),
        ("s3.endpoint_url", "endpoint_url"),
        ("archiver.chunk-bytes", "chunk_bytes"),
    ],
)
def test_an_unknown_key_with_a_suggestion(key: str, suggestion: str) -> None:
    error = refused_files("f.properties", f"\n{key}=secret")
    assert error.what == f"f.properties:2: {key} is not a setting"
    assert error.remedy == f"did you mean {suggestion}?"
    assert "secret" not in error.what + error.why + error.remedy
    assert error.exit_code == 2


def test_an_unknown_key_without_one() -> None:
    assert "config init" in refused_files("f.properties", "xyzzy=1").remedy


def test_names_as_flags_write_them() -> None:
    assert values(connect(**{"chunk-bytes": "1MB"})) == {"chunk_bytes": "1MB"}


class TestConnectNames:
    @pytest.mark.parametrize(
        ("name", "value", "field", "taken"),
        [
            ("topics", "a,b", "topics", "a,b"),
            ("topics.regex", "eu.*", "topics", "~eu.*"),
            ("s3.region", "eu-west-1", "region", "eu-west-1"),
            ("s3.endpoint", "http://s3", "endpoint_url", "http://s3"),
            ("store.url", "http://s3", "endpoint_url", "http://s3"),
            ("s3.ssea.name", "aws:kms", "sse", "aws:kms"),
            ("s3.sse.kms.key.id", "alias/x", "kms_key_id", "alias/x"),
            ("s3.sse.customer.key", "${env:K}", "customer_key", "${env:K}"),
            ("s3.acl.canned", "private", "acl", "private"),
            ("s3.object.tagging.key.value.pairs", "a:1,b:2", "object_tags", "a=1,b=2"),
            ("s3.proxy.url", "http://proxy:1", "proxy_url", "http://proxy:1"),
            ("s3.credentials.provider.sts.role.arn", "arn:x", "role_arn", "arn:x"),
            ("s3.credentials.provider.sts.role.external.id", "x", "external_id", "x"),
            ("aws.sts.role.arn", "arn:x", "role_arn", "arn:x"),
            ("aws.sts.role.external.id", "x", "external_id", "x"),
            ("local.buffer.dir", "/b", "buffer_dir", "/b"),
            ("compressed_block_size", "67108864", "block_bytes", "67108864"),
            ("flush.size", "1000", "chunk_records", "1000"),
            ("rotate.interval.ms", "60000", "chunk_span", "60000ms"),
            ("rotate.schedule.interval.ms", "90000", "chunk_interval", "90000ms"),
            ("tasks.max", "4", "workers", "4"),
            ("errors.tolerance", "none", "on_bad_record", "stop"),
            ("errors.tolerance", "all", "on_bad_record", "skip"),
            ("errors.deadletterqueue.topic.name", "dead", "dlq_topic", "dead"),
            ("bootstrap.servers", "h:9092", "bootstrap_servers", "h:9092"),
            ("s3.bucket", "b-1", "archive", "s3://b-1"),
            ("s3.bucket.name", "b-1", "archive", "s3://b-1"),
            ("kafka.sasl.password", "x", "kafka.sasl.password", "x"),
        ],
    )
    def test_what_has_an_equal(self, name: str, value: str, field: str, taken: str) -> None:
        assert values(connect(**{name: value})) == {field: taken}

    @pytest.mark.parametrize(
        ("tolerance", "topic", "taken"),
        [
            ("all", "dead", {"on_bad_record": "dlq", "dlq_topic": "dead"}),
            ("all", "", {"on_bad_record": "skip"}),
            ("none", "dead", {"on_bad_record": "stop", "dlq_topic": "dead"}),
        ],
    )
    def test_what_becomes_of_bad_records(self, tolerance: str, topic: str, taken: dict[str, str]) -> None:
        names = {"errors.tolerance": tolerance, "errors.deadletterqueue.topic.name": topic}
        assert values(connect(**names)) == taken

    @pytest.mark.parametrize("prefix", ["kafka/backup", "/kafka/backup/"])
    def test_bucket_and_prefix_make_an_address(self, prefix: str) -> None:
        file = connect(**{"s3.prefix": prefix, "s3.bucket": "b-1"})
        assert values(file) == {"archive": "s3://b-1/kafka/backup"}
        assert file[0]["archive"].origin.alias == "s3.bucket"

    def test_a_prefix_alone(self) -> None:
        with pytest.raises(UsageError, match="is set without"):
            connect(**{"s3.prefix": "p"})

    @pytest.mark.parametrize("name", ["rotate.interval.ms", "rotate.schedule.interval.ms"])
    def test_minus_one_switches_a_rotation_off(self, name: str) -> None:
        assert values(connect(**{name: "-1"})) == {}

    def test_milliseconds_are_whole(self) -> None:
        with pytest.raises(UsageError, match="cannot be '5m'"):
            connect(**{"rotate.interval.ms": "5m"})

    @pytest.mark.parametrize("name", ["topics.regex", "rotate.schedule.interval.ms"])
    def test_what_differs_is_reported(self, name: str) -> None:
        (note,) = connect(**{name: "1"})[1]
        assert f"c.json:1: {name} is taken as" in note

    @pytest.mark.parametrize("name", files.NOT_USED)
    def test_what_changes_nothing_is_left_out_with_a_warning(self, name: str) -> None:
        file = connect(**{name: "x"})
        assert file[0] == {}
        assert file[1] == (f"c.json:1: {name} is not used: {files.NOT_USED[name]}",)

    @pytest.mark.parametrize("name", [*files.REFUSED, "transforms.x.type", "consumer.override.fetch.max.bytes"])
    def test_what_would_change_the_archive_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError) as caught:
            connect(**{name: "AKIAX"})
        assert caught.value.why
        assert "AKIAX" not in caught.value.what + caught.value.why + caught.value.remedy

    @pytest.mark.parametrize(
        "names",
        [
            ("s3.bucket", "s3.bucket.name"),
            ("s3.bucket", "archive"),
            ("s3.endpoint", "store.url"),
            ("topics", "topics.regex"),
            ("tasks.max", "workers"),
            ("chunk_bytes", "chunk-bytes"),
        ],
    )
    def test_two_names_of_one_field(self, names: tuple[str, str]) -> None:
        with pytest.raises(UsageError, match="set the same thing"):
            connect(**dict.fromkeys(names, "x"))


class TestReading:
    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            files.read_config_file(tmp_path / "none.yaml")

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(UsageError, match="not UTF-8"):
            files.read_config_file(path)

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"#" * (1024**2 + 1))
        with pytest.raises(UsageError, match="larger"):
            files.read_config_file(path)

    def test_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"\xef\xbb\xbfregion: eu\n")
        assert values(files.read_config_file(path)) == {"region": "eu"}


REQUIRED_FIELDS = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": ("orders",)}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_described_and_its_default_reads_back(field: str) -> None:
    info = FIELDS[field]
    assert info.description
    assert info.description.endswith(".")
    assert wanted(field)
    assert field_kind(field)
    if default_text(field):
        config = RunConfig(**REQUIRED_FIELDS, **{field: default_text(field)})
        assert getattr(config, field) == info.get_default(call_default_factory=True)


def test_the_defaults_of_the_rotation() -> None:
    config = RunConfig(**REQUIRED_FIELDS)
    assert (config.chunk_bytes, config.chunk_interval, config.chunk_idle) == (128 * 1024**2, 300, 60)
    assert (config.chunk_records, config.chunk_span, config.workers, config.http) == (None, None, 1, None)


def test_none_switches_a_limit_off() -> None:
    config = RunConfig(**REQUIRED_FIELDS, chunk_idle="none", chunk_span="none", chunk_records="none")
    assert (config.chunk_idle, config.chunk_span, config.chunk_records) == (None, None, None)
    assert value_text("chunk_idle", None) == "none"


@pytest.mark.parametrize(
    ("text", "topics"),
    [("orders", ("orders",)), ("a, b c", ("a", "b", "c")), ("~a{1,2}", ("~a{1,2}",)), (["a", "~b"], ("a", "~b"))],
)
def test_topics(text: object, topics: tuple[str, ...]) -> None:
    assert RunConfig(**REQUIRED_FIELDS | {"topics": text}).topics == topics


@pytest.mark.parametrize("address", ["127.0.0.1:9404", "localhost:0", "[::1]:9404", "0.0.0.0:65535"])
def test_http_addresses(address: str) -> None:
    assert RunConfig(**REQUIRED_FIELDS, http=address).http == address


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
        RunConfig(**REQUIRED_FIELDS | {field: value})


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
        RunConfig(**REQUIRED_FIELDS | {"topics": ("orders*",)}, **values)
    assert caught.value.errors()[0]["type"] == "together"


@pytest.mark.parametrize("exclude", ["*-dead", "~.*-(dead|test)"])
def test_a_topic_of_bad_records_that_is_left_out(exclude: str) -> None:
    config = RunConfig(
        **REQUIRED_FIELDS | {"topics": "orders*"}, on_bad_record="dlq", dlq_topic="orders-dead", exclude=exclude
    )
    assert config.dlq_topic == "orders-dead"


@pytest.mark.parametrize("name", KAFKA_RESERVED)
def test_safety_settings_are_refused(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig(**REQUIRED_FIELDS, kafka={name: "x"})
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
    config = RunConfig(**REQUIRED_FIELDS, kafka={name: "hunter2", "client.rack": "r1"})
    value = config.kafka[name]
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config) + str(config) + config.model_dump_json()
    assert config.kafka["client.rack"] == "r1"


def test_masked_fields_show_themselves_nowhere() -> None:
    config = RunConfig(**REQUIRED_FIELDS, region="hidden-1").masking(frozenset({"region"}))
    assert config.region == "hidden-1"
    assert "hidden-1" not in repr(config) + str(config)


def test_kafka_takes_numbers_and_booleans_as_librdkafka_writes_them() -> None:
    config = RunConfig(**REQUIRED_FIELDS, kafka={"socket.keepalive.enable": True, "socket.timeout.ms": 5000})
    assert config.kafka == {"socket.keepalive.enable": "true", "socket.timeout.ms": "5000"}
