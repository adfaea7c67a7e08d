"""The infrastructure of the system tests does what its contracts say."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from system_test.support.compaction import ROLL_KEY, compact_and_wait, create_compacted_topic
from system_test.support.corpus import corpus, package_stanzas
from system_test.support.environment import filled_once
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer, ObjectStore, VersityGateway
from system_test.support.programs import ProgramFailedError, run, start
from system_test.support.spark_environments import DELTA, ICEBERG, ROOT
from system_test.support.topics import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NewRecord,
    Transactions,
    create_topic,
    delete_records,
    last_stable_offset,
    produce,
    read,
    watermarks,
)
from system_test.support.waiting import DeadlineExceededError, wait_until

ODDITIES = [
    NewRecord(b"plain", key=b"k", timestamp=1_700_000_000_000),
    NewRecord(b"null key", timestamp=1_700_000_000_500),
    NewRecord(None, key=b"tombstone", timestamp=1_600_000_000_000),
    NewRecord(b"", key=b"", timestamp=0),
    NewRecord(None, timestamp=1),
    NewRecord(bytes(range(256)) + b"\n\0\xff\xfe", key=b"\x80", timestamp=1_700_000_000_001),
    NewRecord(b"h", headers=(("a", b"1"), ("a", b"2"), ("", b""), ("ключ", b"\xff")), timestamp=2),
    NewRecord(b"h", key=b"null header", headers=(("none", None), ("none", b""), ("none", None)), timestamp=3),
    NewRecord(b"last", timestamp=1_700_000_000_002),
]


def test_every_oddity_survives_the_round_trip(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name, partitions=2)
    assert produce(broker.bootstrap, topic_name, ODDITIES) == list(range(len(ODDITIES)))
    found = read(broker.bootstrap, topic_name)
    assert [(r.value, r.key, r.headers, r.timestamp) for r in found] == [
        (r.value, r.key, r.headers, r.timestamp) for r in ODDITIES
    ]
    assert {r.timestamp_type for r in found} == {CREATE_TIME}
    assert read(broker.bootstrap, topic_name, 1) == []


def test_compressed_and_big_records(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name, config={"max.message.bytes": str(32 << 20)})
    records = [NewRecord(b"x" * (10 << 20)), NewRecord(b"y" * 1000), NewRecord(b"z")]
    produce(broker.bootstrap, topic_name, records, compression="gzip")
    assert [r.value for r in read(broker.bootstrap, topic_name)] == [r.value for r in records]


def test_log_append_time_is_the_brokers(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name, config={"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap, topic_name, [NewRecord(b"v", timestamp=5)])
    (record,) = read(broker.bootstrap, topic_name)
    assert record.timestamp_type == LOG_APPEND_TIME
    assert record.timestamp > 1_600_000_000_000


def test_aborted_records_are_invisible_when_reading_committed(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name)
    with Transactions(broker.bootstrap, topic_name) as transactions:
        assert transactions.commit(topic_name, [NewRecord(b"c0"), NewRecord(b"c1")]) == [0, 1]
        assert transactions.abort(topic_name, [NewRecord(b"a")]) == [3]
        assert transactions.commit(topic_name, [NewRecord(b"c2")]) == [5]
        assert transactions.abort(topic_name, [NewRecord(b"b")]) == [7]
        assert [(r.offset, r.value) for r in read(broker.bootstrap, topic_name)] == [(0, b"c0"), (1, b"c1"), (5, b"c2")]
        assert [r.offset for r in read(broker.bootstrap, topic_name, committed=False)] == [0, 1, 3, 5, 7]
        assert watermarks(broker.bootstrap, topic_name) == (0, 9)
        transactions.begin(topic_name, [NewRecord(b"undecided")])
        assert last_stable_offset(broker.bootstrap, topic_name) == 9
        assert watermarks(broker.bootstrap, topic_name) == (0, 10)
        assert [r.offset for r in read(broker.bootstrap, topic_name)] == [0, 1, 5]


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_compaction_leaves_holes(broker: KafkaBroker, topic_name: str, timestamp_type: str) -> None:
    create_compacted_topic(broker.bootstrap, topic_name, timestamp_type=timestamp_type)
    produce(broker.bootstrap, topic_name, [NewRecord(b"%d" % i, key=b"%d" % (i % 3), timestamp=i) for i in range(20)])
    left = compact_and_wait(broker.bootstrap, topic_name)
    assert [r.offset for r in left] == [17, 18, 19, 20]
    assert left[-1].key == ROLL_KEY
    assert watermarks(broker.bootstrap, topic_name) == (0, 21)


def test_deleted_records_raise_the_low_watermark(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name)
    produce(broker.bootstrap, topic_name, [NewRecord(b"%d" % i) for i in range(10)])
    delete_records(broker.bootstrap, topic_name, before=4)
    assert watermarks(broker.bootstrap, topic_name) == (4, 10)
    assert [r.offset for r in read(broker.bootstrap, topic_name)] == list(range(4, 10))


def test_a_killed_broker_comes_back_with_its_data(broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name)
    produce(broker.bootstrap, topic_name, [NewRecord(b"before")])
    broker.kill()
    assert not broker.running
    broker.start()
    produce(broker.bootstrap, topic_name, [NewRecord(b"after")])
    assert [r.value for r in read(broker.bootstrap, topic_name)] == [b"before", b"after"]


def refusal(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


def check_conditional_writes(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/a/key"
    first = store.client.put_object(Bucket=store.bucket, Key=key, Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as exists:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=b"2", IfNoneMatch="*")
    assert refusal(exists.value) == 412
    store.client.put_object(Bucket=store.bucket, Key=key, Body=b"3", IfMatch=first["ETag"])
    with pytest.raises(ClientError) as stale:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=b"4", IfMatch=first["ETag"])
    assert refusal(stale.value) == 412
    assert store.keys(f"{prefix}/") == [key]
    assert store.read(key) == b"3"


def check_race_has_one_winner(store: ObjectStore, key: str) -> None:
    def attempt(number: int) -> int:
        try:
            store.client.put_object(Bucket=store.bucket, Key=key, Body=b"%d" % number, IfNoneMatch="*")
        except ClientError as error:
            return refusal(error)
        return 200

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attempt, range(32)))
    assert answers.count(200) == 1
    assert set(answers) <= {200, 409, 412}


def test_moto_refuses_conditional_writes(moto: MotoServer, topic_name: str) -> None:
    check_conditional_writes(moto, topic_name)


def test_versitygw_refuses_conditional_writes(versitygw: VersityGateway, topic_name: str) -> None:
    check_conditional_writes(versitygw, topic_name)
    check_race_has_one_winner(versitygw, f"{topic_name}/race")


def test_versitygw_keeps_objects_over_a_kill(versitygw: VersityGateway, topic_name: str) -> None:
    versitygw.client.put_object(Bucket=versitygw.bucket, Key=topic_name, Body=b"kept")
    versitygw.kill()
    versitygw.start()
    assert versitygw.read(topic_name) == b"kept"


def test_the_corpus_is_stanzas() -> None:
    stanzas = package_stanzas()
    assert all(stanza.startswith(b"Package: ") and b"\n\n" not in stanza for stanza in stanzas)
    assert len(corpus(len(stanzas) + 7)) == len(stanzas) + 7


def test_programs_report_command_and_output() -> None:
    done = run("python", "-c", "import os; print(os.environ['WORD'])", env={"WORD": "hello"})
    assert (done.exit_code, done.stdout) == (0, "hello\n")
    with pytest.raises(ProgramFailedError, match=r"(?s)expected exit code 0, got 3.*\$ .*python.*said why"):
        run("python", "-c", "import sys; sys.exit(print('said why', file=sys.stderr) or 3)")
    assert run("python", "-c", "raise SystemExit(3)", check=None).exit_code == 3


def test_running_programs_are_awaited_and_ended() -> None:
    with start("python", "-u", "-c", "print('ready'); input_ = __import__('signal').pause()") as running:
        assert running.wait_for(lambda: "ready" in running.stdout, 30, "its word")
        assert running.terminate().exit_code == -15
    with (
        start("python", "-c", "print('gone')") as ended,
        pytest.raises(ProgramFailedError, match=r"(?s)ended with 0 before the impossible.*gone"),
    ):
        ended.wait_for(lambda: False, 30, "the impossible")


def test_an_interrupted_fill_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled_once(tmp_path / "jars", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [".jars.lock"]
    assert (filled_once(tmp_path / "jars", lambda folder: (folder / "whole").touch()) / "whole").exists()


def test_waiting_has_an_end() -> None:
    with pytest.raises(DeadlineExceededError, match="in vain for a miracle"):
        wait_until(lambda: False, 0.02, "a miracle")


def test_recipes_name_the_versions_that_they_are_tried_with() -> None:
    page = (ROOT / "docs" / "spark-lakehouse.md").read_text()
    for name, artifact in (("delta_from_archive", DELTA), ("changes_merged", DELTA), ("iceberg_from_archive", ICEBERG)):
        command = f"spark-submit --packages {artifact[0]} {name}.py"
        assert command in page
        assert command in (ROOT / "docs" / "examples" / f"{name}.py").read_text()
