"""Topics as the archive describes them, and as a cluster has them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockgz.archive.archive import ArchivePlace, opened
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.address import parse_address
from index_format.identity import TopicConfig as ArchivedTopic
from replayer.topics import FoundTopic, compare_all, find_topics
from tests.support.archives import ArchiveWriter, put_topic_config, records
from tests.support.mock_cluster import MockCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic, incarnation in (("orders", 1), ("orders", 2), ("users", 1), ("old", 1)):
        archive.partition(topic, 1, incarnation=incarnation).commit(records(range(3)))
    put_topic_config(archive, "orders", 4, {"cleanup.policy": "compact"})
    put_topic_config(archive, "orders", 5, {"cleanup.policy": "delete"}, incarnation=2)
    put_topic_config(archive, "users", 1, {})
    return tmp_path


def found(root: Path, *wanted: str) -> tuple[list[FoundTopic], list[NotInArchive]]:
    async def find() -> tuple[list[FoundTopic], list[NotInArchive]]:
        async with opened(ArchivePlace(parse_address(str(root)))) as archive:
            return await find_topics(archive, wanted)

    return asyncio.run(find())


def brief(found: tuple[list[FoundTopic], list[NotInArchive]]) -> list[tuple[str, int, dict[str, str] | None]]:
    return [(name, partitions, config.config) for name, config, partitions in found[0]]


def test_names_patterns_and_incarnations(root: Path) -> None:
    newest = ("orders", 5, {"cleanup.policy": "delete"})
    assert brief(found(root, "orders")) == [newest]
    assert brief(found(root, "orders~1")) == [("orders", 4, {"cleanup.policy": "compact"})]
    assert brief(found(root, "orders", "~[ou].*s", "orders")) == [newest, ("users", 2, {})], "a partition more was seen"
    with pytest.raises(UsageError, match="orders is named twice"):
        found(root, "orders", "orders~1")
    for wanted in ("nothing", "no*"):
        with pytest.raises(NotInArchive):
            found(root, wanted)


def test_a_topic_whose_configuration_was_not_kept_is_named_beside_the_others(root: Path) -> None:
    topics, unknown = found(root, "*")
    assert [each.name for each in topics] == ["orders", "users"]
    assert [error.what for error in unknown] == ["the archive does not say what topic old was like"]


def test_a_topic_that_the_cluster_does_not_have_is_missing(cluster: MockCluster) -> None:
    config = ArchivedTopic(topic="t", topic_id=None, partitions=2, replication_factor=1, config={}, defaults={})
    (compared,) = compare_all([FoundTopic("t", config, 2)], {"bootstrap.servers": cluster.bootstrap_servers})
    assert compared.state == "missing"
