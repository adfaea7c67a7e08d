"""Configuration files: three syntaxes, our names and Connect's."""

from pathlib import Path

import pytest

from blockgz.config.files import NOT_USED, REFUSED, ConfigFile, read_config_file, settings_of
from blockgz.documents import DocumentEntry, parse_document
from blockgz.errors import UsageError


def values(file: ConfigFile) -> dict[str, object]:
    return {name: setting.value for name, setting in file.settings.items()}


def connect(**config: str) -> ConfigFile:
    return settings_of([DocumentEntry(name, value, "c.json:1") for name, value in config.items()])


def refused(name: str, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        settings_of(parse_document(name, text))
    return caught.value


def test_nothing_under_kafka_is_no_setting() -> None:
    assert "kafka" not in settings_of(parse_document("f.yml", "kafka: {}\n")).settings


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
    ],
)
def test_an_unknown_key_with_a_suggestion(key: str, suggestion: str) -> None:
    error = refused("f.properties", f"\n{key}=secret")
    assert error.what == f"f.properties:2: {key} is not a setting"
    assert error.remedy == f"did you mean {suggestion}?"
    assert "secret" not in error.what + error.why + error.remedy
    assert error.exit_code == 2


def test_an_unknown_key_without_one() -> None:
    assert "config init" in refused("f.properties", "xyzzy=1").remedy


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
        assert file.settings["archive"].origin.alias == "s3.bucket"

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
        (note,) = connect(**{name: "1"}).notes
        assert f"c.json:1: {name} is taken as" in note

    @pytest.mark.parametrize("name", NOT_USED)
    def test_what_changes_nothing_is_left_out_with_a_warning(self, name: str) -> None:
        file = connect(**{name: "x"})
        assert file.settings == {}
        assert file.notes == (f"c.json:1: {name} is not used: {NOT_USED[name]}",)

    @pytest.mark.parametrize("name", [*REFUSED, "transforms.x.type", "consumer.override.fetch.max.bytes"])
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
            read_config_file(tmp_path / "none.yaml")

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(UsageError, match="not UTF-8"):
            read_config_file(path)

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"#" * (1024**2 + 1))
        with pytest.raises(UsageError, match="larger"):
            read_config_file(path)

    def test_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(b"\xef\xbb\xbfregion: eu\n")
        assert values(read_config_file(path)) == {"region": "eu"}
