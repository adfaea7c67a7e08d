"""Prune, compact, erase and gc on real S3 servers: all that is to stay is read back, and nothing else is left."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from archiver.cli import main
from archiver.maintain import garbage
from index_format import marker as markers
from system_test.checker import check_equal
from system_test.support.archiving import Site, store_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import ObjectStore
from system_test.support.topics import NewRecord, fill_topic, produce, read
from system_test.support.waiting import wait_until

CHUNK = 10
OLD, BEFORE, END = 40, 90, 120
"""Offsets: below the first, records are a day old; below the second, they are archived before the erase."""
ERASED = b"person-3"
SECONDS = 60.0


@pytest.fixture(params=["versitygw", "moto"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    served: ObjectStore = request.getfixturevalue(request.param)
    return served


def _records(start: int, end: int, first_timestamp: int) -> list[NewRecord]:
    return [
        NewRecord(b"value %d" % number, b"person-%d" % (number % 7), timestamp=first_timestamp + number)
        for number in range(start, end)
    ]


def _archiver(site: Site, *arguments: object, check: int | None = 0) -> int:
    """A command in this process, where a grace may be short."""
    done = CliRunner().invoke(main, [*map(str, arguments), *site.archive])
    assert check is None or done.exit_code == check, done.output
    return done.exit_code


def test_what_is_to_stay_stays_and_nothing_else(
    broker: KafkaBroker, store: ObjectStore, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = store_site(broker.bootstrap, store, topic_name)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    monkeypatch.setattr(garbage, "SHORTEST_GRACE_SECONDS", 0.0)
    buffer, report = ("--buffer-dir", tmp_path / "buffer"), tmp_path / "erased.json"
    once = ("run", topic_name, "--once", "--chunk-records", CHUNK, "--key-filter", 10, *site.kafka)
    now = int(time.time() * 1000)
    fill_topic(site.bootstrap, topic_name, _records(0, OLD, now - 86_400_000))
    produce(site.bootstrap, topic_name, _records(OLD, BEFORE, now))
    _archiver(site, *once)

    _archiver(site, "compact", topic_name, *buffer, "--yes")
    _archiver(site, "erase", topic_name, "--key", ERASED.decode(), "--report", report, *buffer, "--yes")
    kept = [record for record in read(site.bootstrap, topic_name) if record.key != ERASED]
    merged = site.checked(topic_name)
    assert (len(merged.entries), len(merged.marker["catalogs"])) == (3, 2)
    check_equal(merged.records, kept)

    produce(site.bootstrap, topic_name, _records(BEFORE, END, now))
    _archiver(site, *once)
    _archiver(site, "prune", topic_name, "--keep", "1h", "--yes")
    converted = ("--record-format", "arrow", "--codec", "zstd")
    _archiver(site, "compact", topic_name, *converted, *buffer, "--yes")
    assert _archiver(site, "erase", "--status", report, check=None) == 3, "what was replaced is still there"

    def is_complete() -> bool:
        _archiver(site, "gc", "--grace", "1s", "--yes")
        return _archiver(site, "erase", "--status", report, check=None) == 0

    wait_until(is_complete, SECONDS, "the end of the grace")

    # What was archived after the erase is there whatever its key.
    kept = [each for each in read(site.bootstrap, topic_name) if each.key != ERASED or each.offset >= BEFORE]
    kept = [record for record in kept if record.offset >= OLD]
    checked = site.checked(topic_name)
    check_equal(checked.records, kept)
    assert {index["record_format"] for index in checked.indexes} == {"arrow", "json"}
    found = site.replayer_json("verify", topic_name, "--deep", "--records")
    (partition,) = found["partitions"]
    assert (found["verdict"], partition["records"]) == ("OK", len(kept)), found
    data = {key.rpartition("/")[2] for key in store.keys(f"{topic_name}/") if key.endswith((".gz", ".zst"))}
    assert data == {index["data"]["name"] for index in checked.indexes}
