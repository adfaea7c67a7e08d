"""What the budget promises, by arithmetic; whether it is kept is measured by system_test/test_soak.py."""

import pytest

from archiver.ingest.backpressure import BATCHING, INDEXES, OPEN_BLOCKS, QUEUE, WAITING
from archiver.ingest.kafka_settings import QUEUED_RECORD_FOOTPRINT, consumer_settings, queue_settings
from blockgz.config.model import RunConfig

MIB = 1024**2
CONFIG = RunConfig(archive="./archive", bootstrap_servers="b:9092", topics=("t",))
BUDGETS = [32 * MIB, 256 * MIB, 4096 * MIB]


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_is_held_at_rest_leaves_most_of_the_budget_to_work_on_it(budget: int) -> None:
    shares = sum(budget // part for part in (QUEUE, BATCHING, WAITING, OPEN_BLOCKS, INDEXES))
    assert budget / 4 < shares < budget / 2.5


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("record_bytes", [0, 10, 500, 20_000])
def test_the_queue_holds_its_share_whatever_the_size_of_records(budget: int, record_bytes: int) -> None:
    share = budget // QUEUE
    limits = queue_settings(share)
    most = limits["queued.min.messages"]
    by_content = limits["queued.max.messages.kbytes"] * 1024 // record_bytes if record_bytes else most
    held = min(most, by_content) * (record_bytes + QUEUED_RECORD_FOOTPRINT)
    assert held <= share


@pytest.mark.parametrize("budget", BUDGETS)
def test_one_fetch_is_small_beside_the_queue(budget: int) -> None:
    limits = queue_settings(budget // QUEUE)
    assert limits["fetch.max.bytes"] == limits["fetch.message.max.bytes"]
    assert limits["fetch.max.bytes"] <= limits["queued.max.messages.kbytes"] * 1024 / 2
    assert limits["fetch.max.bytes"] >= MIB, "librdkafka raises it to message.max.bytes, a million by default"


def test_the_consumer_is_told() -> None:
    config = RunConfig(archive="./archive", bootstrap_servers="b:9092", topics=("t",))
    assert queue_settings(32 * MIB).items() <= consumer_settings(config, queue_bytes=32 * MIB).items()


def test_the_users_own_settings_stand() -> None:
    config = RunConfig(
        archive="./archive", bootstrap_servers="b:9092", topics=("t",), kafka={"fetch.max.bytes": "52428800"}
    )
    assert consumer_settings(config, queue_bytes=32 * MIB)["fetch.max.bytes"] == "52428800"
