import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from blockgz.errors import UsageError
from blockgz.spark.errors import WriteFailed
from replayer.spark.sink import TopicBatchWriter, batch_writer, refuse_unfit
from replayer.spark.sink_target import check_columns, parse_sink_options

LEAST = {"kafka.bootstrap.servers": "localhost:1"}
TYPES = {
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "headers": "array<struct<key:string,value:binary>>",
    "incarnation": "int",
}
EXACTLY_ONCE = {"transactional": "true", "job": "j"}


def refuse(columns: str, **options: str) -> None:
    refuse_unfit(parse_sink_options(LEAST | options), check_columns({name: TYPES[name] for name in columns.split()}))


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("value", {"topic": "copy"}),
        ("value topic", {}),
        ("value topic partition", {"partitions": "4"}),
        ("value topic partition offset headers", {"topic": "copy", "incarnation": "1", **EXACTLY_ONCE}),
        ("value topic partition offset headers incarnation", {"topic": "copy", **EXACTLY_ONCE}),
        ("value topic partition offset", {"topic": "copy", "includeHeaders": "false"}),
        ("value topic partition offset headers", {"intoSource": "true", "incarnation": "2", **EXACTLY_ONCE}),
    ],
)
def test_columns_that_go_with_the_options(columns: str, options: dict[str, str]) -> None:
    refuse(columns, **options)


@pytest.mark.parametrize(
    ("columns", "options", "what", "remedy"),
    [
        ("value", {}, "no topic is named", "topic"),
        ("value topic partition offset headers", {}, "to the topics that they come from", "intoSource"),
        ("value topic partition offset", {"topic": "copy"}, "headers would be lost", "includeHeaders"),
        ("value", {"topic": "copy", "partitions": "keep"}, "no column partition", "by-key"),
        ("value topic partition", {"topic": "copy", **EXACTLY_ONCE}, "transactionally", "keep the columns"),
        ("value partition offset headers", {"topic": "copy", **EXACTLY_ONCE}, "transactionally", "keep the columns"),
        (
            "value topic partition offset headers",
            {"topic": "copy", **EXACTLY_ONCE},
            "do not say which incarnation",
            '.option("incarnation", "1")',
        ),
        (
            "value topic partition offset headers incarnation",
            {"topic": "copy", "incarnation": "1", **EXACTLY_ONCE},
            "an option and a column",
            "remove the option",
        ),
        (
            "value topic partition offset headers",
            {"topic": "copy", "recordedIncarnation": "1", **EXACTLY_ONCE},
            "recordedIncarnation does not apply",
            "includeIncarnation",
        ),
    ],
)
def test_columns_that_do_not(columns: str, options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse(columns, **options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_topic_is_not_overwritten_and_the_error_is_one_text() -> None:
    schema = StructType().add("value", "binary")
    with pytest.raises(WriteFailed) as caught:
        batch_writer({**LEAST, "topic": "copy"}, schema, overwrite=True)
    assert str(caught.value).splitlines() == [
        "a topic cannot be overwritten",
        "why:   records are only ever appended to one",
        'do:    .mode("append")',
    ]


def test_every_write_is_a_run_of_its_own_and_travels_to_the_tasks() -> None:
    writer = TopicBatchWriter(None)  # type: ignore[arg-type]
    again = cloudpickle.loads(cloudpickle.dumps(writer))
    assert vars(again) == vars(writer)
    assert vars(TopicBatchWriter(None)) != vars(writer)  # type: ignore[arg-type]
