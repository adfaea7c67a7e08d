"""Configuration files of every syntax as keys, texts and lines."""

import json
import pickle
from collections.abc import Iterable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from blockgz import errors
from blockgz.documents import parse_document
from blockgz.hosts import is_loopback, unencrypted_brokers, unencrypted_endpoint
from replayer.cli import main as replayer


def entries(name: str, text: str) -> list[tuple[str, object, str]]:
    return [(entry.key, entry.value, entry.place) for entry in parse_document(name, text)]


def refused(name: str, text: str) -> errors.UsageError:
    with pytest.raises(errors.UsageError) as caught:
        parse_document(name, text)
    return caught.value


class TestYaml:
    def test_scalars_are_taken_as_written_and_maps_nest(self) -> None:
        text = (
            "group_id: 007\nregion: no\ntopics: [a, '~b']\n\nkafka:\n  ssl.ca.location: /ca\n  sasl:\n    password: x\n"
        )
        assert entries("f.yaml", text) == [
            ("group_id", "007", "f.yaml:1"),
            ("region", "no", "f.yaml:2"),
            ("topics", ("a", "~b"), "f.yaml:3"),
            ("kafka.ssl.ca.location", "/ca", "f.yaml:6"),
            ("kafka.sasl.password", "x", "f.yaml:8"),
        ]

    def test_null_and_nothing(self) -> None:
        text = "chunk_idle:\nhttp: ~\nregion: 'null'\nkafka: {}\n"
        assert [value for _, value, _ in entries("f.yml", text)] == [None, None, "null", None]

    @pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
    def test_empty(self, text: str) -> None:
        assert entries("f.yaml", text) == []

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("topics: [a\nb: c", "f.yaml:2"),
            ("- a\n", "f.yaml:1"),
            ("a: !!python/name:os.system x\n", "f.yaml:1"),
            ("a: !mine x\n", "f.yaml:1"),
            ("x: 1\ntopics: [[a]]\n", "f.yaml:2"),
            ("[a]: b\n", "f.yaml:1"),
            ("a: &a\n  b: *a\n", "f.yaml:2"),
            ("<<: {a: b}\n", "f.yaml:1"),
            ("a: b\n---\nc: d\n", "f.yaml:2"),
            ("[" * 20_000, "f.yaml"),
        ],
    )
    def test_malformed(self, text: str, line: str) -> None:
        assert line in refused("f.yaml", text).what


class TestProperties:
    def test_as_java_reads_them(self) -> None:
        text = (
            "# comment\n! comment\n\n a = b c \nd:e\nf g\nh\n"
            "i = one, \\\n    two\nj\\=k = \\u0041\\t\\\\\r\nl=m\\n # no comment\nn=o=p:q\nlast = x\\"
        )
        assert entries("f.properties", text) == [
            ("a", "b c ", "f.properties:4"),
            ("d", "e", "f.properties:5"),
            ("f", "g", "f.properties:6"),
            ("h", "", "f.properties:7"),
            ("i", "one, two", "f.properties:8"),
            ("j=k", "A\t\\", "f.properties:10"),
            ("l", "m\n # no comment", "f.properties:11"),
            ("n", "o=p:q", "f.properties:12"),
            ("last", "x", "f.properties:13"),
        ]

    def test_a_comment_goes_not_on(self) -> None:
        assert entries("f.properties", "# a \\\nb=c\n") == [("b", "c", "f.properties:2")]

    def test_an_escape_that_is_none(self) -> None:
        assert refused("f.properties", "a=b\nc=\\u00zz\n").what.startswith("f.properties:2")

    def test_a_value_without_a_name(self) -> None:
        assert refused("f.properties", "a=b\n= c\n").what.startswith("f.properties:2")


class TestJson:
    def test_connects_form_and_the_flat_one(self) -> None:
        config = {"topics": "a", "tasks.max": 4, "once": True}
        whole = json.dumps({"name": "sink", "config": config}, indent=1)
        flat = json.dumps(config, indent=1)
        assert entries("f.json", whole) == [
            ("name", "sink", "f.json:2"),
            ("topics", "a", "f.json:4"),
            ("tasks.max", "4", "f.json:5"),
            ("once", "true", "f.json:6"),
        ]
        assert entries("f.json", flat) == [
            ("topics", "a", "f.json:2"),
            ("tasks.max", "4", "f.json:3"),
            ("once", "true", "f.json:4"),
        ]

    def test_texts_are_taken_as_json_means_them(self) -> None:
        text = '{\n\t"config.providers" :\t"file",\n\t"b":{"c":["\\u00e9\\/\\ud83d\\ude00",\n"x"]},"d":null, "e": 1.50}'
        assert entries("f.json", text) == [
            ("config.providers", "file", "f.json:2"),
            ("b.c", ("é/😀", "x"), "f.json:3"),
            ("d", None, "f.json:4"),
            ("e", "1.50", "f.json:4"),
        ]

    @pytest.mark.parametrize("text", ["", "[]", "3", '{"a": }', '{"topics": [[1]]}', "[" * 100_000])
    def test_malformed(self, text: str) -> None:
        assert refused("f.json", text).what.startswith("f.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.yaml", "chunk_bytes: 1\nchunk_bytes: 2\n"),
        ("f.yaml", "kafka: {a.b: 1, a: {b: 2}}\n"),
        ("f.properties", "chunk_bytes=1\nchunk_bytes=2\n"),
        ("f.json", '{"chunk_bytes": 1, "chunk_bytes": 2}'),
    ],
)
def test_a_key_that_occurs_twice(name: str, text: str) -> None:
    assert "given twice" in refused(name, text).what


def test_the_ending_tells_the_syntax() -> None:
    assert "rename" in refused("f.toml", "").remedy


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BlockgzError("what"), 1),
        (errors.FormatError("what"), 3),
        (errors.MalformedObject("what"), 3),
        (errors.CorruptBlock("what"), 3),
        (errors.TooLarge("what"), 3),
        (errors.UnsupportedVersion("what"), 1),
        (errors.BadName("what"), 2),
        (errors.UsageError("what"), 2),
        (errors.NoArchiveThere("what"), 10),
        (errors.ObjectMissing("key"), 3),
        (errors.StoreUnavailable("what"), 1),
    ],
)
def test_exit_codes(error: errors.BlockgzError, code: int) -> None:
    assert errors.exit_code(error) == code
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), errors.exit_code(again)) == (type(error), str(error), code)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "no topics"),
        (("a",), "a"),
        (range(10), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (range(11), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1 more"),
    ],
)
def test_a_list_names_ten(names: Iterable[object], text: str) -> None:
    assert errors.listed(names, "no topics") == text


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("", "kafka", "localhost.example", "10.0.0.1", "0.0.0.0", "::2")))


@pytest.mark.parametrize(
    ("servers", "protocol", "broker"),
    [
        ("kafka:9092", None, "kafka:9092"),
        ("localhost:9092, 10.0.0.1:9092", "PLAINTEXT", "10.0.0.1:9092"),
        ("kafka:9092", "sasl_plaintext", "kafka:9092"),
        ("SASL_PLAINTEXT://kafka", "SASL_PLAINTEXT", "SASL_PLAINTEXT://kafka"),
        ("[::1]:9092,127.0.0.1:9092,PLAINTEXT://localhost:1", "PLAINTEXT", None),
        ("[::2]:9092", "plaintext", "[::2]:9092"),
        ("kafka:9092", "SSL", None),
        ("kafka:9092", "SASL_SSL", None),
        ("kafka:9092", "${env:PROTOCOL}", None),
        ("", None, None),
    ],
)
def test_brokers(servers: str, protocol: str | None, broker: str | None) -> None:
    given = {} if protocol is None else {"security.protocol": protocol}
    assert unencrypted_brokers({"bootstrap.servers": servers, **given}) == broker


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (None, None),
        ("https://minio:9000", None),
        ("http://minio:9000", "minio"),
        ("http://user:secret@minio:9000", "minio"),
        ("http://localhost:9000", None),
        ("http://[::1]:9000", None),
        ("http://[", None),
    ],
)
def test_endpoints(url: str | None, host: str | None) -> None:
    assert unencrypted_endpoint(url) == host


REMOTE = ["-b", "kafka.invalid:9092", "--endpoint-url", "http://minio.invalid:9000"]
LOCAL = ["-b", "127.0.0.1:1", "--endpoint-url", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (replayer, ["replay", "orders", "--to-topic", "x", "-a", "./none"]),
        (archiver, ["status", "-a", "./none"]),
        (archiver, ["repair", "diverged", "orders", "-a", "./none"]),
    ],
)
def test_commands_warn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: click.Command, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(program, [*command, *REMOTE]).stderr
    assert told.count("warning: the connection to Kafka at kafka.invalid:9092 is not encrypted") == 1
    assert told.count("warning: the connection to S3 at minio.invalid is not encrypted") == 1
    assert "not encrypted" not in CliRunner().invoke(program, [*command, *LOCAL]).stderr


def test_a_run_logs_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The check of settings ends this run before it asks for a broker.
    command = ["run", "orders", "-a", "./a", "--once", "--log-format", "json", "-X", "queued.min.messages=none"]
    told = CliRunner().invoke(archiver, [*command, *REMOTE]).stderr
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    found = [(each["service"], each["host"]) for each in lines if each["event"] == "unencrypted"]
    assert found == [("Kafka", "kafka.invalid:9092"), ("S3", "minio.invalid")]
    assert "unencrypted" not in CliRunner().invoke(archiver, [*command, *LOCAL]).stderr
