"""What a real run tells of itself, against librdkafka's mock cluster and a folder."""

from pathlib import Path

from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.ownership import PartitionState
from archiver.ingest.service import ArchiverService
from archiver.maintain.status import read_status
from archiver.monitor.server import readiness
from blockgz.config.model import RunConfig
from blockgz.store.local import LocalStore
from tests.support.archives import records
from tests.support.mock_cluster import PARTITIONS, MockCluster


def test_a_run_counts_what_its_archive_holds(tmp_path: Path) -> None:
    mock = MockCluster()
    for number in range(PARTITIONS):
        mock.produce("orders", number, records(range(10 * number)))
    config = RunConfig(
        archive=str(tmp_path / "archive"),
        bootstrap_servers=mock.bootstrap_servers,
        topics=("orders",),
        once=True,
        chunk_records=8,
        single_writer=True,
    )
    store = LocalStore(tmp_path / "archive")
    service = ArchiverService(config, store, BufferFolder(tmp_path / "buffer"))
    before = service.snapshot()
    assert (before.joined, before.partitions) == (False, ())
    assert readiness(before) is not None
    service.run()
    after = service.snapshot()
    assert (after.joined, after.buffer_bytes, after.waiting_bytes) == (True, 0, 0)
    assert {each.state for each in after.partitions} <= {PartitionState.DONE, PartitionState.RELEASED}
    status = read_status(store, None)
    assert [each.records for each in status.partitions] == [0, 10, 20, 30]
    told = [(each.partition, each.records, each.chunks, each.stored_bytes) for each in after.partitions]
    assert told == [(each.partition, each.records, each.chunks, each.bytes) for each in status.partitions]
    assert [each.commits for each in after.partitions] == [1, 2, 3, 4], "an empty log is progress without records"
    assert store.get("topic=orders/_topic_config.json") is not None
