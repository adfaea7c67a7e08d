"""`replayer replay` and `replayer verify --against-topic` as a user runs them."""

import asyncio
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from archiver.commit.archive import find_incarnation
from archiver.maintain.drop import PlannedDrop
from archiver.maintain.gc import plan_sweep
from blockgz.archive.archive import ArchivePlace
from blockgz.errors import BrokerUnreachable, PartitionUnavailable
from blockgz.kafka.batch_producer import BatchProducer, batch_producer
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalStore
from index_format import objects
from index_format.errors import BlockgzError
from index_format.keys import TopicFolder, archive_key
from index_format.records import Record
from replayer.cli import main
from replayer.errors import DeliveryFailed
from replayer.kafka.admin import KafkaAdmin
from replayer.serve.replays import Replays
from replayer.serve.settings import Access, ServeSettings
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records
from tests.support.commands import exited, succeeded
from tests.support.mock_cluster import MockCluster

TIME_OF_30 = "@1760000000030"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for partition in range(3):
        writer = archive.partition("orders", partition)
        writer.commit(records(range(40)))
        writer.commit(records(range(40, 60)))
    return tmp_path


class Program:
    def __init__(self, root: Path, cluster: MockCluster) -> None:
        self.root, self._cluster = root, cluster

    def __call__(self, *args: str, bootstrap_server: str | None = None) -> Result:
        server = bootstrap_server or self._cluster.bootstrap_servers
        return CliRunner().invoke(main, [*args, "-a", str(self.root), "-b", server], prog_name="replayer")

    def held(self, topic: str) -> int:
        admin = KafkaAdmin({"bootstrap.servers": self._cluster.bootstrap_servers})
        return sum(bounds.end for bounds in admin.watermarks(topic, range(4)).values())


@pytest.fixture
def program(root: Path, cluster: MockCluster) -> Program:
    return Program(root, cluster)


@pytest.mark.slow
def test_replay_and_compare(program: Program, copy: str, tmp_path: Path) -> None:
    result = succeeded(program("replay", "orders", "--to-topic", copy, "--yes"))
    assert "180 records (" in result.stdout
    assert f"orders -> {copy}, 180 records" in result.stderr
    report = tmp_path / "report.json"
    compared = succeeded(program("verify", "orders", "--against-topic", copy, "--report", str(report)))
    for partition in json.loads(report.read_bytes())["partitions"]:
        assert partition["digests"]["found"]["content"] == partition["digests"]["archived"]["content"]
    assert compared.stdout.splitlines()[-1] == "OK"
    assert "a copy" in compared.stdout


@pytest.mark.slow
def test_replay_as_of_a_time_in_json(program: Program, copy: str) -> None:
    result = succeeded(program("replay", "orders", "--to-topic", copy, "--at", TIME_OF_30, "--yes", "--json"))
    told = json.loads(result.stdout)
    assert told["records"] == 90
    assert told["partitions"] == [
        {
            "partition": partition,
            "target_partition": partition,
            "records": 30,
            "from": 0,
            "to": 30,
            "target_from": 0,
            "target_to": 30,
        }
        for partition in range(3)
    ]
    assert told["plan"]["warnings"]
    assert told["zero_timestamps"] == 0
    compared = program("verify", "orders", "--against-topic", copy, "--at", TIME_OF_30, "--json")
    report = json.loads(compared.stdout)
    assert (report["verdict"], report["relation"], report["records"]) == ("OK", "copy", 90)
    assert [(each["topic"], each["records"]) for each in report["partitions"]] == [("orders", 30)] * 3
    whole = exited(program("verify", "orders", "--against-topic", copy, "--json"), 3)
    assert [each["missing"] for each in json.loads(whole.stdout)["partitions"]] == [30] * 3
    assert [each["missing_offsets"] for each in json.loads(whole.stdout)["partitions"]] == [
        [{"from": 30, "to": 60}]
    ] * 3
    assert json.loads(whole.stdout)["partitions"][0]["first_difference"]["archived"]["offset"] == 30


def test_a_plan_names_the_times_of_what_it_takes(program: Program, copy: str) -> None:
    minute, hour = 60_000, 3_600_000
    times = [1_760_000_000_000 + row * minute for row in range(240)]
    writer = ArchiveWriter(program.root).partition("daily", 0)
    writer.commit(records(range(240), timestamps=times))
    copied = ("replay", "daily", "--to-topic", copy, "--dry-run")
    cut = program(*copied, "--at", f"@{times[0] + hour}")
    assert f"daily -> {copy}, 60 records" in cut.stderr
    assert "2025-10-09T08:53:20Z  2025-10-09T09:52:20Z" in cut.stderr
    assert "note: ends before 2025-10-09T09:53:20.000Z" in cut.stderr
    part = program(*copied, "--since", f"@{times[0] + hour}", "--until", "2025-10-09T10:00")
    assert f"daily -> {copy}, 7 records" in part.stderr
    assert "2025-10-09T09:53:20Z  2025-10-09T09:59:20Z" in part.stderr
    assert "timestamp >= 2025-10-09T09:53:20.000Z and timestamp < 2025-10-09T10:00:00.000Z" in part.stderr
    assert not re.search(r"[0-9]{13}", cut.stderr + part.stderr)
    keyed = program(*copied, "--since", f"@{times[0] + hour}", "--key", "61", "--json")
    assert json.loads(keyed.stdout)["plan"]["records_exact"] is False
    skipping = program(*copied, "--on-damage", "skip")
    assert f"daily -> {copy}, at most 240 records" in skipping.stderr


def test_times_the_wrong_way_round_are_named_as_dates(program: Program, copy: str) -> None:
    result = program("replay", "orders", "--to-topic", copy, "--from", "2026-01-02", "--to", "2026-01-01", "--dry-run")
    assert result.exit_code == 2
    assert "start at 2026-01-02T00:00:00.000Z and to end before 2026-01-01T00:00:00.000Z" in result.stderr


@pytest.mark.slow
def test_some_partitions(program: Program, copy: str) -> None:
    result = program("replay", "orders:0,2", "--to-topic", copy, "--yes", "--json")
    assert [each["partition"] for each in json.loads(result.stdout)["partitions"]] == [0, 2]
    assert program.held(copy) == 120
    for topic, option in (("orders:0,2", ()), ("orders", ("--partitions", "0,2"))):
        assert program("verify", topic, *option, "--against-topic", copy).exit_code == 0


def test_a_dry_run_writes_nothing(program: Program, copy: str) -> None:
    result = program("replay", "orders", "--to-topic", copy, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.search(r"\n +2 +\[0\.\.60\) +60 .*2025-10-09T08:53:20Z", result.stderr)
    assert "warning: the broker does not report the configuration" in result.stderr
    told = json.loads(program("replay", "orders", "--to-topic", copy, "--dry-run", "--json").stdout)
    assert told["dry_run"] is True
    assert (told["records"], told["partitions"]) == (0, [])
    assert [(each["from"], each["to"], each["records"]) for each in told["plan"]["partitions"]] == [(0, 60, 60)] * 3
    assert program.held(copy) == 0


def test_a_job_is_the_same_after_the_log_of_its_first_partition_was_truncated(
    program: Program, copy: str, tmp_path: Path
) -> None:
    """Else it would replay what others hold once more."""

    def name() -> str:
        planned = succeeded(program("replay", "payments", "--to-topic", copy, "--dry-run", "--json"))
        return str(json.loads(planned.stdout)["plan"]["job"])

    archive = ArchiveWriter(tmp_path)
    writer = archive.partition("payments", 0)
    writer.commit(records(range(20)))
    writer.commit(records(range(20, 40)))
    archive.partition("payments", 1).commit(records(range(40)))
    before = name()
    writer.truncated(20).commit(records(range(20, 40)))
    assert name() == before


@pytest.mark.slow
def test_a_complete_job_can_be_run_again(program: Program, copy: str, tmp_path: Path) -> None:
    """As another one; each keeps its folder, which --resume finds complete."""
    names = []
    for option, written in (("--yes", 60), ("--append", 60), ("--resume", 0)):
        result = succeeded(program("replay", "orders:0", "--to-topic", copy, "--yes", option, "--json"))
        told = json.loads(result.stdout)
        assert (told["records"], told["records_before"], told["complete"]) == (written, 60 - written, True)
        names.append(told["plan"]["job"])
    assert names[1:] == [f"{names[0]}-2"] * 2
    assert {path.name for path in (tmp_path / "state" / "blockgz" / "jobs").iterdir()} == {*names}
    assert program.held(copy) == 120
    named = ("replay", "orders:0", "--to-topic", copy, "--yes", "--append", "--job", "nightly")
    assert program(*named).exit_code == 0
    refused = exited(program(*named), 2)
    assert "job nightly is complete" in refused.stderr


@pytest.mark.slow
def test_what_was_archived_since_is_not_of_the_job(program: Program, copy: str, root: Path) -> None:
    """Not even where the first run died before it wrote a position."""
    again = ("replay", "orders", "--to-topic", copy, "--yes", "--json", "--job", "j", "--resume")
    assert json.loads(program(*again, "-X", "compression.type=gzip").stdout)["records"] == 180
    (root / "state" / "blockgz" / "jobs" / "j" / "positions.json").unlink()
    ArchiveWriter(root).partition("orders", 3).commit(records(range(40)))
    planned = json.loads(program(*again[:-1], "--append", "--dry-run").stdout)
    assert planned["plan"]["records"] == 180


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--compression", "zstd:4"), ("zstd", "4")),
        (("--compression", "none"), ("none", None)),
        (("-X", "compression.type=gzip"), ("gzip", None)),
        ((), ("lz4", None)),
    ],
)
@pytest.mark.parametrize("mode", [(), ("--transactional",)])
def test_batches_are_compressed_as_asked(
    program: Program,
    copy: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: tuple[str, ...],
    options: tuple[str, ...],
    told: tuple[str, str | None],
) -> None:
    seen: set[tuple[str, str | None]] = set()

    def noted(settings: dict[str, Any], topic: str) -> BatchProducer:
        seen.add((settings["compression.type"], settings.get("compression.level")))
        return batch_producer(settings, topic)

    monkeypatch.setattr("replayer.replay.sinks.producer.batch_producer", noted)
    succeeded(program("replay", "orders", "--to-topic", copy, "--yes", *mode, *options))
    assert seen == {told}


def test_two_ways_to_say_a_compression_are_refused_before_anything(program: Program, copy: str) -> None:
    refused = program("replay", "orders", "--to-topic", copy, "--compression", "zstd", "-X", "compression.type=lz4")
    assert refused.exit_code == 2
    assert "--compression zstd contradicts -X compression.type=lz4" in refused.stderr
    assert "remove one of them" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--transactional",)])
def test_a_job_knows_that_it_is_complete(program: Program, copy: str, root: Path, mode: tuple[str, ...]) -> None:
    assert program("replay", "orders", "--to-topic", copy, "--yes", "--job", "j", *mode).exit_code == 0
    (told,) = json.loads(CliRunner().invoke(main, ["jobs", "--json"]).stdout)["jobs"]
    assert (told["state"], told["complete"], told["records"]) == ("complete", True, 180)
    place = ArchivePlace(LocalAddress(str(root)))
    page = asyncio.run(Replays(ServeSettings(place, Access("127.0.0.1"))).get("j"))
    assert (page["state"], page["progress"]) == ("complete", {"done": 180, "all": 180, "unit": "records"})


@pytest.mark.parametrize("failure", [BrokerUnreachable, PartitionUnavailable, DeliveryFailed])
def test_what_fails_after_a_signal_to_end_ends_by_the_signal(
    program: Program, copy: str, monkeypatch: pytest.MonkeyPatch, failure: type[BlockgzError]
) -> None:
    """The reason is told as well."""

    async def silent(*_: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        raise failure("the bounds of the target cannot be read", why="no answer")

    monkeypatch.setattr("replayer.replay.replaying.run_replay", silent)
    ended = exited(program("replay", "orders", "--to-topic", copy, "--yes"), 143)
    assert "the bounds of the target cannot be read" in ended.stderr


@pytest.mark.slow
def test_a_name_is_of_one_job(program: Program, copy: str) -> None:
    named = ("--to-topic", copy, "--yes", "--append", "--job", "one")
    assert program("replay", "orders:0", *named).exit_code == 0
    for other in (("orders:1", *named), ("orders:0", *named, "--transactional"), ("orders:1", *named, "--resume")):
        refused = exited(program("replay", *other), 2)
        assert "not the replay that the job started with" in refused.stderr


@pytest.mark.slow
def test_what_the_archive_lacks_is_reported_before_the_first_record(program: Program, copy: str, root: Path) -> None:
    shutil.rmtree(root / "topic=orders" / "partition=00001")
    refused = exited(program("replay", "orders", "--to-topic", copy, "--yes"), 2)
    assert "orders:1" in refused.stderr
    assert "--partial" in refused.stderr
    assert program.held(copy) == 0
    assert program("replay", "orders:0", "--to-topic", copy, "--dry-run").exit_code == 0, "it is not asked for"
    partial = exited(program("replay", "orders", "--to-topic", copy, "--yes", "--partial", "--json"), 3)
    told = json.loads(partial.stdout)
    assert (told["records"], told["complete"]) == (120, True)
    assert "missing in the archive: orders:1" in told["plan"]["notes"]


@pytest.mark.slow
def test_a_job_that_was_interrupted(program: Program, copy: str, root: Path, tmp_path: Path) -> None:
    """Damage ends it; once that is mended it goes on behind what it had written."""
    block = next(root.glob("topic=orders/partition=00001/*40.gz"))
    stored = break_block(root)
    again = ("replay", "orders", "--to-topic", copy, "--yes", "--json", "--jobs", str(tmp_path / "jobs"))
    assert program(*again).exit_code == 3
    held = program.held(copy)
    assert 100 <= held < 180
    block.write_bytes(stored)
    refused = exited(program(*again), 2)
    assert "has started and is not complete" in refused.stderr
    assert f"{held} of its records are in {copy}" in refused.stderr
    exited(program(*again, "--resume", "--to", "50"), 2)
    told = json.loads(succeeded(program(*again, "--resume")).stdout)
    assert (told["records"], told["records_before"], told["complete"]) == (180 - held, held, True)
    assert program("verify", "orders", "--against-topic", copy).exit_code == 0


def test_only_some_records(program: Program, copy: str, cluster: MockCluster, tmp_path: Path) -> None:
    positions = tmp_path / "positions.csv"
    positions.write_text("orders,0,6\norders,1,12\n")
    chosen = ("--positions", str(positions), "--until", TIME_OF_30, "--header", "h=v", "--grep", "value of [0-9]*5")
    again = ("replay", "orders:0,1", "--to-topic", copy, "--yes", "--json", *chosen)
    told = json.loads(succeeded(program(*again, "--partitions", "2")).stdout)
    offsets = [n for n in range(0, 30, 5) if n % 10 == 5 and n % 7 != 3]
    assert offsets == [5, 15, 25]
    assert [(each["records"], each["from"], each["to"]) for each in told["partitions"]] == [(2, 15, 26)] * 2
    assert told["skipped"] == []
    assert "only records with timestamp < 2025-10-09T08:53:20.030Z and header 'h' = b'v'" in told["plan"]["notes"][0]
    assert program.held(copy) == 4


@pytest.mark.slow
def test_other_records_are_not_the_same_job(program: Program, copy: str, root: Path, tmp_path: Path) -> None:
    break_block(root)
    again = ("replay", "orders", "--to-topic", copy, "--yes", "--jobs", str(tmp_path / "jobs"), "--job", "j")
    assert program(*again, "--since", TIME_OF_30).exit_code == 3
    held = program.held(copy)
    for changed in (("--since", "@1760000000031"), ("--since", TIME_OF_30, "--key", "1"), ()):
        result = exited(program(*again, "--resume", *changed), 2)
        assert "not the replay that the job started with" in result.stderr
    assert program.held(copy) == held
    resumed = exited(program(*again, "--resume", "--since", TIME_OF_30, "--on-damage", "skip", "--json"), 3)
    assert json.loads(resumed.stdout)["complete"]


def break_block(root: Path) -> bytes:
    """Damages the last block of the chunk with the offsets 40 to 60; what the chunk was before."""
    block = next(root.glob("topic=orders/partition=00001/*40.gz"))
    stored = block.read_bytes()
    block.write_bytes(stored[:-20] + b"x" * 20)
    return stored


@pytest.mark.slow
def test_damage_is_skipped_and_named(program: Program, copy: str, root: Path) -> None:
    break_block(root)
    result = exited(program("replay", "orders", "--to-topic", copy, "--yes", "--json", "--on-damage", "skip"), 3)
    told = json.loads(result.stdout)
    (skipped,) = told["skipped"]
    lost = skipped["to"] - skipped["from"]
    assert skipped["partition"] == 1
    assert 40 <= skipped["from"] < skipped["to"] == 60
    assert (told["records"], told["complete"]) == (180 - lost, True)
    assert f"FAILURE orders:1 skipped offsets [{skipped['from']}..60): " in result.stderr
    assert "damaged blocks are skipped" in told["plan"]["notes"][0]
    compared = exited(program("verify", "orders", "--against-topic", copy), 3)
    assert f"FAILURE orders:1 [{skipped['from']}..60): the archive cannot read them" in compared.stdout
    compared = program("verify", "orders", "--against-topic", copy, "--json")
    report = json.loads(compared.stdout)
    assert [(each["records"], each["missing"], each["extra"]) for each in report["partitions"]] == [
        (60, 0, 0),
        (60 - lost, 0, 0),
        (60, 0, 0),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gz", "index.json"])
def test_a_chunk_that_is_gone_is_skipped(program: Program, copy: str, root: Path, suffix: str) -> None:
    next(root.glob(f"topic=orders/partition=00001/*00.{suffix}")).unlink()
    result = exited(program("replay", "orders", "--to-topic", copy, "--yes", "--json", "--on-damage", "skip"), 3)
    told = json.loads(result.stdout)
    assert [(each["from"], each["to"]) for each in told["skipped"]] == [(0, 40)]
    assert program.held(copy) == 140


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gz", "index.json"])
def test_a_job_that_met_damage_is_finished_and_each_report_says_what_it_lacks(
    program: Program, copy: str, root: Path, suffix: str
) -> None:
    lost = next(root.glob(f"topic=orders/partition=00001/*00.{suffix}"))
    body = lost.read_bytes()
    lost.write_bytes(bytes(len(body)))
    named = ("replay", "orders", "--to-topic", copy, "--yes", "--json", "--job", "j")
    exited(program(*named), 3)
    done = json.loads(exited(program(*named, "--resume", "--on-damage", "skip"), 3).stdout)
    assert done["complete"] and program.held(copy) == 140
    ranges = [(each["from"], each["to"]) for each in done["skipped"]]
    assert (ranges[0][0], ranges[-1][1]) == (0, 40)
    lost.write_bytes(body)
    for options in (("--on-damage", "skip"), ()):
        again = json.loads(exited(program(*named, "--resume", *options), 3).stdout)
        assert (again["complete"], again["records"], again["skipped"]) == (True, 0, done["skipped"])
    assert program.held(copy) == 140


def test_nothing_recorded_and_a_target_with_records(program: Program, copy: str, cluster: MockCluster) -> None:
    cluster.produce(copy, 1, records(range(3)))
    result = exited(program("replay", "orders", "--to-topic", copy, "--yes", "--resume"), 2)
    assert "nothing is recorded for job" in result.stderr
    assert program.held(copy) == 3


@pytest.mark.slow
def test_a_pace_is_kept(program: Program, copy: str) -> None:
    result = program("replay", "orders", "--to-topic", copy, "--yes", "--json", "--rate", "360/s", "--speed", "1000x")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["records"] == 180
    assert told["seconds"] >= 0.4
    assert program("verify", "orders", "--against-topic", copy).exit_code == 0


def test_without_a_terminal_it_wants_yes(program: Program, copy: str) -> None:
    result = exited(program("replay", "orders", "--to-topic", copy), 2)
    assert "--yes is not set" in result.stderr
    assert program.held(copy) == 0


@pytest.mark.parametrize(
    ("archived", "has_topic", "refused"),
    [
        ("another", True, None),
        ("another", False, None),
        ("this", False, None),
        ("this", True, "this is the cluster that was archived"),
        ("unknown", True, "this may be the cluster that was archived"),
        ("unknown", False, "this may be the cluster that was archived"),
    ],
)
def test_a_topic_of_the_same_name_elsewhere(
    program: Program, cluster: MockCluster, archived: str, has_topic: bool, refused: str | None
) -> None:
    known = KafkaAdmin({"bootstrap.servers": cluster.bootstrap_servers}).cluster_id
    cluster_id = {"this": known, "another": "another", "unknown": None}[archived]
    topic = f"same-{archived}-{has_topic}"
    writer = ArchiveWriter(program.root)
    writer.partition(topic, 0).commit(records(range(3)))
    info = objects.ArchiveInfo(archive_id=ARCHIVE_ID, cluster_id=cluster_id, layout="topic", inventory=True)
    writer.put(archive_key("topic"), objects.encode(info))
    if has_topic:
        cluster.create_topic(topic)
    told = program("replay", topic, "--to-topic", topic, "--dry-run").stderr.replace("\n", " ")
    if refused is None:
        assert "that was archived" not in told
        assert (f"{topic} -> {topic}, 3 records" if has_topic else f"no topic '{topic}'") in told, told
    else:
        assert re.search(f"that was archived.*{refused}.*second copy.*--into-source.*replayer restore", told), told
        meant = program("replay", topic, "--to-topic", topic, "--into-source", "--dry-run").stderr
        assert "that was archived" not in meant


def test_records_of_others_in_a_topic_of_the_same_name_are_noticed(program: Program, cluster: MockCluster) -> None:
    writer = ArchiveWriter(program.root)
    writer.partition("same-name", 0).commit(records(range(3)))
    info = objects.ArchiveInfo(archive_id=ARCHIVE_ID, cluster_id="another", layout="topic", inventory=True)
    writer.put(archive_key("topic"), objects.encode(info))
    cluster.produce("same-name", 0, records(range(2)))
    told = program("replay", "same-name", "--to-topic", "same-name", "--yes")
    assert (told.exit_code, "is not empty" in told.stderr) == (2, True), told.stderr


@pytest.mark.slow
def test_the_source_itself(program: Program, cluster: MockCluster, root: Path) -> None:
    for partition in range(3):
        cluster.produce("orders", partition, records(range(70)))
    same = succeeded(program("verify", "orders", "--against-topic", "orders"))
    assert "the topic that was archived" in same.stdout
    cluster.produce("orders", 3, [Record(0, 5, 0, None, b"later", ())])
    beside = program("verify", "orders", "--against-topic", "orders", "--json")
    assert (beside.exit_code, json.loads(beside.stdout)["verdict"]) == (0, "WARNING")
    assert "orders:3 holds records" in json.loads(beside.stdout)["warnings"][0]
    ArchiveWriter(root).partition("orders", 4).commit(records(range(5)))
    more = exited(program("verify", "orders", "--against-topic", "orders", "--json"), 3)
    assert json.loads(more.stdout)["partitions"][-1]["missing"] == 5


def test_a_difference_is_shown_on_both_sides(program: Program, cluster: MockCluster, copy: str) -> None:
    made = records(range(60))
    made[7] = made[7]._replace(value=b"something else " * 50)
    cluster.produce(copy, 1, made)
    result = exited(program("verify", "orders:1", "--against-topic", copy), 3)
    assert "first difference in value" in result.stdout
    assert '"value":"value of 7' in result.stdout
    assert "something else" in result.stdout
    assert result.stdout.splitlines()[-1] == "FAILURE"


@pytest.mark.parametrize(
    ("args", "exit_code", "expected"),
    [
        (("replay", "orders", "--to-topic", "nowhere", "--yes"), 2, "no topic 'nowhere'.*--partitions 3"),
        (("replay", "orders", "--to-topic", "orders", "--yes"), 2, "that was archived.*--into-source"),
        (("replay", "orders", "--partitions", "0,2", "--to-topic", "x", "--yes"), 2, "0,2.*orders:0,2-4"),
        (("replay", "orders", "--to-topic", "x", "--topic-config", "a=b", "--yes"), 2, "requires --create-topic"),
        (("replay", "orders", "--to-topic", "x", "--timestamps", "later", "--yes"), 2, "keep, now, or shift="),
        (("replay", "orders", "--to-topic", "x", "--add-header", "a", "--yes"), 2, "NAME=VALUE"),
        (("replay", "nothing", "--to-topic", "x", "--yes"), 4, "topic nothing is not in the archive"),
        (("replay", "orders:9", "--to-topic", "x", "--yes"), 4, "partition 9 of orders"),
        (("replay", "orders", "--to-topic", "x", "-X", "no.such=1", "--yes"), 2, "No such configuration property"),
        (("replay", "orders", "--to-topic", "x", "-X", "acks=1", "--yes"), 2, "no topic|cannot be set"),
        (("replay", "orders"), 2, "--to-topic"),
        (("replay", "orders", "--to-topic", "x", "--rate", "fast"), 2, "not a rate.*5000/s or 20MB/s"),
        (("replay", "orders", "--to-topic", "x", "--speed", "0x"), 2, "not a speed"),
        (("replay", "orders", "--to-topic", "x", "--job", "a/b"), 2, "not a job name"),
        (("replay", "orders", "--to-topic", "x", "--patience", "long"), 2, "--patience"),
        (("verify", "orders", "--against-topic", "nowhere"), 2, "no topic 'nowhere'"),
        (("verify", "orders", "--against-topic", "x", "--deep"), 2, "reads every record anyway"),
        (("verify", "--against-topic", "x"), 2, "compares one archived topic"),
        (("verify", "orders", "--from", "5"), 2, "require --against-topic"),
    ],
)
def test_mistakes(program: Program, args: tuple[str, ...], exit_code: int, expected: str) -> None:
    result = program(*args)
    assert result.exit_code == exit_code, result.stderr
    assert "Traceback" not in result.stderr
    told = result.stderr.replace("\n", " ")
    assert re.search(expected, told), told


def test_too_many_partitions_for_the_target(program: Program, copy: str, root: Path) -> None:
    ArchiveWriter(root).partition("orders", 6).commit(records(range(5)))
    result = exited(program("replay", "orders", "--to-topic", copy, "--yes"), 2)
    assert "it has 4, and partition 6 of orders goes to partition 6" in result.stderr
    assert program.held(copy) == 0


@pytest.mark.slow
def test_no_broker(program: Program) -> None:
    result = exited(program("verify", "orders", "--against-topic", "x", bootstrap_server="127.0.0.1:1"), 1)
    assert "cannot reach a Kafka broker at 127.0.0.1:1" in result.stderr
    assert "Connection refused" in result.stderr


def test_no_address(root: Path) -> None:
    result = CliRunner().invoke(main, ["replay", "orders", "--to-topic", "x", "-a", str(root)], prog_name="replayer")
    assert result.exit_code == 2
    assert "-b/--bootstrap-server is missing" in result.stderr and "BLOCKGZ_BOOTSTRAP_SERVER" in result.stderr


@pytest.mark.slow
def test_a_plan_says_what_was_read_to_find_the_cuts(program: Program, copy: str) -> None:
    writer = ArchiveWriter(program.root).partition("skewed", 0)
    stamps = [1_760_000_000_000 + 9_000 * (n % 5 == 0) for n in range(600)]
    writer.commit(records(range(600), timestamps=stamps), block_bytes=1000)
    args = ("replay", "skewed", "--to-topic", copy, "--at", "@1760000005", "--at-rule", "majority")
    assert "it is not certain which records of skewed:0" in program(*args[:6], "--yes").stderr
    planned = succeeded(program(*args, "--dry-run", "--json"))
    assert json.loads(planned.stdout)["plan"]["cut_bytes"] > 0
    assert "of blocks to find the cuts" in program(*args, "--dry-run").stderr
    assert program(*args, "--yes").exit_code == 0
    compared = succeeded(program("verify", "skewed", "--against-topic", copy, *args[4:]))
    assert "warning: skewed:0  ends before offset 600" in compared.stderr


LONGEST = "x" * 249
"""The longest name that Kafka allows a topic."""


@pytest.mark.slow
def test_the_longest_topic_created_twice(tmp_path: Path, cluster: MockCluster, copy: str) -> None:
    """`topic=` and this name fill a file name: the second incarnation has a name of another form."""
    writer, store = ArchiveWriter(tmp_path), LocalStore(tmp_path)
    assert find_incarnation(store, layout="topic", topic=LONGEST, topic_id="id-1") == TopicFolder(LONGEST)
    assert find_incarnation(store, layout="topic", topic=LONGEST, topic_id="id-2") == TopicFolder(LONGEST, 2)
    older = writer.partition(LONGEST, 0)
    older.commit(records(range(40)))
    older.hand_over(f"{LONGEST}~2")
    newer = writer.partition(LONGEST, 0, incarnation=2)
    for start in range(0, 130, 2):  # enough chunks for a catalog
        newer.commit(records(range(start, start + 2)))
    program = Program(tmp_path, cluster)

    def reading(*args: str) -> str:
        return succeeded(CliRunner().invoke(main, [*args, "-a", str(tmp_path)], prog_name="replayer")).stdout

    for name, offset in ((LONGEST, 100), (f"{LONGEST}~1", 37)):
        assert f"value of {offset} " in reading("get", f"{name}:0:{offset}")
    assert reading("verify", "--deep").splitlines()[-1] == "OK"
    job = "j" * 100
    told = succeeded(program("replay", LONGEST, "--to-topic", copy, "--job", job, "--yes", "--json"))
    assert json.loads(told.stdout)["records"] == 130
    succeeded(program("verify", "--job", job))
    orphan = newer.keys.home + "00000000000000000001.gz"
    writer.put(orphan, b"left behind")
    with patch.object(store, "clock", lambda: time.time() + 10_000):
        for patterns in ([], [LONGEST], ["xx*"]):
            plan = plan_sweep(store, patterns, 3600)
            assert not plan.problems and [each.listed.key for each in plan.garbage] == [orphan]
        assert len(PlannedDrop(store, str(tmp_path), LONGEST, 0).folders) == 2
