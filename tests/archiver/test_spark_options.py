import pytest

from archiver.configuration.spark_names import SPARK_NAMES
from archiver.errors import UsageError
from archiver.spark.job import subscription
from archiver.spark.options import SinkOptions, parse_options


def parsed(**options: str) -> SinkOptions:
    return parse_options({"path": "./archive", **options})


def test_the_least_is_a_path() -> None:
    config = parsed().config
    assert (config.archive, config.record_format, config.codec, config.layout) == ("./archive", "json", "gzip", "topic")
    assert (config.isolation_level, config.group_id) == ("read_uncommitted", "blockgz-spark")


def test_names_in_any_case_and_values_as_of_archiver_run() -> None:
    options = parsed(chunkbytes="1MiB", CODEC="zstd", chunkSpan="1h", topicids='{"orders":"x"}', CLUSTERID="c")
    assert (options.config.chunk_bytes, options.config.codec, options.config.chunk_span) == (1024**2, "zstd", 3600)
    assert (options.cluster_id, options.topic_ids) == ("c", {"orders": "x"})


def test_a_bare_path_is_a_folder_as_everywhere_in_spark() -> None:
    assert parse_options({"path": "archive"}).config.archive == "./archive"


def test_what_spark_adds_to_the_options_of_a_stream_is_let_through() -> None:
    assert parsed(checkpointlocation="/c", queryName="q").config.archive == "./archive"


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ({"chunkByte": "1"}, "no option 'chunkByte'", "did you mean chunkBytes?"),
        ({"topic": "orders"}, "no option 'topic'", ""),
        ({"kafka.bootstrap.servers": "h:1"}, "no option 'kafka.bootstrap.servers'", "format kafka"),
        ({"chunkBytes": "much"}, "chunkBytes cannot be 'much'", "a size such as 64MiB"),
        ({"codec": "lz4"}, "codec cannot be 'lz4'", "one of gzip, zstd"),
        ({"memory": "2GiB"}, "memory 2GiB is too much", "1GiB"),
        ({"memory": "1MiB"}, "memory cannot be '1MiB'", "at least 32MiB"),
        ({"isolationLevel": "serializable"}, "isolationLevel cannot be", "read_committed, read_uncommitted"),
        ({"gzipLevel": "9"}, "do not go together", "gzip_library"),
        ({"layout": "seed"}, "do not go together", "record_format"),
        ({"topicIds": "[]"}, "topicIds is '[]'", "orders"),
        ({"path": ""}, "needs a path", ".save(path)"),
    ],
)
def test_what_cannot_be_names_option_and_remedy(options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_every_option_is_a_field() -> None:
    assert set(SPARK_NAMES.values()) <= set(type(parsed().config).model_fields)


@pytest.mark.parametrize(
    ("topics", "option"),
    [
        (["orders", "payments"], {"subscribe": "orders,payments"}),
        (["eu-*"], {"subscribePattern": r"(?:(?!__)(?:eu\-.*))"}),
        (["a.b", "~eu[.].+"], {"subscribePattern": r"(?:a\.b)|(?:(?!__)(?:eu[.].+))"}),
    ],
)
def test_topics_as_the_source_wants_them(topics: list[str], option: dict[str, str]) -> None:
    assert subscription(topics) == option


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UsageError):
        subscription(["~("])
