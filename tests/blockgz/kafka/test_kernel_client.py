"""The kernel's consumer: what it owns, and how it ends."""

import gc
import logging
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from blockgz.errors import UsageError
from blockgz.kafka.connection import make_client
from blockgz.kafka.fetching import KERNEL, KernelClient, MessageRun, Rising, kernel_takes
from index_format.records import Record, batch_from_records
from tests.support.fetch_clients import needs_kernel
from tests.support.mock_cluster import MockCluster

pytestmark = needs_kernel
DEADLINE_SECONDS = 30
NOW = 1_700_000_000_000
LOG = ("orders", 0)


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    cluster.produce(*LOG, [Record(0, NOW, 0, b"k", b"v" * 100, ())] * 3000)
    return cluster


def settings(cluster: MockCluster, **more: Any) -> dict[str, Any]:
    own = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "kernel", "fetch.wait.max.ms": 10}
    return {**own, "enable.partition.eof": True, **more}


@pytest.fixture
def client(cluster: MockCluster) -> Iterator[KernelClient]:
    client = KernelClient(settings(cluster))
    yield client
    client.close()


def first_run(client: KernelClient) -> MessageRun:
    client.assign({LOG: 0})
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for each in client.poll(100, 0.1)[0]:
            if isinstance(each, MessageRun):
                return each
    raise TimeoutError


def batches(client: KernelClient, run: MessageRun) -> list[pa.RecordBatch]:
    return [each.batch for each in client.pieces(run.messages) if isinstance(each, Rising)]


def test_messages_are_dropped_as_the_client_is_closed(client: KernelClient) -> None:
    run = first_run(client)
    assert len(run.messages[0]) > 0
    client.close()
    assert len(run.messages[0]) == 0
    assert batches(client, run) == []
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.poll(1, 0)


def test_messages_keep_their_client_alive(cluster: MockCluster) -> None:
    client = KernelClient(settings(cluster))
    run = first_run(client)
    consumer = client._consumer
    del client
    gc.collect()
    (piece,) = consumer.columns(list(run.messages), 2**30)
    del consumer
    gc.collect()
    assert pa.record_batch(piece[0]).num_rows > 0


def test_a_batch_outlives_its_client(client: KernelClient) -> None:
    (batch,) = batches(client, first_run(client))
    values = batch.column("value")
    del batch
    client.close()
    assert set(values.to_pylist()) == {b"v" * 100}


def test_messages_are_used_up(client: KernelClient) -> None:
    run = first_run(client)
    assert batches(client, run) and not batches(client, run)


def test_columns_are_handed_over_once(client: KernelClient) -> None:
    ((columns, _),) = client._consumer.columns(list(first_run(client).messages), 2**30)
    pa.record_batch(columns)
    with pytest.raises(RuntimeError, match="handed over"):
        pa.record_batch(columns)


def test_columns_that_nobody_takes_are_freed(client: KernelClient) -> None:
    client._consumer.columns(list(first_run(client).messages), 2**30)


def test_a_column_may_not_grow_without_bound(client: KernelClient) -> None:
    """But one record may be as large as it is."""
    run = first_run(client)
    count = len(run.messages[0])
    pieces = client._consumer.columns(list(run.messages), 250)
    sizes = [pa.record_batch(columns).num_rows for columns, _ in pieces]
    assert sum(sizes) == count and set(sizes[:-1]) == {2}


def test_messages_of_another_client_are_refused(cluster: MockCluster, client: KernelClient) -> None:
    other = KernelClient(settings(cluster))
    with pytest.raises(TypeError):
        batches(other, first_run(client))
    other.close()


def test_columns_may_be_made_while_the_client_is_closed(client: KernelClient) -> None:
    """Whoever comes last ends it; no message is used after that."""
    run = first_run(client)
    found: list[pa.RecordBatch] = []
    thread = threading.Thread(target=lambda: found.extend(batches(client, run)))
    thread.start()
    client.close()
    thread.join()
    assert len(found) in (0, 1)


@pytest.mark.slow
def test_one_thread_at_a_time_polls(client: KernelClient) -> None:
    thread = threading.Thread(target=client.poll, args=(1, 2.0))
    thread.start()
    refusals = 0
    while thread.is_alive() and not refusals:
        try:
            client.poll(1, 0)
        except RuntimeError as error:
            assert "another thread" in str(error)
            refusals += 1
    thread.join()
    assert refusals


def test_a_fork_cannot_use_the_client_and_ends_without_it(client: KernelClient) -> None:
    run = first_run(client)

    def work(tell: Any) -> None:
        try:
            client.poll(1, 0)
        except RuntimeError as error:
            tell.send(str(error))
        run.messages[0].__class__  # noqa: B018
        gc.collect()

    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(sending,))
    process.start()
    assert receiving.poll(DEADLINE_SECONDS)
    assert "forked" in receiving.recv()
    process.join(DEADLINE_SECONDS)
    assert process.exitcode == 0
    assert batches(client, run), "the parent goes on"


def test_a_client_is_made_in_a_fork(cluster: MockCluster) -> None:
    def work(tell: Any) -> None:
        client = KernelClient(settings(cluster))
        tell.send(sum(map(len, batches(client, first_run(client)))))
        client.close()

    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(sending,))
    process.start()
    assert receiving.poll(DEADLINE_SECONDS)
    assert receiving.recv() > 0
    process.join(DEADLINE_SECONDS)
    assert process.exitcode == 0


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is looked up as Linux has it")
def test_ten_thousand_polls_leave_nothing_behind(cluster: MockCluster, client: KernelClient) -> None:
    log, value = ("large", 0), b"v" * 2000
    cluster.produce(*log, [Record(0, NOW, 0, b"k", value, [("h", b"x")])] * 1500)
    client.assign({log: 0})
    num_bytes = polls = before = 0
    deadline = time.monotonic() + 60
    while polls < 10_000:
        assert time.monotonic() < deadline
        polled, _, _ = client.poll(8, 0.005)
        polls += 1
        for each in polled:
            if isinstance(each, MessageRun):
                num_bytes += sum(batch.nbytes for batch in batches(client, each))
            else:
                assert each.error.code() == KafkaError._PARTITION_EOF
                client.unassign([log])
                client.assign({log: 0})
        if polls == 1000:
            before = resident_bytes()
    assert num_bytes > 64 * 1024**2
    assert resident_bytes() - before < 16 * 1024**2


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("tests.kernel_client")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)


def test_log_lines_come_with_polls_and_without_secrets(cluster: MockCluster, lines: Lines) -> None:
    more = {"sasl.password": "hunter2-secret", "client.id": "hunter2-secret", "debug": "conf,broker"}
    client = make_client(KernelClient, settings(cluster, logger=logging.getLogger("tests.kernel_client"), **more))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not any("[" in line and "UP" in line for _, line in lines.lines):
        assert time.monotonic() < deadline
        client.poll(1, 0.01)
    client.close()
    assert {level for level, _ in lines.lines} == {logging.DEBUG}
    assert not any("hunter2" in line for _, line in lines.lines)


@pytest.mark.parametrize("more", [{"nonsense": "1"}, {"fetch.wait.max.ms": "soon"}])
def test_settings_are_refused_as_librdkafka_says_it(cluster: MockCluster, more: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refusal:
        make_client(KernelClient, settings(cluster, **more))
    assert next(iter(more)) in refusal.value.why


@pytest.mark.parametrize(
    "more", [{"oauth_cb": print}, {"on_commit": print}, {"plugin.library.paths": "x"}, {"default.topic.config": "x"}]
)
def test_what_confluent_does_itself_is_left_to_it(cluster: MockCluster, more: dict[str, Any]) -> None:
    assert kernel_takes(settings(cluster))
    assert kernel_takes(settings(cluster, logger=logging.getLogger("x")))
    assert not kernel_takes(settings(cluster, **more))


def test_the_kernel_finds_the_librdkafka_of_confluent() -> None:
    assert KERNEL.module is not None
    assert os.environ.get("BLOCKGZ_NO_KERNEL") in (None, "", "0")


def test_numbers_that_no_call_can_mean_are_refused(cluster: MockCluster) -> None:
    batch = batch_from_records([Record(0, NOW, 0, b"k", b"v", ())] * 3)
    schema, array = batch.__arrow_c_array__()
    producer = KERNEL.module.Producer({"bootstrap.servers": cluster.bootstrap_servers}, "orders")
    for partition, first in ((0, -5), (0, 4), (0, -(2**63)), (0, 2**63 - 1), (-1, 0), (-5, 0)):
        with pytest.raises(ValueError, match="no partition"):
            producer.produce(partition, schema, array, first)
    with pytest.raises(ValueError, match="below zero"):
        producer.send_offsets_to_transaction([], b"", -1)
    with pytest.raises(ValueError, match="below zero"):
        producer.flush(-1)
    assert producer.produce(0, schema, array, 3) == (0, None)
    pa.RecordBatch._import_from_c_capsule(schema, array)
    with pytest.raises((TypeError, ValueError)):
        producer.produce(0, schema, array, 0)
    plain = {name: str(value) for name, value in settings(cluster).items()}
    consumer = KERNEL.module.Consumer({**plain, "enable.partition.eof": "true"})
    calls = [
        lambda: consumer.consume(-1, 10),
        lambda: consumer.consume(0, 10),
        lambda: consumer.consume(10, -1),
        lambda: consumer.columns([], 0),
        lambda: consumer.columns([], 2**40),
        lambda: consumer.ask_leaders(-1),
        lambda: consumer.ask_leaders(2**40),
        lambda: consumer.assign([("orders", -5, 0)]),
        lambda: consumer.pause([("orders", -1)]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not between"):
            call()
    consumer.close()
