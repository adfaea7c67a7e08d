"""Look-ups on what a real broker gave: kcat's own output as the judge of ours, and following an archive that grows."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.contents import CONTENTS, HEADERS
from system_test.support.programs import start
from system_test.support.topics import NewRecord, Transactions, create_topic, delete_topic, fill_topic, produce
from system_test.test_semantics import numbered

REPLAYER = str(Path(sys.executable).parent / "replayer")
TEMPLATE = r"%t %p %o %T|%k|%K|%s|%S|%R|%h|100%% \x41\102\0102\xa\q\t\r\\" + "é\\n"


def output(*command: str) -> bytes:
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def nasty(broker_site: Site) -> str:
    """A topic with everything a record can be."""
    topic = "kcat-nasty"
    create_topic(broker_site.bootstrap, topic)
    records = [NewRecord(value, timestamp=1_000 + n) for n, value in enumerate(CONTENTS)]
    records += [NewRecord(b"v", key=key, timestamp=2_000) for key in CONTENTS]
    records += [NewRecord(b"v", headers=headers) for headers in HEADERS]
    records += [NewRecord(b"v", headers=(("h", value),)) for value in CONTENTS]
    records.append(NewRecord(None))
    produce(broker_site.bootstrap, topic, records)
    broker_site.once(topic)
    return topic


class TestKcat:
    """Debian's kcat reads the topic, the replayer the archive; both must print the same bytes."""

    @pytest.mark.parametrize("how", [("-J",), ("-f", TEMPLATE), ("-f", "%s\n")], ids=["envelope", "all", "value"])
    def test_the_same_bytes(self, broker_site: Site, kcat: str, nasty: str, how: tuple[str, ...]) -> None:
        consume = ("-b", broker_site.bootstrap, "-C", "-t", nasty, "-p", "0", "-o", "beginning", "-e", "-q")
        expected = output(kcat, *consume, *how)
        # Which broker led the partition is not in an archive; kcat itself says -1 where it does not know.
        expected = re.sub(rb'(?m)^(\{"topic":"kcat-nasty".{0,70}"broker":)1,', rb"\1-1,", expected)
        assert len(expected.splitlines()) >= 2 * len(CONTENTS)
        assert output(REPLAYER, "cat", nasty, *broker_site.archive, *how) == expected

    def test_log_append_time(self, broker_site: Site, kcat: str) -> None:
        topic = "kcat-stamped"
        fill_topic(broker_site.bootstrap, topic, numbered(0, 5), config={"message.timestamp.type": "LogAppendTime"})
        broker_site.once(topic)
        for how in (("-J",), ("-f", TEMPLATE)):
            consume = ("-b", broker_site.bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q")
            expected = output(kcat, *consume, *how).replace(b'"broker":1,', b'"broker":-1,')
            assert output(REPLAYER, "cat", topic, *broker_site.archive, *how) == expected
        assert b'"tstype":"logappend"' in output(REPLAYER, "cat", topic, *broker_site.archive, "-J")


def test_following_an_archive_that_grows(site: Site, topic_name: str) -> None:
    """Records appear once they are committed, also those of a topic that is created again, until SIGINT: exit 130."""
    fill_topic(site.bootstrap, topic_name, numbered(0, 5))
    site.once(topic_name)
    options = ("--interval", "100ms", *site.archive)
    shown = ("-f", "%o:%s\n")
    with (
        start("replayer", "tail", topic_name, "-n", "2", "--follow", *shown, *options) as tail,
        start("replayer", "get", f"{topic_name}:0:7", f"{topic_name}:0:1", "--follow", *shown, *options) as get,
    ):
        tail.wait_for(lambda: tail.stdout == "3:3\n4:4\n", 30, "the newest records")
        produce(site.bootstrap, topic_name, numbered(5, 7))
        site.once(topic_name)
        tail.wait_for(lambda: tail.stdout.endswith("4:4\n5:5\n6:6\n"), 30, "the first commit")
        assert get.alive, "offset 7 is not archived yet"
        produce(site.bootstrap, topic_name, numbered(7, 40))
        site.once(topic_name, "--chunk-records", "10")
        tail.wait_for(lambda: tail.stdout.endswith("\n38:38\n39:39\n"), 30, "several chunks at once")
        assert get.wait(30).expect(0).stdout == "7:7\n1:1\n"
        delete_topic(site.bootstrap, topic_name)
        fill_topic(site.bootstrap, topic_name, [NewRecord(b"again")])
        site.once(topic_name)
        tail.wait_for(lambda: tail.stdout.endswith("39:39\n0:again\n"), 30, "the topic that was created again")
        tail.signal(signal.SIGINT)
        done = tail.wait(30).expect(130)
    assert done.stdout.split() == [*(f"{n}:{n}" for n in range(3, 40)), "0:again"]
    assert done.stderr == f"partition {topic_name}:0 continues as {topic_name}~2:0: the topic was created again\n"


def test_the_newest_record_and_a_replay_from_there(site: Site, topic_name: str) -> None:
    """The last offsets of a transactional topic hold no record; a topic is written to as soon as it is made."""
    create_topic(site.bootstrap, topic_name)
    with Transactions(site.bootstrap, topic_name) as transactions:
        offsets = transactions.commit(topic_name, numbered(0, 50))
        transactions.abort(topic_name, numbered(50, 60))
    site.once(topic_name)
    for position in ("-1", "latest", "-3"):
        assert site.replayer("get", f"{topic_name}:0:{position}", "-f", "%o:%s").stdout == f"{offsets[-1]}:49", position
    copy = f"{topic_name}-copy"
    asked = ("--from", "17", "--to-topic", copy, "--create-topic", "--yes", "--json")
    told = json.loads(site.replayer("replay", topic_name, *asked, *site.kafka).stdout)
    (lane,), plan = told["partitions"], told["plan"]
    assert (plan["records"], plan["partitions"][0]["records"], told["records"]) == (33, 33, 33), "exact in a cut block"
    assert (lane["from"], lane["to"], lane["target_from"], lane["target_to"]) == (17, 50, 0, 33)
    assert (plan["requests"], plan["stored_bytes"] > 0, plan["partitions"][0]["from"]) == (2, True, 17)
