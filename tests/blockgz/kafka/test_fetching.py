"""Both clients that fetch, against librdkafka's mock cluster: one gives what the other gives."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from blockgz.kafka.fetching import FetchClient, Partition, Rising, Told, UnreadableMessage
from index_format.records import SCHEMA, Record, batch_from_records, iter_records
from tests.support.fetch_clients import CLIENTS, fetch_client, needs_kernel
from tests.support.mock_cluster import MockCluster

DEADLINE_SECONDS = 30
A, B = ("orders", 0), ("orders", 1)
NOW = 1_700_000_000_000


def settings(cluster: MockCluster, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "fetching",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 20,
        **more,
    }


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, cluster: MockCluster) -> Iterator[FetchClient]:
    client = fetch_client(request.param, settings(cluster))
    yield client
    client.close()


def ended(found: dict[Partition, list[Any]], told: list[Told], partitions: Iterable[Partition]) -> bool:
    ends = {each.partition for each in told if each.error.code() == KafkaError._PARTITION_EOF}
    return set(partitions) <= ends


def read_until(
    client: FetchClient, is_enough: Callable[[dict[Partition, list[Any]], list[Told]], bool]
) -> tuple[dict[Partition, list[Any]], list[Told]]:
    """Messages by partition, and what was told, once they are enough."""
    messages: dict[Partition, list[Any]] = {}
    told: list[Told] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_enough(messages, told):
        assert time.monotonic() < deadline, told
        for each in client.poll(client.most_messages, 0.02)[0]:
            if isinstance(each, Told):
                told.append(each)
            else:
                messages.setdefault(each.partition, []).extend(each.messages)
    return messages, told


def to_the_end(client: FetchClient, *partitions: Partition) -> dict[Partition, list[Any]]:
    return read_until(client, lambda found, told: ended(found, told, partitions))[0]


def rising(client: FetchClient, messages: list[Any]) -> list[Rising]:
    pieces = list(client.pieces(messages))
    assert all(isinstance(each, Rising) for each in pieces)
    return [each for each in pieces if isinstance(each, Rising)]


def random_record(source: random.Random) -> Record:
    def some_bytes(most: int) -> bytes | None:
        return source.choice([None, b"", source.randbytes(source.randrange(most))])

    keys = ["", "trace", "ü", "𐍈", "a" * 300]
    headers = [(source.choice(keys), some_bytes(40)) for _ in range(source.choice([0, 0, 0, 1, 5]))]
    timestamp = source.choice([1, NOW, NOW + source.randrange(10**9), 2**41])
    return Record(0, timestamp, 0, some_bytes(20), some_bytes(source.choice([5, 300, 20_000])), headers)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@needs_kernel
def test_every_field_of_every_record_is_the_same(cluster: MockCluster, compression: str) -> None:
    seed = time.time_ns()
    print("seed", seed)
    source = random.Random(seed)
    topic = f"random-{compression}"
    records = [random_record(source) for _ in range(3000)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": compression})
    for record in records:
        producer.produce(topic, record.value, record.key, 0, timestamp=record.timestamp, headers=list(record.headers))
    assert producer.flush(DEADLINE_SECONDS) == 0
    found = {}
    for kind in ("kernel", "confluent"):
        client = fetch_client(kind, settings(cluster))
        client.assign({(topic, 0): 7})
        found[kind] = rising(client, to_the_end(client, (topic, 0))[topic, 0])
        client.close()
    (ours,), (theirs,) = found["kernel"], found["confluent"]
    ours.batch.validate(full=True)
    assert ours.batch.schema.equals(SCHEMA)
    assert ours.batch == theirs.batch and ours.leader_epoch == theirs.leader_epoch
    assert ours.batch.nbytes == theirs.batch.nbytes
    expected = [each._replace(offset=number, headers=tuple(each.headers)) for number, each in enumerate(records)][7:]
    assert list(iter_records(ours.batch)) == expected


def test_an_end_is_told_with_its_position(cluster: MockCluster, client: FetchClient) -> None:
    topic = f"ends-{type(client).__name__}"
    cluster.produce(topic, 0, [Record(0, NOW, 0, None, b"v", ())] * 3)
    client.assign({(topic, 0): 0, (topic, 1): 0})
    _, told = read_until(client, lambda found, told: ended(found, told, [(topic, 0), (topic, 1)]))
    assert {each.partition: each.offset for each in told} == {(topic, 0): 3, (topic, 1): 0}


def test_a_position_that_the_log_does_not_have_is_told_of_its_partition(
    cluster: MockCluster, client: FetchClient
) -> None:
    topic = f"beyond-{type(client).__name__}"
    cluster.produce(topic, 0, [Record(0, NOW, 0, None, b"v", ())] * 3)
    client.assign({(topic, 0): 50})
    _, told = read_until(client, lambda _, told: bool(told))
    assert told[0].partition == (topic, 0)
    assert told[0].error.code() == KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize(
    "bad", [b"\x80", b"\xc3", b"\xc0\xaf", b"a\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"]
)
def test_a_header_key_that_is_not_utf8_makes_its_record_unreadable_and_no_other(
    cluster: MockCluster, client: FetchClient, bad: bytes
) -> None:
    topic = f"headers-{type(client).__name__}-{bad.hex()}"
    for number, keys in enumerate([[b"a"], [bad, b"x"], [b"y"], [b"z", bad]]):
        cluster.produce_raw_headers(topic, 0, b"v%d" % number, keys)
    client.assign({(topic, 0): 0})
    pieces = list(client.pieces(to_the_end(client, (topic, 0))[topic, 0]))
    offsets = [
        each.record.offset if isinstance(each, UnreadableMessage) else each.batch.column("offset").to_pylist()
        for each in pieces
    ]
    assert offsets == [[0], 1, [2], 3]
    refused = pieces[1]
    assert isinstance(refused, UnreadableMessage)
    assert (refused.record.value, refused.record.key, refused.record.headers) == (b"v1", None, ())
    assert refused.record.timestamp > NOW and refused.record.timestamp_type == 0
    assert "UTF-8" in refused.why


def offsets_and_epochs(client: FetchClient, messages: list[Any]) -> list[tuple[list[int], int | None]]:
    return [(each.batch.column("offset").to_pylist(), each.leader_epoch) for each in rising(client, messages)]


def test_a_new_leader_epoch_begins_a_piece(cluster: MockCluster, client: FetchClient) -> None:
    topic = f"epochs-{type(client).__name__}"
    for count in (3, 2, 1):
        cluster.produce(topic, 0, [Record(0, NOW, 0, None, b"v", ())] * count)
        cluster.elect(topic, 0)
    client.assign({(topic, 0): 1})
    found = offsets_and_epochs(client, to_the_end(client, (topic, 0))[topic, 0])
    assert found == [([1, 2], 0), ([3, 4], 1), ([5], 2)]


def test_offsets_that_do_not_rise_begin_a_piece(cluster: MockCluster, client: FetchClient) -> None:
    topic = f"again-{type(client).__name__}"
    cluster.produce(topic, 0, [Record(0, NOW, 0, None, b"v", ())] * 4)
    messages: list[Any] = []
    for position in (0, 2, 3):
        client.assign({(topic, 0): position})
        messages += to_the_end(client, (topic, 0))[topic, 0]
        client.unassign([(topic, 0)])
    assert [found for found, _ in offsets_and_epochs(client, messages)] == [[0, 1, 2, 3], [2, 3], [3]]


@pytest.fixture
def two_logs(cluster: MockCluster) -> None:
    cluster.produce("orders", 0, [Record(0, NOW, 0, None, b"v" * 100, ())] * 3000)
    cluster.produce("orders", 1, [Record(0, NOW, 0, None, b"v" * 100, ())] * 3000)


@pytest.mark.usefixtures("two_logs")
def test_nothing_comes_of_a_partition_that_was_taken_away_while_it_was_in_the_queue(client: FetchClient) -> None:
    client.assign({A: 0, B: 0})
    read_until(client, lambda found, _: A in found and B in found)
    client.unassign([A])
    found = to_the_end(client, B)
    assert A not in found
    client.assign({A: 2990})
    found = to_the_end(client, A)
    assert rising(client, found[A])[0].batch.column("offset")[0].as_py() == 2990


@pytest.mark.usefixtures("two_logs")
def test_a_pause_drops_what_is_in_the_queue_until_it_ends(client: FetchClient) -> None:
    client.assign({A: 0, B: 0})
    before, _ = read_until(client, lambda found, _: A in found and B in found)
    client.pause([A])
    meanwhile = to_the_end(client, B)
    assert A not in meanwhile
    client.resume([A])
    after = to_the_end(client, A)
    offsets = [
        offset
        for messages in (before[A], after[A])
        for each in rising(client, messages)
        for offset in each.batch.column("offset").to_pylist()
    ]
    assert offsets == list(range(len(offsets))) and len(offsets) >= 3000


def test_what_is_not_assigned_cannot_be_taken_away(client: FetchClient) -> None:
    with pytest.raises(KafkaException):
        client.unassign([("nothing", 0)])


@pytest.mark.usefixtures("two_logs")
def test_bytes_of_keys_and_headers_are_counted(cluster: MockCluster, client: FetchClient) -> None:
    topic = f"bytes-{type(client).__name__}"
    cluster.produce(topic, 0, [Record(0, NOW, 0, b"k" * 100, b"v" * 10, [("h" * 50, b"x" * 50)])] * 100)
    client.assign({(topic, 0): 0})
    counted = 0
    batches: list[pa.RecordBatch] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while sum(map(len, batches)) < 100:
        assert time.monotonic() < deadline
        polled, _, num_bytes = client.poll(1000, 0.02)
        counted += num_bytes
        for each in polled:
            if not isinstance(each, Told):
                batches += [piece.batch for piece in rising(client, list(each.messages))]
    assert counted + 100 * client.uncounted(batches) >= 100 * 210


def test_one_record_batch_of_the_schema_is_what_python_makes_of_the_records(
    cluster: MockCluster, client: FetchClient
) -> None:
    topic = f"schema-{type(client).__name__}"
    records = [Record(0, NOW, 0, b"k", b"v", (("a", b"1"), ("b", None)))] * 5
    cluster.produce(topic, 0, records)
    client.assign({(topic, 0): 0})
    (found,) = rising(client, to_the_end(client, (topic, 0))[topic, 0])
    assert found.batch == batch_from_records([each._replace(offset=at) for at, each in enumerate(records)])
