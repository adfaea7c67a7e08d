"""The identity of an archive and of its topics: settled once, refused where it is another's."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import ANY, patch

import pytest

from archiver.commit.archive import find_incarnation, open_archive
from archiver.errors import Diverged, Next, Situation, what_next
from blockgz.config.model import RunConfig
from blockgz.errors import StoreBusy, UsageError
from index_format import objects
from index_format.errors import MalformedObject, UnsupportedVersion
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder
from tests.support.memory_store import MemoryStore

ARCHIVE = {"topic": "_archive.json", "seed": "_blockgz/_archive.json"}
TOPIC = {"topic": "topic=orders/_topic.json", "seed": "_blockgz/topic=orders/_topic.json"}


@pytest.mark.parametrize("layout", ARCHIVE)
def test_a_new_archive_is_settled_once(layout: str) -> None:
    store = MemoryStore()
    info = open_archive(store, layout=layout, cluster_id="cluster-1")
    assert json.loads(store.objects[ARCHIVE[layout]].body) == {
        "format": "block-gzip-archive",
        "version": 1,
        "archive_id": info.archive_id,
        "cluster_id": "cluster-1",
        "layout": layout,
        "group_id": f"blockgz-{info.archive_id[:8]}",
        "inventory": True,
        "crc32": ANY,
    }
    assert open_archive(store, layout=layout, cluster_id="cluster-1") == info
    assert len(store.versions[ARCHIVE[layout]]) == 1


@pytest.mark.parametrize("layout", TOPIC)
def test_a_new_topic_is_settled_once(layout: str) -> None:
    store = MemoryStore()
    folder = find_incarnation(store, layout=layout, topic="orders", topic_id="id-1")
    assert json.loads(store.objects[TOPIC[layout]].body) == {
        "format": "block-gzip-topic",
        "version": 1,
        "topic": "orders",
        "topic_id": "id-1",
        "incarnation": 1,
        "crc32": ANY,
    }
    assert find_incarnation(store, layout=layout, topic="orders", topic_id="id-1") == folder == TopicFolder("orders")
    assert len(store.versions[TOPIC[layout]]) == 1


def test_a_store_that_refuses_what_it_does_not_hold_is_asked_again() -> None:
    """So that the partition is claimed later, and is not stopped for good."""
    store = MemoryStore()
    with patch.object(store, "put_if_absent", return_value=False), pytest.raises(StoreBusy) as raised:
        find_incarnation(store, layout="topic", topic="orders", topic_id="id-1")
    assert what_next(raised.value, Situation.SERVING) is Next.AGAIN
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="id-1") == TopicFolder("orders")


@pytest.mark.parametrize(("layout", "other"), [("topic", "seed"), ("seed", "topic")])
def test_another_layout_is_refused(layout: str, other: str) -> None:
    store = MemoryStore()
    open_archive(store, layout=layout, cluster_id=None)
    before = store.bodies()
    with pytest.raises(UsageError, match=layout) as caught:
        open_archive(store, layout=other, cluster_id=None)
    assert f"--layout {layout}" in caught.value.remedy and store.bodies() == before


def test_another_cluster_is_refused() -> None:
    store = MemoryStore()
    open_archive(store, layout="topic", cluster_id="cluster-1")
    with pytest.raises(Diverged) as caught:
        open_archive(store, layout="topic", cluster_id="cluster-2")
    assert "cluster-1" in caught.value.why and "cluster-2" in caught.value.why


def test_a_topic_that_was_created_again_gets_its_own_folder() -> None:
    store = MemoryStore()
    find = partial(find_incarnation, store, layout="topic", topic="orders")
    assert str(find(topic_id="id-1")) == "orders"
    assert str(find(topic_id="id-2")) == "orders~2"
    assert str(find(topic_id="id-3")) == "orders~3"
    assert [str(find(topic_id=f"id-{number}")) for number in (1, 2, 3)] == ["orders", "orders~2", "orders~3"]
    assert str(find(topic_id=None)) == "orders~3"


@pytest.mark.parametrize(("first", "second"), [(None, "x"), ("x", None), (None, None)])
def test_an_id_that_is_not_reported_never_differs(first: str | None, second: str | None) -> None:
    store = MemoryStore()
    assert open_archive(store, layout="topic", cluster_id=first).cluster_id == first
    assert open_archive(store, layout="topic", cluster_id=second).cluster_id == first
    assert find_incarnation(store, layout="topic", topic="orders", topic_id=first) == TopicFolder("orders")
    assert find_incarnation(store, layout="topic", topic="orders", topic_id=second) == TopicFolder("orders")


def test_of_many_that_create_an_archive_at_once_all_see_the_same() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: open_archive(store, layout="topic", cluster_id=None), range(32)))
    assert len({info.archive_id for info in opened}) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", MalformedObject),
        (b'{"format":"block-gzip-marker","version":1}', MalformedObject),
        (b'{"format":"block-gzip-archive","version":9}', UnsupportedVersion),
    ],
)
@pytest.mark.parametrize(
    "open_it",
    [
        partial(open_archive, layout="topic", cluster_id=None),
        partial(find_incarnation, layout="topic", topic="orders", topic_id=None),
    ],
    ids=["archive", "topic"],
)
def test_a_damaged_identity_is_refused(body: bytes, error: type[Exception], open_it: Callable[..., object]) -> None:
    store = MemoryStore()
    for key in (ARCHIVE["topic"], TOPIC["topic"]):
        store.put_if_absent(key, body.replace(b"archive", b"topic") if "topic=" in key else body, "damage")
    with pytest.raises(error):
        open_it(store)


def test_the_group_in_force() -> None:
    """The chosen one, else the archive's own; archives of earlier writers name none."""
    former = b'{"format":"block-gzip-archive","version":1,"archive_id":"a","cluster_id":null,"layout":"topic"}'
    named = former.replace(b'"topic"}', b'"topic","group_id":"blockgz-a"}')
    config = RunConfig(archive="./archive", bootstrap_servers="broker:9092", topics=("orders",))
    chosen = RunConfig(archive="./archive", bootstrap_servers="broker:9092", topics=("orders",), group_id="mine")
    nameless = named.replace(b'"blockgz-a"', b"null")
    for body, expected in ((former, "blockgz-archiver"), (nameless, "blockgz-archiver"), (named, "blockgz-a")):
        info = objects.decode(body, ArchiveInfo, "_archive.json")
        assert config.of_archive(info).group == expected
        assert chosen.of_archive(info).group == "mine"
