"""`replayer broker` in the hands of clients that know nothing of it: what they read is what the cluster held."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from system_test.support.archive_broker import Endpoint, serving
from system_test.support.archiving import Site, folder_site, store_site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.contents import NASTY_MS, produce_nasty
from system_test.support.environment import tool
from system_test.support.java_clients import tools_jars
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.programs import run
from system_test.support.topics import (
    NewRecord,
    Record,
    delete_topic,
    fill_topic,
    offsets_for_times,
    produce,
    read,
    watermarks,
)
from system_test.support.waiting import wait_until

NASTY, COMPACTED, LOG_TIME, LARGE, AGAIN = "nasty", "compacted", "log-time", "large", "again"
LARGE_BYTES = 20 << 20
JAVA_SECONDS = 60
NEWEST_TIME = -3


def fill(bootstrap: str) -> None:
    """Create topics of every kind that an archive may hold."""
    produce_nasty(bootstrap, NASTY, 2)
    create_compacted_topic(bootstrap, COMPACTED)
    produce(bootstrap, COMPACTED, [NewRecord(b"%d" % n, key=b"%d" % (n % 7)) for n in range(500)])
    compact_and_wait(bootstrap, COMPACTED)
    fill_topic(
        bootstrap,
        LOG_TIME,
        [NewRecord(b"%d" % n, timestamp=5) for n in range(300)],
        config={"message.timestamp.type": "LogAppendTime"},
    )
    large = [NewRecord(b"x" * LARGE_BYTES), NewRecord(b"after")]
    fill_topic(bootstrap, LARGE, large, config={"max.message.bytes": str(32 << 20)})
    fill_topic(bootstrap, AGAIN, [NewRecord(b"first life")] * 3)


@pytest.fixture(scope="module", params=["folder", "s3"])
def endpoint(
    request: pytest.FixtureRequest, broker: KafkaBroker, versitygw: VersityGateway, tmp_path_factory: Any
) -> Iterator[Endpoint]:
    home: Path = tmp_path_factory.mktemp("endpoint")
    topics = (NASTY, COMPACTED, LOG_TIME, LARGE, AGAIN)
    if request.param == "folder":
        site = folder_site(broker.bootstrap, home / "archive")
        fill(broker.bootstrap)
    else:
        site = store_site(broker.bootstrap, versitygw, "endpoint", home)
        fill(broker.bootstrap)
    formats = ("--record-format", "arrow") if request.param == "s3" else ()
    site.once(*topics, "--block-bytes", "4KiB", "--chunk-bytes", "64KiB", *formats)
    delete_topic(broker.bootstrap, AGAIN)
    fill_topic(broker.bootstrap, AGAIN, [NewRecord(b"second life")] * 2)
    site.once(AGAIN)
    with serving(site, "--fresh", "500ms") as endpoint:
        yield endpoint
    for topic in topics:
        delete_topic(broker.bootstrap, topic)


def places(endpoint: Endpoint) -> list[tuple[str, int]]:
    return [(NASTY, 0), (NASTY, 1), (COMPACTED, 0), (LOG_TIME, 0), (LARGE, 0), (AGAIN, 0)]


def test_kafka_python_reads_what_the_cluster_holds(endpoint: Endpoint) -> None:
    for topic, partition in places(endpoint):
        assert read(endpoint.bootstrap, topic, partition) == read(endpoint.site.bootstrap, topic, partition)
        marker = endpoint.site.marker(f"{topic}~2" if topic == AGAIN else topic, partition)
        assert watermarks(endpoint.bootstrap, topic, partition) == (0, marker["next_offset"])
    assert [record.value for record in read(endpoint.bootstrap, f"{AGAIN}.incarnation-1")] == [b"first life"] * 3


def test_offsets_by_time_are_those_of_the_cluster(endpoint: Endpoint) -> None:
    times = [0, 1, NASTY_MS - 1, NASTY_MS, NASTY_MS + 100, NASTY_MS + 401, 2_000_000_000_000]
    for partition in (0, 1):
        found = offsets_for_times(endpoint.bootstrap, NASTY, times, partition)
        assert found == offsets_for_times(endpoint.site.bootstrap, NASTY, times, partition)


def librdkafka(bootstrap: str, topic: str, partition: int, start: int = 0, **settings: Any) -> list[Record]:
    """Every record from an offset on, by a consumer that assigns itself a partition."""
    plain = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True, **settings}
    consumer = Consumer({**plain, "enable.auto.commit": False, "message.max.bytes": 32 << 20})
    consumer.assign([TopicPartition(topic, partition, start)])
    found: list[Record] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "no end of the partition within 30 s"
            error = message.error()
            if error is not None and error.name() == "_PARTITION_EOF":
                return found
            if error is not None:
                # librdkafka says once that there is no group, which a consumer that assigns does not need.
                assert error.name() == "GROUP_AUTHORIZATION_FAILED", error
                continue
            kind, time = message.timestamp()
            headers = tuple(message.headers() or ())
            found.append(Record(message.offset(), time, kind - 1, message.key(), message.value(), headers))
    finally:
        consumer.close()


def test_librdkafka_reads_what_the_cluster_holds(endpoint: Endpoint) -> None:
    for topic, partition in places(endpoint):
        truth = read(endpoint.site.bootstrap, topic, partition)
        assert librdkafka(endpoint.bootstrap, topic, partition) == truth
    middle = read(endpoint.site.bootstrap, NASTY)[100].offset
    assert librdkafka(endpoint.bootstrap, NASTY, 0, middle) == read(endpoint.site.bootstrap, NASTY)[100:]


def test_kcat_reads_what_the_cluster_holds(endpoint: Endpoint, kcat: str) -> None:
    def lines(bootstrap: str, topic: str, *more: str) -> list[bytes]:
        shown = ("-f", "%p %o %T %K %S %k %s %h\n", "-X", "isolation.level=read_committed")
        command = [kcat, "-C", "-b", bootstrap, "-t", topic, "-e", "-q", *shown, *more]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        return sorted(done.stdout.split(b"\n"))

    for topic in (NASTY, COMPACTED, LOG_TIME, AGAIN):
        assert lines(endpoint.bootstrap, topic) == lines(endpoint.site.bootstrap, topic)
    one = ("-p", "1", "-o", "5", "-c", "1")
    assert lines(endpoint.bootstrap, NASTY, *one) == lines(endpoint.site.bootstrap, NASTY, *one)


def test_aiokafka_reads_what_the_cluster_holds(endpoint: Endpoint) -> None:
    async def values(bootstrap: str) -> list[tuple[Any, ...]]:
        found = []
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
            places = [aiokafka.TopicPartition(NASTY, number) for number in (0, 1)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [(m.partition, m.offset, m.timestamp, m.key, m.value, m.headers) for m in messages]
        return sorted(found, key=lambda each: each[:2])

    assert asyncio.run(values(endpoint.bootstrap)) == asyncio.run(values(endpoint.site.bootstrap)) != []


def java(main: str, *arguments: object) -> bytes:
    """What a tool of Kafka's own prints."""
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{tools_jars()}/*"]
    command = [tool("java"), *flags, main, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=JAVA_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout


def test_tools_of_kafka_read_what_the_cluster_holds(endpoint: Endpoint) -> None:
    def consumed(bootstrap: str) -> bytes:
        properties = ("print.offset", "print.timestamp", "print.key", "print.headers")
        shown = [each for name in properties for each in ("--property", f"{name}=true")]
        count = len(read(endpoint.site.bootstrap, NASTY, 1)) - 50
        where = ("--bootstrap-server", bootstrap, "--topic", NASTY, "--partition", 1, "--offset", 50)
        where = (*where, "--isolation-level", "read_committed")
        return java("org.apache.kafka.tools.consumer.ConsoleConsumer", *where, "--max-messages", count, *shown)

    def offsets(bootstrap: str, time: int) -> bytes:
        # The newest record of the other topic was aborted, and is not archived.
        places = f"{COMPACTED}:0" if time == NEWEST_TIME else f"{NASTY}:0-1,{COMPACTED}:0"
        where = ("--bootstrap-server", bootstrap, "--topic-partitions", places, "--time", time)
        return java("org.apache.kafka.tools.GetOffsetShell", *where)

    assert consumed(endpoint.bootstrap) == consumed(endpoint.site.bootstrap) != b""
    for time in (-1, -2, NEWEST_TIME, NASTY_MS + 7):
        assert offsets(endpoint.bootstrap, time) == offsets(endpoint.site.bootstrap, time) != b""


def test_whoever_tries_to_change_something_is_refused(endpoint: Endpoint) -> None:
    producer = Producer({"bootstrap.servers": endpoint.bootstrap, "enable.idempotence": False})
    errors: list[str] = []
    producer.produce(NASTY, b"x", on_delivery=lambda error, _: errors.append(error.name()))
    producer.flush(30)
    assert errors == ["TOPIC_AUTHORIZATION_FAILED"]
    admin = AdminClient({"bootstrap.servers": endpoint.bootstrap})
    (created,) = admin.create_topics([NewTopic("new", 1, 1)]).values()
    with pytest.raises(KafkaException, match="this is an archive of blockgz, and can only be read"):
        created.result(30)
    (deleted,) = admin.delete_topics([NASTY]).values()
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        deleted.result(30)
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, LOG_TIME)]).values()
    assert described.result(30)["message.timestamp.type"].value == "LogAppendTime"


def test_a_group_is_refused_at_once_and_the_log_says_why(endpoint: Endpoint) -> None:
    consumer = Consumer({"bootstrap.servers": endpoint.bootstrap, "group.id": "app"})
    consumer.subscribe([NASTY])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None and message.error().name() == "GROUP_AUTHORIZATION_FAILED"
    assert "has no consumer groups: assign partitions" in endpoint.running.stderr


def test_a_consumer_at_the_end_gets_what_is_archived_from_now_on(broker_site: Site, topic_name: str) -> None:
    fill_topic(broker_site.bootstrap, topic_name, [NewRecord(b"old")] * 3)
    broker_site.once(topic_name)
    with serving(broker_site, "--fresh", "200ms", topics=(topic_name,)) as (bootstrap, _, running):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "latest"})
        consumer.assign([TopicPartition(topic_name, 0, OFFSET_END)])

        def polled() -> Any:
            message = consumer.poll(0.1)
            return message if message is not None and message.error() is None else None

        running.wait_for(lambda: polled() or "begins at the end" in running.stderr, 30, "a word of the end")
        assert f"{topic_name}:0, and gets only what is archived from now on" in running.stderr
        produce(broker_site.bootstrap, topic_name, [NewRecord(b"new")])
        broker_site.once(topic_name)
        found = wait_until(polled, 30, "the new record")
        assert (found.offset(), found.value()) == (3, b"new")
        consumer.close()


def test_what_an_erase_removed_is_a_hole_within_a_minute(broker_site: Site, topic_name: str) -> None:
    records = [NewRecord(b"%d" % n, key=b"anna" if n % 3 else b"ben") for n in range(90)]
    fill_topic(broker_site.bootstrap, topic_name, records)
    broker_site.once(topic_name, "--block-bytes", "4KiB")
    with serving(broker_site, "--fresh", "200ms", topics=(topic_name,)) as (bootstrap, *_):
        assert len(read(bootstrap, topic_name)) == 90
        run("archiver", "erase", topic_name, "--key", "anna", "--yes", *broker_site.archive, env=broker_site.env)
        rest = [n for n in range(90) if n % 3 == 0]
        wait_until(lambda: [each.offset for each in read(bootstrap, topic_name)] == rest, 90, "the erase to be seen")
        assert watermarks(bootstrap, topic_name) == (0, 90)


def test_damage_is_an_error_that_no_client_jumps_over(broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(site.bootstrap, topic_name, [NewRecord(b"%d" % n * 100) for n in range(500)])
    site.once(topic_name, "--block-bytes", "4KiB", "--chunk-records", "100")
    chunk = sorted((tmp_path / "archive").rglob("*.gz"))[2]
    chunk.write_bytes(b"\0" * chunk.stat().st_size)
    with serving(site) as (bootstrap, _, running):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic_name, 0, 0)])
        found = [message for message in consumer.consume(202, timeout=10) if message.error() is None]
        consumer.close()
        assert [message.offset() for message in found] == list(range(200))
        running.wait_for(lambda: "damage" in running.stderr, 10, "a line about the damage")


def test_users_log_in_by_scram_and_see_their_topics(broker_site: Site, topic_name: str, tmp_path: Path) -> None:
    fill_topic(broker_site.bootstrap, topic_name, [NewRecord(b"secret")])
    broker_site.once(topic_name)
    users = tmp_path / "users"
    for name, allowed in (("anna", topic_name), ("ben", "other-*")):
        add = ("broker", "--users", users, "--add-user", name, "--allow", allowed, *broker_site.archive)
        subprocess.run(
            [str(Path(sys.executable).parent / "replayer"), *map(str, add)],
            input=f"password of {name}\n",
            text=True,
            check=True,
        )
    assert users.stat().st_mode & 0o077 == 0 and "password" not in users.read_text()
    with serving(broker_site, "--users", users, topics=(topic_name,)) as (bootstrap, *_):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
            anna = login | {"sasl.username": "anna", "sasl.password": "password of anna"}
            assert [each.value for each in librdkafka(bootstrap, topic_name, 0, **anna)] == [b"secret"]
            for name, password in (("ben", "password of ben"), ("anna", "wrong"), ("nobody", "x")):
                known = {"sasl.username": name, "sasl.password": password}
                other = AdminClient({"bootstrap.servers": bootstrap, **login, **known})
                if name == "ben":
                    assert topic_name not in other.list_topics(timeout=10).topics
                else:
                    with pytest.raises(KafkaException):
                        other.list_topics(timeout=3)
