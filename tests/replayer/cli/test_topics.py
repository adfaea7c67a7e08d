"""`replayer topics` as a user runs it, on topics that the cluster does not have."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replayer.cli import main
from tests.support.archives import ArchiveWriter, put_topic_config, records
from tests.support.mock_cluster import MockCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic in ("orders", "old"):
        archive.partition(topic, 0).commit(records(range(3)))
    put_topic_config(archive, "orders", 4, {"cleanup.policy": "compact", "remote.storage.enable": "true"})
    return tmp_path


class Topics:
    def __init__(self, root: Path, cluster: MockCluster) -> None:
        self._options = ("-a", str(root), "-b", cluster.bootstrap_servers)

    def __call__(self, *args: str) -> Result:
        return CliRunner().invoke(main, ["topics", *args, *self._options], prog_name="replayer")


@pytest.fixture
def topics(root: Path, cluster: MockCluster) -> Topics:
    return Topics(root, cluster)


def test_a_missing_topic_is_a_difference(topics: Topics) -> None:
    done = topics("diff", "orders")
    assert done.exit_code == 3
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["TOPIC", "SETTING", "ARCHIVED", "LIVE"],
        ["orders", "topic", "4", "partitions", "missing"],
    ]
    assert "remote.storage.enable=true belonged to the old brokers" in done.stderr
    told = json.loads(topics("diff", "orders", "--json").stdout)
    assert told["equal"] is False
    assert told["topics"][0] | {"notes": []} == {
        "topic": "orders",
        "state": "missing",
        "partitions": {"archived": 4, "live": None},
        "differences": [],
        "notes": [],
    }


def test_a_topic_that_the_archive_says_nothing_of(topics: Topics) -> None:
    done = topics("diff", "*")
    assert done.exit_code == 4
    assert "orders" in done.stdout
    assert "the archive does not say what topic old was like" in done.stderr
    assert topics("diff", "nothing").exit_code == 4
    refused = topics("apply", "*", "--yes")
    assert refused.exit_code == 4
    assert "is created" not in refused.stderr, "nothing is begun"


def test_a_plan_is_printed_and_nothing_is_done_without_consent(topics: Topics) -> None:
    planned = topics("apply", "orders", "--dry-run", "--replication-factor", "2")
    assert planned.exit_code == 0
    assert (
        "topic orders is created with 4 partitions, replication factor 2 and cleanup.policy=compact" in planned.stderr
    )
    told = json.loads(topics("apply", "orders", "--dry-run", "--json", "--ignore", "cleanup.policy").stdout)
    assert (told["dry_run"], told["topics"][0]["creates"]["partitions"], told["topics"][0]["done"]) == (True, 4, False)
    assert "cleanup.policy" not in told["topics"][0]["creates"]["config"]
    refused = topics("apply", "orders")
    assert refused.exit_code == 2
    assert "no topic was changed" in refused.stderr
    assert "--yes" in refused.stderr
