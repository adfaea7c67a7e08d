"""Every error that a newcomer makes in the first ten minutes: what is typed, how it ends, and what is said.

Each mistake ends with a documented exit code, within a deadline, and with three lines on stderr: what happened, why,
and what to do. In the commands, words in braces stand for what `place` prepares; a setting before the program is one of
its environment.
"""

import re
import shlex
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from system_test.support.archiving import folder_site
from system_test.support.environment import free_port
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.programs import Completed, run
from system_test.support.topics import NewRecord, create_topic, produce
from tests.support.sampling import LONG

AT_ONCE, AFTER_TRYING = 8.0, 20.0
"""What it takes at most, in seconds: what needs no server, and what a server must be asked first.

On a busy machine it may take four times as long."""

AT_A_TIME = 3

FAILED, USAGE, NOT_IN_ARCHIVE, NO_ARCHIVE, NOT_PERMITTED = 1, 2, 4, 10, 12


class Mistake(NamedTuple):
    """A command, the exit code it ends with, and words that its three lines have among others."""

    command: str
    exit_code: int
    words: tuple[str, ...]
    seconds: float = AFTER_TRYING


def usage(command: str, *words: str) -> Mistake:
    return Mistake(command, USAGE, words, AT_ONCE)


ARCHIVER_COMMAND_LINE = [
    usage("archiver rum", "rum", "archiver --help"),
    usage("archiver run orders -b {broker} -a {new} --onec", "--onec", "--once"),
    usage("archiver run -b {broker} -a {new} --once", "TOPIC"),
    usage("archiver run orders -a {new} --once", "-b"),
    usage("archiver run orders -b {broker} --once", "-a"),
    usage("archiver run or/ders -b {broker} -a {new} --once", "or/ders", "Kafka allows"),
    usage("archiver run orders -b {broker} -a {new} --chunk-bytes 12XB", "12XB", "MiB"),
    usage("archiver run orders -b {broker} -a {new} --chunk-bytes=-1", "-1"),
    usage("archiver run orders -b {broker} -a {new} --chunk-interval 5x", "5x", "ms"),
    usage("archiver run orders -b {broker} -a {new} --chunk-interval 0s", "0s"),
    usage("archiver run orders -b {broker} -a {new} --chunk-records many", "many"),
    usage("archiver run orders -b {broker} -a {new} --chunk-records 0", "chunk-records"),
    usage("archiver run orders -b {broker} -a {new} --memory 1MiB", "memory"),
    usage("archiver run orders -b {broker} -a {new} --gzip-level 6", "gzip levels 0 to 3", "gzip_library to zlib"),
    usage("archiver run orders -b {broker} -a {new} --record-format xml", "xml", "json"),
    usage("archiver run orders -b {broker} -a {new} --layout seed", "seed", "text"),
    usage("archiver run orders -b {broker} -a {new} -X security.protocol", "security.protocol", "NAME=VALUE"),
    usage("archiver run orders -b {broker} -a {new} -X no.such.property=1 --once", "no.such.property"),
    usage("archiver run orders -b {broker} -a {new} -X fetch.wait.max.ms=soon --once", "fetch.wait.max.ms"),
    usage("archiver run orders -b {broker} -a {new} -X group.id=mine --once", "group.id", "group_id"),
    usage("archiver run orders -b {broker} -a {new} -X enable.auto.commit=true --once", "enable.auto.commit", "marker"),
    usage("archiver run orders -b {broker} -a bucket/prefix --once", "bucket/prefix", "s3://bucket/prefix"),
    usage("archiver run orders -b {broker} -a ftp://host/dir --once", "ftp", "s3://bucket/prefix"),
    usage("archiver run orders -b {broker} -a s3:// --once", "s3://", "bucket"),
    usage("archiver run orders -b {broker} -a file://dir/archive --once", "file://dir/archive", "three slashes"),
    usage(
        "archiver run {topic} -b {broker} -a s3://archive/new --endpoint-url localhost:9000 --once", "localhost:9000"
    ),
    usage("archiver demo --keep {archive}", "{archive}", "not empty"),
]

ARCHIVER_AND_KAFKA = [
    Mistake("archiver run orders -b {nobody} -a {new} --once", FAILED, ("{nobody}", "-b")),
    Mistake("archiver run orders -b no-such-host.invalid:9092 -a {new} --once", FAILED, ("no-such-host.invalid", "-b")),
    Mistake("archiver run orders -b {nobody} -a {new}", FAILED, ("{nobody}",)),
    Mistake("archiver run orders -b {s3-address} -a {new} --once", FAILED, ("{s3-address}",)),
    Mistake("archiver run orders -b {broker} -a {new} --once -X security.protocol=SSL", FAILED, ("{broker}",)),
    Mistake("archiver run no-such-topic -b {broker} -a {new} --once", USAGE, ("no-such-topic", "{topic}")),
    Mistake("archiver status -b {nobody} -a {archive}", FAILED, ("{nobody}", "-b")),
    Mistake("archiver demo -b {nobody}", FAILED, ("{nobody}", "-b")),
]

ARCHIVER_AND_STORE = [
    Mistake("archiver run {topic} -b {broker} -a /proc/archive --once", FAILED, ("/proc/archive",)),
    Mistake("archiver run {topic} -b {broker} -a {file}/archive --once", FAILED, ("{file}/archive",)),
    Mistake("archiver run {topic} -b {broker} -a {new} --buffer-dir {file}/buffer --once", FAILED, ("{file}/buffer",)),
    Mistake("archiver run {topic} -b {broker} -a s3://no-such-bucket/x {s3} --once", FAILED, ("no-such-bucket",)),
    Mistake(
        "AWS_SECRET_ACCESS_KEY=wrong archiver run {topic} -b {broker} -a s3://archive/x {s3} --once",
        NOT_PERMITTED,
        ("s3://archive/x", "SignatureDoesNotMatch"),
    ),
    Mistake(
        "AWS_ACCESS_KEY_ID= AWS_SECRET_ACCESS_KEY= archiver run {topic} -b {broker} -a s3://archive/x {s3} --once",
        NOT_PERMITTED,
        ("credentials", "AWS_ACCESS_KEY_ID"),
    ),
    Mistake(
        "archiver run {topic} -b {broker} -a s3://archive/x --endpoint-url http://{nobody} --once",
        FAILED,
        ("http://{nobody}", "--endpoint-url"),
    ),
    Mistake(
        "archiver run {topic} -b {broker} -a s3://archive/x --endpoint-url http://{broker} --once",
        FAILED,
        ("http://{broker}", "--endpoint-url"),
    ),
]

REPLAYER_COMMAND_LINE = [
    usage("replayer fetch {topic}:0:0 -a {archive}", "fetch", "replayer --help"),
    usage("replayer get {topic}:0:0", "-a"),
    usage("replayer get {topic}:0:0 -a {archive} --stat", "--stat", "--stats"),
    usage("replayer get {topic}:0 -a {archive}", "{topic}:0", "orders:3:17"),
    usage("replayer get {topic}:zero:0 -a {archive}", "{topic}:zero:0", "orders:3:17"),
    usage("replayer get {topic}:0:0 -a {archive} --max-block-bytes big", "big", "MiB"),
    usage("replayer get {topic}:0:0 -a archive", "'archive'", "./dir"),
    usage("replayer cat {topic} --from yesterday -a {archive}", "yesterday"),
    usage("replayer cat {topic} --at 17:00 -a {archive}", "17:00"),
    usage("replayer cat {topic} --to 5 --at -1h -a {archive}", "--to", "--at"),
    usage("replayer cat {topic}:a-b -a {archive}", "a-b", "0,2-4"),
    usage("replayer cat {topic} -n ten -a {archive}", "ten"),
    usage("replayer cat {topic} -f %q -a {archive}", "%q"),
    usage("replayer cat {topic} -J --json -a {archive}", "-J", "--json"),
    usage("replayer replay {topic} -b {broker} -a {archive}", "--to-topic"),
    usage("replayer replay {topic} --to-topic {copy} -a {archive}", "-b"),
    usage("replayer replay {topic} --to-topic {copy} -b {broker} -X acks -a {archive}", "acks"),
    usage("replayer replay {topic} --to-topic {copy} -b {broker} -X no.such=1 -a {archive} --yes", "no.such"),
    usage("replayer verify --against-topic {copy} -b {broker} -a {archive}", "--against-topic"),
]

REPLAYER_AND_ARCHIVE = [
    Mistake("replayer get {topic}:0:0 -a {new}", NO_ARCHIVE, ("{new}",)),
    Mistake("replayer cat {topic} -a {empty}", NO_ARCHIVE, ("{empty}",)),
    Mistake("replayer ls -a {empty}", NO_ARCHIVE, ("{empty}",)),
    Mistake("replayer describe {topic} -a {file}", NO_ARCHIVE, ("{file}",)),
    Mistake("replayer verify -a {empty}", NO_ARCHIVE, ("{empty}",)),
    Mistake("replayer replay {topic} --to-topic {copy} --yes -b {broker} -a {empty}", NO_ARCHIVE, ("{empty}",)),
    Mistake("replayer ls -a s3://archive/nothing-here {s3}", NO_ARCHIVE, ("s3://archive/nothing-here",)),
    Mistake("replayer get {topic}:0:0 -a s3://archive/nothing-here {s3}", NO_ARCHIVE, ("s3://archive/nothing-here",)),
    Mistake("replayer get no-such-topic:0:0 -a {archive}", NOT_IN_ARCHIVE, ("no-such-topic",)),
    Mistake("replayer get {topic}:7:0 -a {archive}", NOT_IN_ARCHIVE, ("{topic}", "partition")),
    Mistake("replayer get {topic}:0:4711 -a {archive}", NOT_IN_ARCHIVE, ("{topic}:0:4711", "not archived yet")),
    Mistake("replayer cat no-such-topic -a {archive}", NOT_IN_ARCHIVE, ("no-such-topic",)),
    Mistake("replayer cat {topic}:7 -a {archive}", NOT_IN_ARCHIVE, ("{topic}", "7")),
    Mistake("replayer describe no-such-topic -a {archive}", NOT_IN_ARCHIVE, ("no-such-topic",)),
    Mistake("replayer verify no-such-topic -a {archive}", NOT_IN_ARCHIVE, ("no-such-topic",)),
    Mistake(
        "replayer replay no-such-topic --to-topic {copy} --yes -b {broker} -a {archive}", NOT_IN_ARCHIVE, ("no-such",)
    ),
    Mistake("replayer ls -a s3://no-such-bucket/x {s3}", NO_ARCHIVE, ("no-such-bucket",)),
    Mistake(
        "AWS_SECRET_ACCESS_KEY=wrong replayer ls -a s3://archive/x {s3}",
        NOT_PERMITTED,
        ("s3://archive/x", "SignatureDoesNotMatch", "renew the credentials"),
    ),
    Mistake(
        "AWS_ACCESS_KEY_ID= AWS_SECRET_ACCESS_KEY= replayer get {topic}:0:0 -a s3://archive/x {s3}",
        NOT_PERMITTED,
        ("credentials", "AWS_ACCESS_KEY_ID"),
    ),
    Mistake(
        "replayer get {topic}:0:0 -a s3://archive/x --endpoint-url http://{nobody}",
        FAILED,
        ("http://{nobody}", "--endpoint-url"),
    ),
]

REPLAYER_AND_KAFKA = [
    Mistake("replayer replay {topic} --to-topic {copy} --yes -b {nobody} -a {archive}", FAILED, ("{nobody}", "-b")),
    Mistake("replayer replay {topic} --to-topic {copy} -b {broker} -a {archive}", USAGE, ("{copy}", "--yes")),
    Mistake(
        "replayer replay {topic} --to-topic {topic} --yes -b {broker} -a {archive}", USAGE, ("{topic}", "--into-source")
    ),
    Mistake(
        "replayer replay {topic} --to-topic missing --yes -b {broker} -a {archive}", USAGE, ("missing", "--create")
    ),
    Mistake(
        "replayer replay {topic} --to-topic {small} --yes -b {broker} -a {archive}",
        USAGE,
        ("{small}", "too few partitions"),
    ),
    Mistake(
        "replayer replay {topic} --to-topic {short} --yes -b {broker} -a {archive}", USAGE, ("{short}", "retention.ms")
    ),
    Mistake(
        "replayer replay {topic} --to-topic {stamped} --yes -b {broker} -a {archive}",
        USAGE,
        ("{stamped}", "LogAppendTime"),
    ),
    Mistake("replayer verify {topic} --against-topic missing -b {broker} -a {archive}", USAGE, ("missing",)),
    Mistake("replayer verify {topic} --against-topic {topic} -b {nobody} -a {archive}", FAILED, ("{nobody}", "-b")),
]

MISTAKES = [
    *ARCHIVER_COMMAND_LINE,
    *ARCHIVER_AND_KAFKA,
    *ARCHIVER_AND_STORE,
    *REPLAYER_COMMAND_LINE,
    *REPLAYER_AND_ARCHIVE,
    *REPLAYER_AND_KAFKA,
]

Place = dict[str, str]


@pytest.fixture(scope="module")
def place(broker: KafkaBroker, versitygw: VersityGateway, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A topic of two partitions and its archive, topics that it does not fit into, and addresses where nothing is."""
    folder = tmp_path_factory.mktemp("newcomer")
    token = uuid.uuid4().hex[:6]
    topic, copy, small, short, stamped = (f"{name}-{token}" for name in ("sales", "copy", "small", "short", "stamped"))
    for name in (topic, copy):
        create_topic(broker.bootstrap, name, 2)
    create_topic(broker.bootstrap, small, 1)
    create_topic(broker.bootstrap, short, 2, {"retention.ms": "86400000"})
    create_topic(broker.bootstrap, stamped, 2, {"message.timestamp.type": "LogAppendTime"})
    records = [NewRecord(b"%d" % n, partition=n % 2, timestamp=1_500_000_000_000) for n in range(10)]
    produce(broker.bootstrap, topic, records)
    site = folder_site(broker.bootstrap, folder / "archive")
    site.once(topic)
    (folder / "file").touch()
    (folder / "empty").mkdir()
    return {
        "broker": broker.bootstrap,
        "nobody": f"127.0.0.1:{free_port()}",
        "s3": f"--endpoint-url {versitygw.endpoint_url}",
        "s3-address": versitygw.endpoint_url.removeprefix("http://"),
        "archive": site.address,
        "new": str(folder / "new"),
        "empty": str(folder / "empty"),
        "file": str(folder / "file"),
        "topic": topic,
        "copy": copy,
        "small": small,
        "short": short,
        "stamped": stamped,
    }


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, place: Place, versitygw: VersityGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Mistake, Future[Completed]]]:
    """How the selected mistakes end, a few at a time, since most of that time is waiting for somebody who is not there.

    Each is typed in an empty folder, with the store's credentials in the environment.
    """
    cwd = tmp_path_factory.mktemp("typed")

    def typed(mistake: Mistake) -> Completed:
        words = shlex.split(mistake.command.format_map(place))
        settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        program, *arguments = words[len(settings) :]
        env = {**versitygw.env, **settings}
        return run(program, *arguments, env=env, cwd=cwd, timeout=4 * mistake.seconds, check=None)

    selected = {item.callspec.params.get("mistake") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_A_TIME) as typists:
        yield {mistake: typists.submit(typed, mistake) for mistake in MISTAKES if mistake in selected}


@pytest.mark.parametrize("mistake", MISTAKES if LONG else MISTAKES[::5], ids=lambda mistake: mistake.command)
def test_a_mistake_is_explained(mistake: Mistake, place: Place, outcomes: dict[Mistake, Future[Completed]]) -> None:
    done = outcomes[mistake].result().expect(mistake.exit_code)
    assert "Traceback" not in done.stdout + done.stderr, done.transcript
    lines = [line for line in done.stderr.splitlines() if re.match(r"(error|why|do):", line)]
    assert [line.partition(":")[0] for line in lines] == ["error", "why", "do"], done.transcript
    assert all(len(line.partition(":")[2].strip()) > 3 for line in lines), done.transcript
    said = "\n".join(lines)
    for word in mistake.words:
        assert word.format_map(place) in said, f"{word.format_map(place)!r} is not said\n{done.transcript}"
    assert done.stdout == "", done.transcript


def test_no_mistake_left_an_archive_behind(place: Place) -> None:
    """Runs last: a command that was refused has archived nothing."""
    assert not list(Path(place["new"]).glob("topic=*"))
