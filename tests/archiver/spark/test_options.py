import json
import re
from pathlib import Path

import pytest

from archiver.spark import job
from archiver.spark.context import IDENTITY_OPTIONS, MISSING_OPTION, ArchiveSinkOptions, parse_options
from archiver.spark.job import subscription
from blockgz.config.kinds import SPARK_DEFAULTS, SPARK_NAMES, default_text
from blockgz.errors import UsageError


def parsed(**options: str) -> ArchiveSinkOptions:
    return parse_options({"path": "./archive", **options})


def test_the_least_is_a_path() -> None:
    config = parsed().config
    assert config.archive == str(Path("archive").absolute()), "executors work in other folders"
    assert (config.record_format, config.codec, config.layout) == ("json", "gzip", "topic")
    assert (config.isolation_level, config.group_id) == ("read_uncommitted", "blockgz-spark")


def test_names_in_any_case_and_values_as_of_archiver_run() -> None:
    options = parsed(chunkbytes="1MiB", CODEC="zstd", chunkSpan="1h", topicids='{"orders":"x"}', CLUSTERID="c")
    assert (options.config.chunk_bytes, options.config.codec, options.config.chunk_span) == (1024**2, "zstd", 3600)
    assert (options.cluster_id, options.topic_ids) == ("c", {"orders": "x"})


def test_ids_of_topics_are_spelled_as_archiver_run_spells_them() -> None:
    """Of Java, then of librdkafka; another spelling would be another topic."""
    for spelled in ("V_tpKAQMSYSP_KegpT6-qA", "V/tpKAQMSYSP/KegpT6+qA"):
        assert parsed(topicIds=json.dumps({"orders": spelled})).topic_ids == {"orders": "V/tpKAQMSYSP/KegpT6+qA"}


def test_what_the_job_alone_can_say_is_not_offered() -> None:
    assert parsed(readings="/tmp/x/readings").readings == "/tmp/x/readings"
    assert parsed().readings is None
    with pytest.raises(UsageError) as caught:
        parsed(reading="1")
    assert "readings" not in f"{caught.value.why} {caught.value.remedy}"


def test_a_bare_path_is_a_folder_as_everywhere_in_spark() -> None:
    assert parse_options({"path": "archive"}).config.archive == str(Path("archive").absolute())
    for path in ("s3a://backup/kafka", "file:/data/kafka", "file:///data/kafka"):
        assert parse_options({"path": path}).config.archive == path


def test_what_spark_adds_to_the_options_of_a_stream_is_let_through() -> None:
    assert parsed(checkpointlocation="/c", queryName="q").config.archive.endswith("/archive")


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
        ({"gzipLevel": "9"}, "cannot be combined", "gzip_library"),
        ({"layout": "seed"}, "cannot be combined", "record_format"),
        ({"topicIds": "[]"}, "topicIds is '[]'", "orders"),
        ({"path": ""}, "needs a path", ".save(path)"),
    ],
)
def test_what_cannot_be_names_option_and_remedy(options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_an_s3_address_stays_as_it_is() -> None:
    assert parsed(path="s3://bucket/prefix").config.archive == "s3://bucket/prefix"


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


def test_the_words_of_later_pythons_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "translate", lambda _: r"(?s:eu\-.*)\z")
    assert subscription(["eu-*"]) == {"subscribePattern": r"(?:(?!__)(?:eu\-.*))"}


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UsageError):
        subscription(["~("])


def test_the_page_lists_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark-writing.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (?:`([\w-]+)`)? ?\|", page, re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
    defaults = {name: SPARK_DEFAULTS.get(field) or default_text(field) for name, field in SPARK_NAMES.items()}
    assert listed == defaults | dict.fromkeys(IDENTITY_OPTIONS, "") | {MISSING_OPTION: "hole"}
