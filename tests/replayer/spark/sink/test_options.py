import pytest

from blockgz.errors import UsageError
from replayer.replay.pipeline import Routing
from replayer.spark.sink_target import TopicSinkOptions, parse_sink_options

LEAST = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**options: str) -> TopicSinkOptions:
    return parse_sink_options(LEAST | options)


def test_the_least() -> None:
    options = parsed()
    assert options.properties == {"bootstrap.servers": "localhost:9092"}
    assert (options.topic, options.routing, options.job) == (None, None, None)
    assert options.headers
    assert not (options.transactional or options.append or options.into_source)


def test_names_in_any_case_and_properties_of_the_client() -> None:
    options = parse_sink_options(
        {"Kafka.Bootstrap.Servers": "b:1", "TOPIC": "copy", "PARTITIONS": "by-key", "kafka.linger.ms": "5"}
    )
    assert options.properties == {"bootstrap.servers": "b:1", "linger.ms": "5"}
    assert (options.topic, options.routing) == ("copy", Routing("by-key"))


def test_a_streams_own_options_are_let_through() -> None:
    assert parsed(checkpointLocation="/somewhere", queryName="q") == parsed()


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ({"transactionl": "true"}, "no option 'transactionl'", "did you mean transactional"),
        ({"linger.ms": "5"}, "no option 'linger.ms'", "remove it"),
        ({"transactional": "yes"}, "transactional is 'yes'", "true or false"),
        ({"transactional": "true"}, "needs a name for its job", '.option("job"'),
        ({"job": "a b"}, "not a job name", "letters"),
        ({"job": "copy.1"}, "not a job name of this format", "copy-1"),
        ({"partitions": "some"}, "partitions is 'some'", "omit it"),
    ],
)
def test_what_cannot_be_used_names_the_remedy(options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options(LEAST | options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_property_without_its_prefix_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options(LEAST | {"linger.ms": "5"})
    assert "kafka.linger.ms" in caught.value.remedy


def test_a_cluster_is_needed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options({"topic": "copy"})
    assert "kafka.bootstrap.servers" in caught.value.remedy
