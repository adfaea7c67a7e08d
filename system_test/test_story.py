"""The main job from its first step to its last, each step on what the one before left behind.

Real text goes into a real broker by a foreign client and is archived over several runs; single records are looked up,
the archive is read the way other tools would read it, replayed into other topics, and proven equal to its source. The
story is told twice: with an archive in a folder, and on S3.
"""

import gzip
import json
import random
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from system_test.checker import check_equal, record_of_line
from system_test.support.archiving import Site, folder_site, store_site
from system_test.support.corpus import corpus
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import STORED_AS_GZIP, NewRecord, Record, create_topic, produce, read

PARTITIONS = 3
FIRST_MS = 1_600_000_000_000
STEP_MS = 60_000
BLOCKS = ("--block-bytes", "16KiB")
FIRST_RUN, SECOND_RUN, WHILE_FOLLOWING, LATE = 1500, 900, 600, 30


@dataclass
class Story:
    """What the steps share. `objects` gives the stored objects by key."""

    site: Site
    topic: str
    folder: Path | None
    objects: Callable[[], dict[str, bytes]]
    stanzas: Iterator[bytes] = field(
        default_factory=lambda: iter(corpus(FIRST_RUN + SECOND_RUN + WHILE_FOLLOWING + LATE))
    )
    produced: int = 0

    def produce(self, count: int) -> None:
        """The next stanzas of the package index: keyed by package, a header for the section, a minute apart."""
        records = []
        for _ in range(count):
            stanza = next(self.stanzas)
            package = _field(stanza, b"Package")
            section = _field(stanza, b"Section")
            headers = (("section", section), ("format", b"deb822")) if section else ()
            number = self.produced
            self.produced += 1
            time = FIRST_MS + number * STEP_MS
            records.append(NewRecord(stanza, package, number % PARTITIONS, headers, time))
        produce(self.site.bootstrap, self.topic, records)

    def in_topic(self, partition: int, topic: str | None = None) -> list[Record]:
        return read(self.site.bootstrap, topic or self.topic, partition)

    def positions(self) -> list[int | None]:
        return [self.site.marker(self.topic, partition)["next_offset"] for partition in range(PARTITIONS)]


def _field(stanza: bytes, name: bytes) -> bytes | None:
    match = re.search(rb"^" + name + rb": (.*)$", stanza, re.MULTILINE)
    return match[1] if match else None


@pytest.fixture(scope="module", params=["folder", "s3"])
def story(
    request: pytest.FixtureRequest, broker: KafkaBroker, moto: MotoServer, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    topic = f"packages-{request.param}-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    if request.param == "folder":
        folder = tmp_path_factory.mktemp("story") / "archive"
        return Story(folder_site(broker.bootstrap, folder), topic, folder, lambda: _files(folder))
    prefix = f"story/{topic}"
    site = store_site(broker.bootstrap, moto, prefix)
    return Story(site, topic, None, lambda: _stored(moto, f"{prefix}/"))


def _files(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {key: path.read_bytes() for key, path in files.items() if not re.search(r"(^|/)\.", key)}


def _stored(store: MotoServer, prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(prefix): store.read(key) for key in store.keys(prefix)}


def test_01_the_first_run_archives_what_is_there(story: Story) -> None:
    story.produce(FIRST_RUN)
    result = story.site.once(story.topic, *BLOCKS)
    assert result["records"] == FIRST_RUN
    for partition in range(PARTITIONS):
        checked = story.site.exact(story.topic, partition)
        assert len(checked.records) == FIRST_RUN // PARTITIONS
        assert len(checked.indexes[0]["chunks"]) > 5


def test_02_the_second_run_appends_and_touches_nothing_old(story: Story) -> None:
    before = story.objects()
    story.produce(SECOND_RUN)
    assert story.site.once(story.topic, *BLOCKS, "--chunk-records", "100")["records"] == SECOND_RUN
    after = story.objects()
    changed = {key for key, content in before.items() if after.get(key) != content}
    assert {key.rsplit("/", 1)[-1] for key in changed} == {"last_chunk_index.json"}
    for partition in range(PARTITIONS):
        checked = story.site.exact(story.topic, partition)
        assert len(checked.entries) == 1 + SECOND_RUN // PARTITIONS // 100
        assert len(checked.records) == (FIRST_RUN + SECOND_RUN) // PARTITIONS


def test_03_a_run_with_nothing_new_archives_nothing(story: Story) -> None:
    before = story.objects()
    assert story.site.once(story.topic)["records"] == 0
    assert story.objects().keys() == before.keys()


def test_04_following_archives_what_comes_and_sigterm_commits_what_is_open(story: Story, tmp_path: Path) -> None:
    buffer = tmp_path / "buffer"
    chunks = ("--chunk-records", "120", "--block-bytes", "2KiB", "--buffer-dir", str(buffer))
    with story.site.start(story.topic, *chunks) as archiver:
        start = story.positions()
        story.produce(WHILE_FOLLOWING)
        due = [(position or 0) + 120 for position in start]
        archiver.wait_for(lambda: story.positions() == due, 60, "the chunks that are full")
        # Less than a chunk is open in each partition now; nothing but the signal will end it for minutes.
        archiver.wait_for(lambda: len(_buffered(buffer)) == PARTITIONS, 60, "blocks of the open chunks")
        done = archiver.terminate().expect(0)
    assert "Traceback" not in done.stderr
    assert all((now or 0) > at for now, at in zip(story.positions(), due, strict=True)), done.transcript
    assert not _buffered(buffer)
    for partition in range(PARTITIONS):
        story.site.exact(story.topic, partition)


def _buffered(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.chunk") if path.stat().st_size]


def test_05_the_next_run_continues_where_the_signal_came(story: Story) -> None:
    story.produce(LATE)
    story.site.once(story.topic, *BLOCKS)
    for partition in range(PARTITIONS):
        checked = story.site.exact(story.topic, partition)
        assert len(checked.records) == story.produced // PARTITIONS
        assert checked.gaps == []


def test_06_any_gzip_tool_reads_a_chunk_and_any_json_tool_its_lines(story: Story) -> None:
    """That the lines equal the blocks one by one, the checker asserts for every chunk of every test."""
    chunks = {key: content for key, content in story.objects().items() if key.endswith(".gz")}
    assert len(chunks) > PARTITIONS
    for content in chunks.values():
        printed = subprocess.run(["zcat"], input=content, capture_output=True, check=True).stdout
        assert printed == gzip.decompress(content)
        assert all(isinstance(json.loads(line), dict) for line in printed.splitlines())


def test_07_a_reader_that_globs_finds_the_records_in_order(story: Story) -> None:
    """Spark and DuckDB take every `*.gz` that is not hidden by `_` or `.`, and sort by name within a partition."""
    chunks = {key: content for key, content in story.objects().items() if re.search(r"/[^/_.][^/]*\.gz$", key)}
    for partition in range(PARTITIONS):
        home = f"topic={story.topic}/partition={partition:05d}/"
        names = sorted(key for key in chunks if key.startswith(home))
        lines = [line for name in names for line in gzip.decompress(chunks[name]).split(b"\n") if line]
        check_equal([record_of_line(line, "CreateTime") for line in lines], story.in_topic(partition))


def test_08_single_records_take_three_requests_and_one_block(story: Story) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    for partition in range(PARTITIONS):
        records = story.in_topic(partition)
        indexes = story.site.checked(story.topic, partition).indexes
        blocks = [block for index in indexes for block in index["chunks"]]
        for record in [randomly.choice(records), *(records[-1:] if partition == 0 else [])]:
            place = f"{story.topic}:{partition}:{record.offset}"
            answer = story.site.replayer_json("get", place, "--stats")
            found, stats = answer["record"], answer["stats"]
            assert (found["topic"], found["partition"], found["offset"]) == (story.topic, partition, record.offset)
            assert (found["key"].encode(), found["value"].encode()) == (record.key, record.value)
            headers = [(header["key"], header["value"].encode()) for header in found.get("headers", ())]
            assert (tuple(headers), found["timestamp"]) == (record.headers, record.timestamp)
            assert stats["requests"] <= 3
            (its_block,) = (
                block
                for block in blocks
                if block["first_record_offset"] <= record.offset <= block["last_record_offset"]
            )
            assert stats["data_bytes_fetched"] == its_block["byte_length"]
    beyond = story.site.replayer("get", f"{story.topic}:0:{story.produced}", check=4)
    assert "not archived yet" in beyond.stderr


def test_09_cat_starts_at_a_time(story: Story) -> None:
    moment = FIRST_MS + 1000 * STEP_MS - STEP_MS // 2
    printed = story.site.replayer("cat", story.topic, "--from", f"@{moment}", "-f", "%p %o %T %k\n").stdout
    expected = [
        f"{partition} {record.offset} {record.timestamp} {(record.key or b'').decode()}"
        for partition in range(PARTITIONS)
        for record in story.in_topic(partition)
        if record.timestamp >= moment
    ]
    assert printed.splitlines() == expected
    first = story.site.replayer("cat", f"{story.topic}:1", "--from", "2020-09-14", "-n", "1", "--json").stdout
    assert json.loads(first)["timestamp"] == next(
        record.timestamp for record in story.in_topic(1) if record.timestamp >= 1_600_041_600_000
    )


def test_10_ls_and_describe_tell_what_is_there(story: Story) -> None:
    assert story.topic in story.site.replayer("ls").stdout
    described = story.site.replayer_json("describe", story.topic)
    assert sum(partition["records"] for partition in described["partitions"]) == story.produced


def test_11_a_replay_into_another_topic_is_the_source_again(story: Story) -> None:
    copy = f"{story.topic}-copy"
    create_topic(story.site.bootstrap, copy, PARTITIONS, STORED_AS_GZIP)
    target = ("--to-topic", copy, *story.site.kafka)
    planned = story.site.replayer("replay", story.topic, *target, "--dry-run")
    assert copy in planned.stderr
    assert story.site.replayer("replay", story.topic, *target, check=2).stderr.count("--yes") >= 1
    assert [story.in_topic(partition, copy) for partition in range(PARTITIONS)] == [[]] * PARTITIONS
    result = story.site.replayer_json("replay", story.topic, *target, "--yes")
    assert result["records"] == story.produced
    for partition in range(PARTITIONS):
        check_equal(story.in_topic(partition, copy), story.in_topic(partition))


def test_12_the_archive_verifies_down_to_every_record(story: Story) -> None:
    report = story.site.replayer_json("verify", story.topic, "--deep", "--records")
    assert (report["verdict"], report["damage"]) == ("OK", [])
    assert sum(partition["records"] for partition in report["partitions"]) == story.produced


@pytest.mark.parametrize("suffix", ["", "-copy"], ids=["source", "copy"])
def test_13_the_archive_verifies_against_source_and_copy(story: Story, suffix: str) -> None:
    topic = story.topic + suffix
    report = story.site.replayer_json("verify", story.topic, "--against-topic", topic, *story.site.kafka)
    assert (report["verdict"], report["records"]) == ("OK", story.produced)
    assert report["relation"] == ("copy" if suffix else "source")
