"""A named topic that is not there keeps no other one from being archived."""

from pathlib import Path

import pytest

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, create_topic, produce


@pytest.fixture
def site(broker: KafkaBroker, tmp_path: Path) -> Site:
    return folder_site(broker.bootstrap, tmp_path / "archive")


@pytest.mark.parametrize("workers", [1, 2])
def test_drained_once(site: Site, topic_name: str, workers: int) -> None:
    create_topic(site.bootstrap, topic_name, 2)
    produce(site.bootstrap, topic_name, [NewRecord(b"here", partition=n) for n in range(2)])
    missing = f"{topic_name}-later"
    done = site.run(topic_name, missing, "--once", "--workers", workers, check=3)
    assert f"the cluster has no topic {missing}" in done.stderr
    assert done.stderr.count(" topic_missing ") == 1
    assert [len(site.exact(topic_name, number).records) for number in range(2)] == [1, 1]
    site.run(missing, f"{missing}-too", "--once", check=2)


def test_followed_from_its_creation(site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"here")])
    late = f"{topic_name}-later"
    settings = (
        "--topic-refresh",
        "500ms",
        "--chunk-interval",
        "200ms",
        "-X",
        "topic.metadata.refresh.interval.ms=1000",
    )
    with site.start(topic_name, late, *settings) as archiver:
        archiver.wait_for(lambda: f" topic_missing topic={late}" in archiver.stderr, 30, "the warning")
        create_topic(site.bootstrap, late)
        produce(site.bootstrap, late, [NewRecord(b"late")])
        folder = Path(site.address) / f"topic={late}"
        archiver.wait_for(lambda: any(folder.rglob("*.index.json")), 30, "the first chunk of the late topic")
        archiver.terminate().expect(0)
    assert [len(site.exact(topic).records) for topic in (topic_name, late)] == [1, 1]
