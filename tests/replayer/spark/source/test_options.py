from pathlib import Path

import pytest

from blockgz.archive.positions import AT_END, AT_START, AtOffset, AtTime
from blockgz.errors import UsageError
from blockgz.store.address import Address, LocalAddress, S3Address
from blockgz.store.s3_settings import S3Settings
from index_format.keys import TopicFolder
from replayer.spark.source_options import Bound, SourceOptions, Subscription, parse_options, position_in

LEAST = {"path": "./archive", "subscribe": "orders"}


def here(name: str) -> LocalAddress:
    """Executors work in other folders."""
    return LocalAddress(str(Path.cwd() / name))


def parsed(**options: str) -> SourceOptions:
    return parse_options(LEAST | options, default_start=AT_START)


def test_the_least_reads_everything() -> None:
    options = parsed()
    assert (options.place.address, options.start, options.end) == (here("archive"), AT_START, AT_END)
    assert options.subscription == Subscription({"orders": None})
    assert options.fails_on_data_loss
    assert not options.headers


def test_a_bare_path_is_a_folder_as_everywhere_in_spark() -> None:
    assert parsed(path="archive").place.address == here("archive")


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("s3a://backup/kafka", S3Address("backup", "kafka/")),
        ("s3://backup/kafka", S3Address("backup", "kafka/")),
        ("file:/data/kafka", LocalAddress("/data/kafka")),
        ("file:///data/kafka", LocalAddress("/data/kafka")),
        ("~/kafka", LocalAddress(str(Path.home() / "kafka"))),
    ],
)
def test_paths_as_spark_spells_them(path: str, address: Address) -> None:
    assert parsed(path=path).place.address == address


def test_the_connection_to_s3() -> None:
    role = "arn:aws:iam::1:role/reader"
    options = parsed(
        endpointUrl="http://s3", region="r", profile="p", proxyUrl="http://x:1", roleArn=role, externalId="i"
    )
    assert options.place.s3 == S3Settings("http://s3", "r", "p", "http://x:1", role, "i")
    with pytest.raises(UsageError, match="cannot be combined"):
        parsed(externalId="i")


def test_what_hadoops_s3a_calls_the_same() -> None:
    keys = {"fs.s3a.access.key": "${env:ID}", "fs.s3a.secret.key": "${env:SECRET}", "fs.s3a.session.token": "${env:T}"}
    role = "arn:aws:iam::1:role/reader"
    s3a = {"fs.s3a.endpoint": "s3.example.com:9000", "fs.s3a.Endpoint.Region": "r", "fs.s3a.assumed.role.arn": role}
    references = {"access_key_id": "${env:ID}", "secret_access_key": "${env:SECRET}", "session_token": "${env:T}"}
    expected = S3Settings("https://s3.example.com:9000", "r", role_arn=role, **references)
    assert parsed(**s3a, **keys).place.s3 == expected
    assert parsed(**{"fs.s3a.endpoint": "http://s3:1"}).place.s3.endpoint_url == "http://s3:1"
    with pytest.raises(UsageError, match="has no effect") as caught:
        parsed(**{"fs.s3a.path.style.access": "true"})
    assert "fs.s3a.endpoint.region" in caught.value.remedy
    with pytest.raises(UsageError, match="the same option"):
        parsed(**{"fs.s3a.endpoint": "http://s3:1", "EndpointURL": "http://s3:2"})
    with pytest.raises(UsageError, match="not a reference") as caught:
        parsed(**{"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hidden"})
    assert "hidden" not in str(caught.value.why)


def test_names_in_any_case() -> None:
    assert parsed(INCLUDEHEADERS="TRUE", MinPartitions="7").headers
    assert parsed(MINPARTITIONS="7").min_tasks == 7


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "earliest"}, AT_START),
        ({"startingOffsets": "latest"}, AT_END),
        (
            {"startingOffsets": '{"orders":{"0":23,"1":-1,"2":-2}}'},
            {("orders", 0): AtOffset(23), ("orders", 1): AT_END, ("orders", 2): AT_START},
        ),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}, {("orders", 0): AtTime(1000)}),
        ({"startingTimestamp": "1000", "startingOffsets": "latest"}, AtTime(1000)),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1}}', "startingOffsets": "latest"}, {("orders", 0): AtTime(1)}),
    ],
)
def test_where_to_start(options: dict[str, str], start: Bound) -> None:
    assert parsed(**options).start == start


def test_topics_and_partitions() -> None:
    assert parsed(subscribe="orders, payments,").subscription == Subscription({"orders": None, "payments": None})
    assigned = parse_options({"path": "/a", "assign": '{"orders":[2,0,2]}'}, default_start=AT_START)
    assert assigned.subscription == Subscription({"orders": (0, 2)})
    fitting = parse_options({"path": "/a", "subscribePattern": "ord.*"}, default_start=AT_START)
    assert fitting.subscription == Subscription({}, "ord.*")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka.bootstrap.servers": "localhost:9092"}, "kafka.bootstrap.servers"),
        ({"path": ""}, "path"),
        ({"path": "gs://bucket"}, "gs://bucket"),
        ({"subscribe": ""}, "subscribe"),
        ({"subscribePattern": "o.*"}, "one of subscribe"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "", "assign": "orders"}, "assign"),
        ({"subscribe": "", "assign": '{"orders":3}'}, "assign"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":3}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":"3"}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets"),
        ({"endingTimestamp": "yesterday"}, "endingTimestamp"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "startingOffsetsByTimestampStrategy"),
    ],
)
def test_what_is_refused_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**options)
    assert named in str(caught.value)
    assert caught.value.remedy


def test_offsets_by_partition_must_name_all() -> None:
    bound = parsed(startingOffsets='{"orders":{"0":23}}').start
    assert position_in(bound, TopicFolder("orders"), 0, "startingOffsets") == AtOffset(23)
    with pytest.raises(UsageError, match="does not name partition 1 of orders"):
        position_in(bound, TopicFolder("orders"), 1, "startingOffsets")
