"""Configuration files of every syntax as keys, texts and lines."""

import json

import pytest

from blockgz.documents import parse_document
from blockgz.errors import UsageError


def entries(name: str, text: str) -> list[tuple[str, object, str]]:
    return [(entry.key, entry.value, entry.place) for entry in parse_document(name, text)]


def refused(name: str, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
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
