from collections.abc import Awaitable, Callable

import pytest
from click.testing import CliRunner

from blockgz.archive.archive import Archive
from blockgz.archive.follow import POLLS_PER_LISTING, FollowedPartition, Follower
from blockgz.errors import StoreUnavailable
from blockgz.store.reader import CountingReader
from index_format.errors import MalformedObject
from replayer.cli import main
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened

News = list[tuple[str, int, int]]


def following(opened: Opened, steps: list[Callable[[], object]], said: list[str]) -> list[News]:
    """What each step's poll tells, after the archive was changed by it."""

    async def use(archive: Archive) -> list[News]:
        begin = [FollowedPartition(each, each.next_offset) for each in await archive.open_topic("orders")]
        follower = Follower(archive, "orders", begin, said.append, watch_for_partitions=True)
        told = []
        for step in steps:
            step()
            told.append([(str(partition), *offsets) for partition, offsets, *_ in await follower.poll()])
        return told

    return opened.read(use)


def test_each_offset_is_reported_once(opened: Opened, writer: ArchiveWriter) -> None:
    first, second = (writer.partition("orders", number) for number in range(2))
    first.commit(records(range(5)))
    said: list[str] = []
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: first.commit(records(range(5, 9))),
        lambda: (first.commit(records([9])), second.commit(records(range(3)))),
        lambda: second.lose(10),
        lambda: (first.advance(20), second.commit(records([10]))),
        lambda: None,
    ]
    assert following(opened, steps, said) == [
        [],
        [("orders:0", 5, 9)],
        [("orders:0", 9, 10), ("orders:1", 0, 3)],
        [("orders:1", 3, 10)],
        [("orders:0", 10, 20), ("orders:1", 10, 11)],
        [],
    ]
    assert said == ["partition orders:1 has a gap [3..10): retention"]


def test_a_topic_that_was_created_again_continues_after_its_old_end(opened: Opened, writer: ArchiveWriter) -> None:
    old = writer.partition("orders", 0)
    old.commit(records(range(5)))
    said: list[str] = []

    def created_again() -> None:
        old.commit(records(range(5, 7)))
        writer.partition("orders", 0, incarnation=2).commit(records(range(3)))
        old.hand_over("orders~2")

    steps: list[Callable[[], object]] = [lambda: old.hand_over("orders~2"), created_again, lambda: None]
    assert following(opened, steps, said) == [[], [("orders:0", 5, 7), ("orders~2:0", 0, 3)], []]
    assert said == ["partition orders:0 continues as orders~2:0: the topic was created again"]


def test_a_topic_that_was_created_again_twice_between_two_looks_is_told_whole(
    opened: Opened, writer: ArchiveWriter
) -> None:
    first, other = (writer.partition("orders", number) for number in range(2))
    first.commit(records(range(5)))

    def created_again() -> None:
        first.commit(records(range(5, 7)))
        second = writer.partition("orders", 0, incarnation=2)
        second.commit(records(range(3)))
        for number in range(2):
            writer.partition("orders", number, incarnation=3).commit(records(range(1)))
        first.hand_over("orders~2")
        second.hand_over("orders~3")
        other.hand_over("orders~3")

    told = [("orders:0", 5, 7), ("orders~2:0", 0, 3), ("orders~3:0", 0, 1), ("orders~3:1", 0, 1)]
    assert following(opened, [created_again, lambda: None], []) == [told, []]


def test_a_log_that_was_truncated_twice_between_two_looks_is_told_from_the_lower_place(
    opened: Opened, writer: ArchiveWriter
) -> None:
    first = writer.partition("orders", 0)
    for start in range(0, 30, 10):
        first.commit(records(range(start, start + 10)))
    said: list[str] = []

    def truncated_twice() -> None:
        second = first.truncated(10)
        for start in range(10, 50, 10):
            second.commit(records(range(start, start + 10), value_bytes=30))
        second.truncated(40).commit(records(range(40, 60), value_bytes=40))

    assert following(opened, [truncated_twice, lambda: None], said) == [[("orders~3:0", 10, 60)], []]
    assert said == ["partition orders:0 continues as orders~3:0 from offset 10: its log was truncated there"]


def test_new_partitions_are_found(opened: Opened, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0)
    said: list[str] = []
    steps: list[Callable[[], object]] = [lambda: None] * POLLS_PER_LISTING
    steps += [lambda: writer.partition("orders", 1).commit(records(range(4)))]
    assert following(opened, steps, said)[-1] == [("orders:1", 0, 4)]
    assert said == ["partition orders:1 is new"]


def test_a_marker_that_went_back_ends_it(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    first = partition.marker
    partition.commit(records(range(5)))

    def replaced() -> None:
        partition.marker = first
        partition.store_marker()

    with pytest.raises(MalformedObject, match="went back from offset 5 to 0"):
        following(opened, [replaced], [])


def test_a_store_that_does_not_answer_is_asked_on(
    opened: Opened, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = writer.partition("orders", 0)
    said: list[str] = []
    down = False
    get: Callable[[CountingReader, str, int], Awaitable[bytes]] = CountingReader.get

    async def unreliable(reader: CountingReader, key: str, max_bytes: int) -> bytes:
        if down:
            raise StoreUnavailable("the store does not answer", why="it is down")
        return await get(reader, key, max_bytes)

    monkeypatch.setattr(CountingReader, "get", unreliable)

    def switch(off: bool) -> None:
        nonlocal down
        down = off

    steps: list[Callable[[], object]] = [
        lambda: switch(off=True),
        lambda: partition.commit(records(range(2))),
        lambda: switch(off=False),
    ]
    assert following(opened, steps, said) == [[], [], [("orders:0", 0, 2)]]
    assert said == ["the store does not answer (it is down); retrying"]


SILENT = StoreUnavailable("the store does not answer", why="it is down")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[Callable[[], object]]], None]:
    """Has each call of a CountingReader method for a marker, or for data, preceded by the next of some steps."""

    def script(method: str, steps: list[Callable[[], object]]) -> None:
        original: Callable[..., Awaitable[object]] = getattr(CountingReader, method)
        waiting = iter(steps)

        async def called(reader: CountingReader, key: str, *arguments: object) -> object:
            if method == "get_range" or key.endswith("last_chunk_index.json"):
                next(waiting)()
            return await original(reader, key, *arguments)

        monkeypatch.setattr(CountingReader, method, called)

    return script


def fails() -> None:
    raise SILENT


def interrupts() -> None:
    raise KeyboardInterrupt


def test_tail_prints_each_record_once_though_the_store_is_silent_meanwhile(
    opened: Opened, writer: ArchiveWriter, scripted: Callable[[str, list[Callable[[], object]]], None]
) -> None:
    partition = writer.partition("orders", 0)

    def commits() -> None:
        partition.commit(records(range(5)))
        partition.commit(records(range(5, 9)))

    scripted("get", [lambda: None, commits, interrupts])
    scripted("get_range", [lambda: None, fails, fails, lambda: None])
    options = ["-F", "--interval", "100ms", "-f", "%o\\n", "-a", str(opened.root)]
    done = CliRunner().invoke(main, ["tail", "orders", *options])
    assert (done.exit_code, done.stdout.split()) == (130, [str(n) for n in range(9)])
    assert done.stderr == "the store does not answer (it is down); retrying\n"


def test_get_waits_on_though_the_store_is_silent_meanwhile(
    opened: Opened, writer: ArchiveWriter, scripted: Callable[[str, list[Callable[[], object]]], None]
) -> None:
    partition = writer.partition("orders", 0)
    scripted("get", [lambda: None, fails, fails, lambda: partition.commit(records(range(5)))])
    options = ["-F", "--interval", "100ms", "-f", "%o\\n", "-a", str(opened.root)]
    done = CliRunner().invoke(main, ["get", "orders:0:4", *options])
    assert (done.exit_code, done.stdout) == (0, "4\n")
    assert done.stderr == "the store does not answer (it is down); retrying\n"
