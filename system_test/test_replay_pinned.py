"""Replays whose target or source changes under them, on a real broker: they end and say so, or go on rightly."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.bulk import FIRST_MS
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, start
from system_test.support.topics import NewRecord, create_topic, delete_topic, produce, read, watermarks
from tests.support.sampling import in_long_run, mostly_long

RECORDS = 3000
MODES = pytest.mark.parametrize("mode", mostly_long([("--transactional",), ()]), ids=["transactional", "idempotent"])


@pytest.fixture
def copy(site: Site, topic_name: str) -> str:
    """An archived topic of two partitions, and an empty one to replay it to."""
    create_topic(site.bootstrap, topic_name, 2)
    archive_more(site, topic_name, 0)
    create_topic(site.bootstrap, f"{topic_name}-copy", 2)
    return f"{topic_name}-copy"


def archive_more(site: Site, topic: str, first: int) -> None:
    made = [NewRecord(b"%d" % n, b"k", n % 2, timestamp=FIRST_MS + n) for n in range(first, first + RECORDS)]
    produce(site.bootstrap, topic, made)
    site.once(topic)


def replaying(site: Site, topic: str, copy: str, *options: str) -> Running:
    fixed = ("replay", topic, "--to-topic", copy, "--yes", "--json", "-X", "compression.type=gzip")
    return start("replayer", *fixed, *options, *site.kafka, *site.archive, env=site.env)


def logged(site: Site, copy: str) -> int:
    return sum(watermarks(site.bootstrap, copy, partition)[1] for partition in range(2))


def values(site: Site, topic: str, partition: int) -> list[bytes | None]:
    return [record.value for record in read(site.bootstrap, topic, partition)]


def created_again(site: Site, copy: str) -> None:
    delete_topic(site.bootstrap, copy)
    create_topic(site.bootstrap, copy, 2)


@MODES
def test_a_target_created_again_under_a_replay(site: Site, topic_name: str, copy: str, mode: tuple[str, ...]) -> None:
    with replaying(site, topic_name, copy, *mode, "--rate", "300/s") as replay:
        replay.wait_for(lambda: logged(site, copy) > 200, 60, "some records")
        created_again(site, copy)
        done = replay.wait(120).expect(1)
    assert "was deleted while the job wrote to it" in done.stderr
    assert '"complete":true' not in done.stdout


@MODES
def test_a_target_created_again_before_a_resume(site: Site, topic_name: str, copy: str, mode: tuple[str, ...]) -> None:
    named = (*mode, "--job", topic_name)
    with replaying(site, topic_name, copy, *named, "--rate", "300/s") as replay:
        replay.wait_for(lambda: logged(site, copy) > 200, 60, "some records")
        replay.signal(signal.SIGTERM)
        replay.wait(60).expect(143)
    created_again(site, copy)
    for more in (("--resume",), ()):
        done = replaying(site, topic_name, copy, *named, *more).wait(60).expect(1)
        assert f"is not the one that job {topic_name} wrote to" in done.stderr
    assert logged(site, copy) == 0


def test_a_target_that_lost_records_before_a_resume(site: Site, topic_name: str, copy: str) -> None:
    """As after an unclean leader election: the topic is the same, and ends below what was written."""
    named = ("--job", topic_name)
    with replaying(site, topic_name, copy, *named, "--rate", "300/s") as replay:
        replay.wait_for(lambda: logged(site, copy) > 200, 60, "some records")
        replay.signal(signal.SIGTERM)
        replay.wait(60).expect(143)
    segment = max((Path(site.env["XDG_STATE_HOME"]) / "blockgz" / "jobs" / topic_name / "runs").iterdir())
    told = json.loads(segment.read_bytes())
    told.pop("crc32")
    run = told["runs"][-1]
    run[4] += 100_000
    segment.write_bytes(json.dumps(told, separators=(",", ":")).encode())
    done = replaying(site, topic_name, copy, *named, "--resume").wait(60).expect(1)
    assert "lacks records that this job wrote to it" in done.stderr


@MODES
def test_a_source_archived_anew_before_a_resume(site: Site, topic_name: str, copy: str, mode: tuple[str, ...]) -> None:
    """The job goes on with the incarnation that it began with."""
    wanted = {partition: values(site, topic_name, partition) for partition in range(2)}
    named = (*mode, "--job", topic_name)
    with replaying(site, topic_name, copy, *named, "--rate", "300/s") as replay:
        replay.wait_for(lambda: logged(site, copy) > 200, 60, "some records")
        replay.signal(signal.SIGTERM)
        replay.wait(60).expect(143)
    created_again(site, topic_name)
    archive_more(site, topic_name, 100_000)
    result = json.loads(replaying(site, topic_name, copy, *named, "--resume").wait(60).expect(0).stdout)
    assert result["complete"]
    assert {partition: values(site, copy, partition) for partition in range(2)} == wanted


@in_long_run
def test_a_broker_that_hangs_for_28_seconds(site: Site, broker: KafkaBroker, topic_name: str, copy: str) -> None:
    """No other run began: the replay goes on, whatever late requests of its own do to its producers."""
    with replaying(site, topic_name, copy, "--transactional", "--rate", "400/s") as replay:
        replay.wait_for(lambda: logged(site, copy) > 200, 60, "some records")
        broker.pause()
        try:
            time.sleep(28)
        finally:
            broker.resume()
        result = json.loads(replay.wait(120).expect(0).stdout)
    assert result["complete"]
    for partition in range(2):
        assert values(site, copy, partition) == values(site, topic_name, partition)


def test_a_job_whose_folder_is_missing_is_not_resumed(site: Site, topic_name: str, copy: str, tmp_path: Path) -> None:
    named = ("--transactional", "--job", topic_name, "--resume")
    replaying(site, topic_name, copy, *named).wait(60).expect(0)
    done = replaying(site, topic_name, copy, *named, "--jobs", str(tmp_path / "elsewhere")).wait(60).expect(2)
    assert f"the folder of job {topic_name} is missing" in done.stderr
