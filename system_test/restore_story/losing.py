"""A cluster with topics of all kinds and groups at all kinds of positions, archived, and killed in mid-traffic."""

import gzip
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import TopicAlreadyExistsError

from system_test.checker import check_partition
from system_test.restore_story import traffic
from system_test.restore_story.notes import Asked, Kept, Moved, NoteBook, Written, noted
from system_test.restore_story.traffic import DEALS, FOLLOWED, Producing, mark, note_log, now_ms, stand
from system_test.support.archiving import Site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running
from system_test.support.topics import NewRecord, Transactions, create_topic, delete_topic, produce, read, watermarks
from system_test.support.waiting import wait_until

PARTITIONS = {
    "compacted": 2,
    "deals": 2,
    "stamped": 1,
    "empty": 3,
    "one": 1,
    "fifty": 50,
    "unicode": 3,
    "big": 1,
    "deleted": 2,
    "again": 2,
    "skewed": 1,
    "oddities": 1,
}
"""The topics of the moment."""
ENDED = ("deleted", "again")
"""Gone after the moment; the second is there again, with another partition."""
SETTINGS = {"stamped": {"message.timestamp.type": "LogAppendTime"}}
BIG_BYTES = 8 << 20
AHEAD_MS = 30 * 60_000
"""So far a producer's clock was ahead."""
CLEAR = 10
"""The offset of its record; what was written behind it is not restored."""
EMPTY = [NewRecord(None), NewRecord(None, key=b"k"), NewRecord(b"", key=b""), NewRecord(b"v")]
ODD = [*EMPTY, NewRecord(b"h", headers=(("a", b"1"), ("a", None), ("b", b""), ("ключ", b"\xff")))]


@dataclass(frozen=True)
class Lost:
    """What is left of a cluster: its archive, and what producers and consumers noted.

    `at` is the moment to go back to, in ms, and `end` one after everything, when part of it was not archived.
    """

    site: Site
    notes: tuple[Path, ...]
    at: int
    end: int

    def note_archive(self, book: NoteBook, at: int, topics: Mapping[str, int]) -> None:
        """What the archive says, read by its format alone: how far topics reach, and when groups were asked."""
        for topic, count in topics.items():
            for partition in range(count):
                checked = check_partition(self.site.fetch, topic, partition)
                book.add(Kept(topic, partition, checked.next_offset or 0))
            for group in _table(Path(self.site.address), topic, at):
                book.add(Asked(group["group_id"], topic, group["asked_at"]))


def _table(folder: Path, topic: str, at: int | None) -> list[dict[str, Any]]:
    """The newest table of groups that is named for that time or before."""
    files = [
        file
        for file in sorted((folder / f"topic={topic}/_groups").glob("*.json"))
        if at is None or int(file.stem) <= at
    ]
    table: list[dict[str, Any]] = json.loads(gzip.decompress(files[-1].read_bytes()))["groups"] if files else []
    return table


def lose(broker: KafkaBroker, site: Site, notes: Path, records: int, seconds: float) -> Lost:
    """Tells the story up to the end of the broker; `records` is the size of a topic, `seconds` the time after."""
    cluster = Cluster(broker.bootstrap, NoteBook(notes / "story"), records)
    cluster.fill()
    with (
        site.start("*", "--groups-interval", "500ms", "--chunk-interval", "1s") as archiver,
        Running(
            (sys.executable, "-m", traffic.__name__, broker.bootstrap, str(notes / "traffic")), None, None
        ) as working,
    ):
        standing = cluster.stand() | {("following", topic) for topic in FOLLOWED}
        archiver.wait_for(lambda: standing <= asked(Path(site.address)), 60, "the groups in tables")
        long = Producing(broker.bootstrap, cluster.book, DEALS, "long")
        at = (now_ms() // 1000 + 2) * 1000
        _pass(at - 400)
        long.transaction(0.8)
        long.close()
        cluster.change()
        _pass(at + round(seconds * 1000))
        archiver.wait_for(lambda: archived(site, notes, at), 60, "the archive of the moment")
        assert working.alive, working.stderr
        broker.kill()
        archiver.kill()
    return Lost(site, tuple(notes.iterdir()), at, now_ms())


def _pass(at: int) -> None:
    wait_until(lambda: now_ms() >= at, 30, "a moment to pass")


def asked(folder: Path) -> set[tuple[str, str]]:
    """Groups and topics, as the newest tables have them."""
    return {(group["group_id"], topic) for topic in PARTITIONS for group in _table(folder, topic, None)}


def archived(site: Site, notes: Path, at: int) -> bool:
    """Whether everything from before the moment, and something after it, is archived where there is anything."""
    needed = defaultdict[tuple[str, int], int](int)
    for note in noted(notes.iterdir()):
        if isinstance(note, Written) and note.offset is not None and note.fate == "committed" and note.timestamp < at:
            needed[note.topic, note.partition] = max(needed[note.topic, note.partition], note.offset + 1)
    return all((site.marker(topic, partition)["next_offset"] or 0) >= end for (topic, partition), end in needed.items())


@dataclass
class Cluster:
    """The cluster while it lives."""

    bootstrap: str
    book: NoteBook
    records: int

    def __post_init__(self) -> None:
        self.holes: dict[int, int] = {}
        self.aborted: dict[int, int] = {}

    def fill(self) -> None:
        """Topics, and what was in them before anybody looked."""
        for topic, partitions in PARTITIONS.items():
            if topic == "compacted":
                create_compacted_topic(self.bootstrap, topic, partitions)
            else:
                create_topic(self.bootstrap, topic, partitions, SETTINGS.get(topic))
            if topic not in ("empty", "deals"):
                self.produce(topic, self._records(topic, partitions))
        self._deal()

    def stand(self) -> set[tuple[str, str]]:
        """Groups that stay where they are: behind, at the end, ahead of what is restored, in a hole, in an abort.

        Their names, each with each of its topics.
        """
        positions: dict[str, dict[str, int | None]] = {
            "behind": {"one": 3, "fifty": 1, "unicode": 5, "big": 1, "deleted": 4, "oddities": 2},
            "at-the-end": dict.fromkeys(("big", "again", "empty", "deleted", "oddities"), None),
            "ahead": {"skewed": CLEAR + 5},
            "gone": {"one": 7, "again": 6},
        }
        for group, topics in positions.items():
            self._stand(group, topics)
        for group, topic, offsets in (("in-a-hole", "compacted", self.holes), ("in-an-abort", "deals", self.aborted)):
            stand(self.bootstrap, self.book, group, {TopicPartition(topic, each): at for each, at in offsets.items()})
        more = {("in-a-hole", "compacted"), ("in-an-abort", "deals")}
        return more | {(group, topic) for group, topics in positions.items() for topic in topics}

    def change(self) -> None:
        """What happens after the moment and must not show."""
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            began = now_ms()
            admin.delete_groups(["gone"])
        for topic in ("one", "again"):
            self.book.add(*(Moved("gone", topic, each, None, began, now_ms()) for each in range(PARTITIONS[topic])))
        self._stand("behind", {"one": 9, "unicode": 6})
        self._stand("later", {"one": 2})
        create_topic(self.bootstrap, "later")
        produce(self.bootstrap, "later", [NewRecord(b"later")])
        for topic in ENDED:
            delete_topic(self.bootstrap, topic)
        self.create_again()

    def create_again(self) -> None:
        """One that was deleted, with another partition and other records."""
        wait_until(self._created_again, 30, "a topic to be created again")
        produce(self.bootstrap, "again", [NewRecord(b"new %d" % n, partition=n % 3) for n in range(9)])

    def _created_again(self) -> bool:
        try:
            create_topic(self.bootstrap, "again", 3)
        except TopicAlreadyExistsError:  # for a moment after it was deleted
            return False
        return True

    def _stand(self, group: str, topics: Mapping[str, int | None]) -> None:
        """A group in all partitions of topics, at an offset or at the end."""
        places = [TopicPartition(topic, each) for topic in topics for each in range(PARTITIONS[topic])]
        offsets = {
            place: watermarks(self.bootstrap, *place)[1] if (at := topics[place.topic]) is None else at
            for place in places
        }
        stand(self.bootstrap, self.book, group, offsets)

    def _records(self, topic: str, partitions: int) -> Iterator[NewRecord]:
        """What the topic begins with, some of it from a minute ago."""
        first = now_ms() - 60_000
        if topic == "big":
            for number, size in enumerate((BIG_BYTES, 10, BIG_BYTES)):
                yield NewRecord(random.randbytes(size), timestamp=first + number)
        elif topic == "oddities":
            for number, odd in enumerate(ODD * 3):
                yield NewRecord(odd.value, odd.key, 0, odd.headers, first + number)
        else:
            for number in range(max(self.records, 6 * partitions)):
                ahead = AHEAD_MS if topic == "skewed" and number == CLEAR else 0
                key = f"ключ-鍵-🔑-{number % 20}" if topic == "unicode" else f"k{number % 20}"
                value = f"{topic} {number}".encode()
                yield NewRecord(value, key.encode(), number % partitions, timestamp=first + number + ahead)

    def produce(self, topic: str, produced: Iterable[NewRecord]) -> None:
        """Produces and notes records; each has a timestamp."""
        records = list(produced)
        offsets = produce(self.bootstrap, topic, records)
        if topic == "compacted":
            for partition in range(PARTITIONS[topic]):
                left = compact_and_wait(self.bootstrap, topic, partition)
                note_log(self.book, topic, partition, left)
                self.holes[partition] = min(set(range(left[-1].offset)) - {each.offset for each in left}) + 1
        elif topic == "stamped":
            note_log(self.book, topic, 0, read(self.bootstrap, topic))
        else:
            self._note(topic, records, offsets, "committed")

    def _deal(self) -> None:
        """Transactions, every third one aborted."""
        with Transactions(self.bootstrap, "filling") as writer:
            for number in range(9):
                first = now_ms()
                records = [
                    NewRecord(b"deal %d %d" % (number, n), partition=n % 2, timestamp=first + n) for n in range(20)
                ]
                fate = "committed" if number % 3 else "aborted"
                offsets = (writer.commit if number % 3 else writer.abort)("deals", records)
                self._note("deals", records, offsets, fate)
                if number == 3:
                    self.aborted = {each: offset - 3 for offset, each in zip(offsets[-2:], (0, 1), strict=True)}

    def _note(self, topic: str, records: Iterable[NewRecord], offsets: Iterable[int], fate: str) -> None:
        for record, offset in zip(records, offsets, strict=True):
            assert record.timestamp is not None
            self.book.add(Written(topic, record.partition, offset, record.timestamp, mark(record), fate))
