"""`archiver run` and `archiver spark` without Spark: signals, progress, and encryption on a mock cluster."""

import io
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result
from moto import mock_aws
from pyspark.errors import PySparkRuntimeError

import blockgz
from archiver.cli import main
from archiver.cli import main as archiver_main
from archiver.cli import run as archiving
from archiver.cli.run import (
    LINE_SECONDS,
    CurrentStderr,
    Lines,
    ProgressTally,
    RunProgress,
    RunResult,
    archive,
    run_exit_code,
    shown_progress,
    summed,
)
from archiver.errors import TopicGone
from archiver.ingest.assignment import WHOLE
from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.ownership import PartitionHistory, PartitionState
from archiver.ingest.service import ArchiverService
from archiver.logs import NAME
from archiver.monitor.server import health, readiness
from archiver.monitor.snapshot import PartitionSnapshot
from archiver.spark import job
from archiver.spark.job import JobResult
from blockgz.archive.inventory import mark_undone
from blockgz.config.kinds import SPARK_NAMES
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import load_keyring
from blockgz.errors import BrokerUnreachable, StoreUnavailable
from blockgz.store.local import LocalStore
from index_format import objects
from index_format.errors import KeyMissing
from index_format.keys import inventory_key
from index_format.marker import decode_marker
from index_format.objects import ChunkIndex
from replayer.cli import main as replayer_main
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import exited, succeeded
from tests.support.encryption import key_line, key_of
from tests.support.mock_cluster import MockCluster
from tests.support.partition_bench import until
from tests.support.s3_server import CREDENTIALS


class BusyStore(ArchiverService):
    """Its store does not answer until it is told to end."""

    def __init__(self, *arguments: Any, number: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._number = number

    def run(self) -> None:
        os.kill(os.getpid(), self._number)
        assert self.ending.wait(10)
        self._close()
        raise StoreUnavailable("the store is overloaded")


@pytest.fixture
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_kept")
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_told_to_end_before_the_store_answers(
    number: signal.Signals, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "ArchiverService", lambda *given, **named: BusyStore(*given, number=number, **named))

    def ended(*, once: bool) -> int:
        config = RunConfig(archive=str(tmp_path), bootstrap_servers="127.0.0.1:1", topics=("orders",), once=once)

        def report(result: RunResult) -> int:
            assert not result.partitions
            return run_exit_code(result, once=once)

        return archive(config, WHOLE, report, nullcontext(lambda _: None))

    assert ended(once=True) == expected
    with pytest.raises(StoreUnavailable):
        ended(once=False)


NOWHERE = ("run", "orders", "-b", "127.0.0.1:1")
"""No broker listens there."""


@pytest.mark.slow
def test_a_service_waits_for_a_broker_and_ends_in_order(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "archiver", *NOWHERE, "-a", str(tmp_path / "archive"), "--log-format", "json"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as service:
        assert service.stderr is not None
        line = next(line for line in service.stderr if b'"waiting"' in line)
        service.terminate()
        rest = service.stderr.read()
    assert json.loads(line)["remedy"] == "check -b and that the broker is up"
    assert service.returncode == 0 and b'"waiting"' not in rest and b"error:" not in rest


@pytest.mark.slow
def test_a_run_that_ends_by_itself_does_not_wait_for_a_broker(tmp_path: Path) -> None:
    words = [*NOWHERE, "--once", "-a", str(tmp_path / "archive")]
    assert "cannot reach a Kafka broker" in exited(CliRunner().invoke(archiver_main, words), 1).stderr


@pytest.mark.slow
def test_a_service_begins_once_a_broker_answers(
    tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(topic := next(names), 1)
    cluster.rebalance_at_once()
    real, is_up = KafkaCluster.topics, threading.Event()

    def topics(self: KafkaCluster) -> dict[str, int]:
        if not is_up.is_set():
            raise BrokerUnreachable("no broker answers", why="it is down", remedy="start it")
        return real(self)

    monkeypatch.setattr(KafkaCluster, "topics", topics)
    config = RunConfig(
        archive=str(tmp_path), bootstrap_servers=cluster.bootstrap_servers, topics=(topic,), single_writer=True
    )
    service = ArchiverService(config, LocalStore(tmp_path), BufferFolder(tmp_path / "buffer"))
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(service.run)
        try:
            until(lambda: service.snapshot().trouble == "no broker answers: it is down", "it waits")
            assert "no broker answers" in str(readiness(service.snapshot()))
            assert health(service.snapshot()) is None
            is_up.set()
            until(lambda: service.snapshot().joined, "it has joined")
            assert service.snapshot().trouble is None
        finally:
            service.stop()
        run.result(30)


SECRET = b"value of 17"
names = map("vault-{}".format, itertools.count())


class Vault:
    """An encrypted archive of one topic in a folder, and a file of keys."""

    def __init__(self, folder: Path, cluster: MockCluster) -> None:
        self.root, self.keys_file, self.cluster = folder / "archive", folder / "keys", cluster
        self.topic = next(names)
        cluster.create_topic(self.topic, 1)
        self.keys_file.write_text(key_line(1))
        self.keys_file.chmod(0o600)

    @property
    def keys(self) -> str:
        return f"file:{self.keys_file}"

    @property
    def home(self) -> Path:
        return self.root / f"topic={self.topic}" / "partition=00000"

    def produce(self, offsets: range) -> None:
        self.cluster.produce(self.topic, 0, records(offsets))

    def archive(self, *options: str) -> Result:
        words = ["run", self.topic, "--once", "-a", str(self.root), "-b", self.cluster.bootstrap_servers]
        more = ["--single-writer", "--block-bytes", "400", "--groups", "none", *options]
        return CliRunner().invoke(archiver_main, [*words, *more], prog_name="archiver")

    def replayer(self, *arguments: str, keys: str | None = None) -> Result:
        words = [*arguments, "-a", str(self.root), *(["--keys", keys] if keys else [])]
        return CliRunner().invoke(replayer_main, words, prog_name="replayer")


@pytest.fixture
def vault(tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Vault:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vault = Vault(tmp_path, cluster)
    vault.produce(range(60))
    succeeded(vault.archive("--encrypt", vault.keys))
    return vault


def test_nothing_in_the_archive_is_plain_but_what_indexes_say(vault: Vault) -> None:
    files = [path for path in vault.root.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.suffix == ".gz"] == []
    assert not any(SECRET in path.read_bytes() for path in files)
    (data,) = (path for path in files if path.name.endswith(".gz.enc"))
    (index_file,) = vault.home.glob("*.index.json")
    index = objects.decode(index_file.read_bytes(), ChunkIndex, "it")
    assert index.data.name == data.name
    assert (index.version, len(index.blocks) > 3) == (2, True)
    marker = decode_marker((vault.home / "last_chunk_index.json").read_bytes())
    assert marker.version == 2 and marker.tail_key


@pytest.mark.slow
def test_with_its_keys_it_is_read_like_any_other(vault: Vault) -> None:
    got = vault.replayer("get", f"{vault.topic}:0:18", "-f", "%k %s", keys=vault.keys)
    assert (got.exit_code, got.stdout.split()[:3]) == (0, ["value", "of", "18"]), got.output
    printed = vault.replayer("cat", vault.topic, "-f", "%o\n", keys=vault.keys)
    assert printed.stdout.split() == [str(offset) for offset in range(60)]
    newest = vault.replayer("tail", vault.topic, "-n", "3", "-f", "%o\n", keys=vault.keys)
    assert newest.stdout.split() == ["57", "58", "59"]
    found = vault.replayer("find", vault.topic, "--key", "17", keys=vault.keys)
    assert found.exit_code == 0 and "17" in found.stdout, found.output
    checked = vault.replayer("verify", "--records", keys=vault.keys)
    assert (checked.exit_code, checked.stdout.splitlines()[-1]) == (0, "OK"), checked.output


def test_without_keys_it_says_so_and_structure_can_be_verified(vault: Vault) -> None:
    for words in (("get", f"{vault.topic}:0:17"), ("cat", vault.topic)):
        refused = vault.replayer(*words)
        assert (refused.exit_code, SECRET.decode() in refused.output) == (12, False)
        assert "is encrypted" in refused.stderr and "--keys KEYS" in refused.stderr
    assert "60" in vault.replayer("describe", vault.topic).stdout
    assert vault.replayer("verify").stdout.splitlines()[-1] == "OK"
    deep = vault.replayer("verify", "--deep")
    assert (deep.exit_code, deep.stdout.splitlines()[-1]) == (0, "WARNING")
    assert "1 chunks are encrypted: without their keys (--keys), only their bytes were checked" in deep.stdout
    records_asked = json.loads(vault.replayer("verify", "--records", "--json").stdout)
    assert [(each["unopened_chunks"], each["digests"]) for each in records_asked["partitions"]] == [(1, None)]


def test_damage_is_found_without_keys(vault: Vault) -> None:
    (data,) = vault.home.glob("*.enc")
    body = bytearray(data.read_bytes())
    body[len(body) // 2] ^= 1
    data.write_bytes(body)
    deep = vault.replayer("verify", "--deep")
    assert deep.exit_code == 3 and "its CRC-32 differs" in deep.stdout


def test_another_key_is_named_missing(vault: Vault, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(key_line(2))
    refused = exited(vault.replayer("get", f"{vault.topic}:0:17", keys=f"file:{other}"), 12)
    assert "is encrypted with a key that file:" in refused.stderr


def test_what_one_key_of_two_opens_is_read_and_checked(vault: Vault, tmp_path: Path) -> None:
    """The other records are named with their key's id; they are never damaged, and never OK."""
    both, newer = tmp_path / "both", tmp_path / "newer"
    both.write_text(key_line(1) + key_line(2))
    newer.write_text(key_line(2))
    vault.produce(range(60, 90))
    succeeded(vault.archive("--encrypt", f"file:{both}"))
    (keys, place, names) = f"file:{newer}", f"{vault.topic}:0", f"the id of that key is {key_of(1).id}"
    exited(vault.replayer("cat", vault.topic, keys=keys), 12)
    rest = exited(vault.replayer("cat", vault.topic, "-f", "%o\n", "--on-damage", "skip", keys=keys), 3)
    assert rest.stdout.split() == [str(offset) for offset in range(60, 90)]
    assert f"FAILURE {place} skipped offsets [0..60): its key is missing: {names}" in rest.stderr
    file = tmp_path / "out.jsonl"
    exited(vault.replayer("export", vault.topic, str(file), "--on-damage", "skip", keys=keys), 3)
    assert len(file.read_text().splitlines()) == 30
    for depth in ("--deep", "--records"):
        checked = succeeded(vault.replayer("verify", depth, keys=keys))
        assert checked.stdout.splitlines()[-1] == "WARNING" and "1 chunks are encrypted" in checked.stdout
        assert f"WARNING {place} not opened [0..60): {names}" in checked.stdout
    assert succeeded(vault.replayer("verify", "--records", keys=f"file:{both}")).stdout.splitlines()[-1] == "OK"
    older = tmp_path / "older"
    older.write_text(key_line(1))
    checked = succeeded(vault.replayer("verify", "--records", keys=f"file:{older}"))
    assert f"not opened [60..90): the id of that key is {key_of(2).id}" in checked.stdout
    first = exited(vault.replayer("cat", vault.topic, "-f", "%o\n", "--on-damage", "skip", keys=f"file:{older}"), 3)
    assert first.stdout.split() == [str(offset) for offset in range(60)]


@pytest.mark.slow
def test_a_writer_goes_on_with_the_keys_and_only_with_them(vault: Vault, tmp_path: Path) -> None:
    vault.produce(range(60, 90))
    for options in ((), ("--encrypt", f"file:{tmp_path / 'other'}")):
        (tmp_path / "other").write_text(key_line(2))
        refused = vault.archive(*options)
        assert refused.exit_code != 0 and "encrypted" in refused.output, refused.output
    assert vault.archive("--encrypt", vault.keys).exit_code == 0
    printed = vault.replayer("cat", vault.topic, "-f", "%o\n", keys=vault.keys)
    assert printed.stdout.split() == [str(offset) for offset in range(90)]


@pytest.mark.slow
def test_the_newest_key_encrypts_and_older_ones_open(vault: Vault) -> None:
    vault.keys_file.write_text(key_line(1) + key_line(2))
    rotated = f"env:{vault.topic.upper().replace('-', '_')}"
    vault.produce(range(60, 90))
    done = CliRunner(env={rotated[4:]: vault.keys_file.read_text()})
    words = ["run", vault.topic, "--once", "-a", str(vault.root), "-b", vault.cluster.bootstrap_servers]
    more = ["--single-writer", "--groups", "none", "--encrypt", rotated]
    assert done.invoke(archiver_main, [*words, *more], prog_name="archiver").exit_code == 0
    ids = {
        objects.decode(path.read_bytes(), ChunkIndex, path.name).encryption.key.id  # type: ignore[union-attr]
        for path in vault.home.glob("*.index.json")
    }
    assert len(ids) == 2
    checked = done.invoke(
        replayer_main, ["verify", "--records", "-a", str(vault.root), "--keys", rotated], prog_name="replayer"
    )
    assert (checked.exit_code, checked.stdout.splitlines()[-1]) == (0, "OK"), checked.output


@pytest.mark.slow
def test_a_replay_needs_the_keys(vault: Vault) -> None:
    target = f"{vault.topic}-copy"
    vault.cluster.create_topic(target)
    words = ("replay", vault.topic, "--to-topic", target, "--yes", "-b", vault.cluster.bootstrap_servers)
    assert vault.replayer(*words).exit_code == 12
    done = vault.replayer(*words, keys=vault.keys)
    assert done.exit_code == 0 and "60 records (" in done.stdout, done.output
    compared = ("verify", vault.topic, "--against-topic", target, "-b", vault.cluster.bootstrap_servers)
    assert vault.replayer(*compared, keys=vault.keys).exit_code == 0


@pytest.mark.slow
def test_the_configuration_file_gives_both_programs_the_keys(vault: Vault, tmp_path: Path) -> None:
    config = tmp_path / "blockgz.yaml"
    config.write_text(f"archive: {vault.root}\nencrypt: {vault.keys}\n")
    vault.produce(range(60, 70))
    words = ["run", vault.topic, "--once", "-C", str(config), "-b", vault.cluster.bootstrap_servers]
    done = CliRunner().invoke(archiver_main, [*words, "--single-writer", "--groups", "none"], prog_name="archiver")
    assert done.exit_code == 0, done.output
    got = CliRunner().invoke(replayer_main, ["get", f"{vault.topic}:0:67", "-C", str(config)], prog_name="replayer")
    assert got.exit_code == 0, got.output


@pytest.mark.slow
def test_keys_at_aws_kms(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        arn = boto3.client("kms", region_name="eu-central-1").create_key()["KeyMetadata"]["Arn"]
        vault.produce(range(60, 70))
        both = f"{vault.keys},kms:{arn}"
        succeeded(vault.archive("--encrypt", both))
        printed = vault.replayer("cat", vault.topic, "-f", "%o\n", keys=both)
        assert printed.stdout.split() == [str(offset) for offset in range(70)]
        assert vault.replayer("cat", vault.topic, "--from", "60", keys=vault.keys).exit_code == 12
    load_keyring.cache_clear()
    with mock_aws():  # where that key is not
        refused = vault.archive("--encrypt", both)
        assert refused.exit_code == 12 and "cannot be used" in refused.stderr, refused.output


@pytest.mark.slow
def test_followers_read_what_comes(vault: Vault) -> None:
    program = [sys.executable, "-m", "replayer", "tail", vault.topic, "-F", "-n", "60", "--interval", "100ms"]
    words = [*program, "-f", "%o\n", "-a", str(vault.root), "--keys", vault.keys]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert [int(follower.stdout.readline()) for _ in range(60)] == list(range(60))
        vault.produce(range(60, 90))
        assert vault.archive("--encrypt", vault.keys).exit_code == 0
        assert [int(follower.stdout.readline()) for _ in range(30)] == list(range(60, 90))
        follower.terminate()


def test_an_archive_for_python_programs(vault: Vault) -> None:
    with blockgz.open_archive(vault.root, keys=vault.keys, use_cache=False) as archive:
        assert archive.get(vault.topic, 0, 17).key == b"17"
    with blockgz.open_archive(vault.root, use_cache=False) as archive, pytest.raises(KeyMissing):
        archive.get(vault.topic, 0, 17)


@pytest.mark.slow
def test_an_archive_may_become_encrypted(tmp_path: Path, cluster: MockCluster) -> None:
    vault = Vault(tmp_path, cluster)
    vault.produce(range(40))
    assert vault.archive().exit_code == 0
    vault.produce(range(40, 60))
    assert vault.archive("--encrypt", vault.keys).exit_code == 0
    assert len([*vault.home.glob("*.gz")]) == len([*vault.home.glob("*.gz.enc")]) == 1
    whole = vault.replayer("verify", "--records", keys=vault.keys)
    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, "OK"), whole.output
    assert vault.replayer("get", f"{vault.topic}:0:17").exit_code == 0
    assert vault.replayer("get", f"{vault.topic}:0:47").exit_code == 12
    half = vault.replayer("verify", "--records")
    assert half.exit_code == 0 and "1 chunks are encrypted" in half.stdout
    assert vault.archive().exit_code == 12


CLAIMING, ARCHIVING, DONE, STOPPED = (
    PartitionState.CLAIMING,
    PartitionState.ARCHIVING,
    PartitionState.DONE,
    PartitionState.STOPPED,
)
ENDS = {("orders", 0): 1000, ("orders", 1): 500}


def seen(number: int, state: PartitionState, durable: int | None = None, at: int | None = None) -> PartitionSnapshot:
    return PartitionSnapshot(
        topic="orders", partition=number, state=state, durable_offset=durable, position=at, stored_bytes=10
    )


def test_percent_is_reported_once_every_end_is_known() -> None:
    tally = ProgressTally()
    assert tally.look([], {}) == RunProgress(0, None, 0)
    assert tally.look([seen(0, CLAIMING), seen(1, CLAIMING)], ENDS).total is None
    assert tally.look([seen(0, ARCHIVING, 200, 300), seen(1, CLAIMING)], ENDS) == RunProgress(100, None, 20)
    assert tally.look([seen(0, ARCHIVING, 200, 400), seen(1, ARCHIVING, None, 0)], ENDS) == RunProgress(200, 1300, 20)
    assert tally.look([seen(0, DONE, 1000), seen(1, ARCHIVING, 100, 400)], ENDS) == RunProgress(1200, 1300, 20)
    assert tally.look([seen(0, DONE, 1000), seen(1, STOPPED, 100)], ENDS) == RunProgress(1200, 1200, 20)


def test_who_follows_has_no_end() -> None:
    assert ProgressTally().look([seen(0, ARCHIVING, 200, 300)], {}) == RunProgress(100, None, 10)


def test_percent_and_time_left() -> None:
    assert (RunProgress(250, 1000).percent, RunProgress(250, 1000).eta_seconds(10.0)) == (25.0, 30.0)
    assert (RunProgress(0, 0).percent, RunProgress(0, 1000).eta_seconds(10.0)) == (100.0, None)
    assert (RunProgress(5).percent, RunProgress(5).eta_seconds(10.0)) == (None, None)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    logger = logging.getLogger(f"{NAME}.progress")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield caplog.messages
    logger.setLevel(before)


def test_a_line_every_ten_seconds(told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    lines = Lines(lambda: now)
    expected = [(LINE_SECONDS - 1, 5, 0), (1, 6, 1), (1, 7, 1), (LINE_SECONDS - 1, 7, 2), (LINE_SECONDS, 7, 2)]
    for seconds, offsets, count in expected:
        now += seconds
        lines(RunProgress(offsets))
        assert len(caplog.messages) == count
    now += LINE_SECONDS
    lines(RunProgress(7, 9))
    assert "percent" in caplog.messages[-1], "a run that comes to an end is told of even where it hangs"


def test_the_block_is_looked_at_until_its_end() -> None:
    looked = threading.Event()

    def look() -> RunProgress:
        looked.set()
        return RunProgress()

    with shown_progress(look, lambda _: None):
        assert looked.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_workers_together() -> None:
    assert summed([RunProgress(100, 200, 5), RunProgress(50, 300, 6)]) == RunProgress(150, 500, 11)
    assert summed([RunProgress(100, 200, 5), RunProgress(50, None, 6)]) == RunProgress(150, None, 11)
    assert summed([RunProgress(100, 200, 5), RunProgress(50, None, 6).ended]) == RunProgress(150, 250, 11)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_lines_beside_a_bar_are_escaped(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    CurrentStderr().write("a\x9b31m\n")
    assert screen.getvalue() == ("a\\u009b31m\n" if is_terminal else "a\x9b31m\n")


ARGUMENTS = ["spark", "orders", "-b", "localhost:9", "-a", "./archive", "--checkpoint", "./checkpoint"]


@pytest.fixture(autouse=True)
def signals_stay_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.cli.spark.stop_on_signals", lambda _: set())


@pytest.mark.slow
def test_without_pyspark_it_says_what_to_install() -> None:
    program = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv[1:] = {ARGUMENTS}; import archiver.cli as cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: `archiver spark` needs pyspark, which is not installed",
        "why:   Spark is an optional extra, which most commands do not need",
        "do:    pip install 'blockgz[spark]', and Java 17 for it",
    ]


def test_the_isolation_level_is_reported_once() -> None:
    done = exited(CliRunner().invoke(main, [*ARGUMENTS, "-X", "isolation.level=read_committed"]), 2)
    assert "use --isolation-level" in done.stderr


def test_every_option_of_the_sink_is_one_here() -> None:
    shown = CliRunner().invoke(main, ["spark", "--help"]).stdout
    for field in SPARK_NAMES.values():
        assert f"--{field.replace('_', '-')}" in shown
    whole = "".join(shown.split())
    assert "default:(blockgz-spark)" in whole and "default:(128MiB)" in whole and "Exitcodes:" in whole


@pytest.mark.parametrize(("once", "ended", "code"), [(True, True, 0), (True, False, 3), (False, False, 0)])
def test_a_drain_that_is_ended_too_early_does_not_look_like_success(
    monkeypatch: pytest.MonkeyPatch, once: bool, ended: bool, code: int
) -> None:
    monkeypatch.setattr(job, "run_job", lambda *_: JobResult(5, 1, ended))
    done = CliRunner().invoke(main, [*ARGUMENTS, "--json", *(["--once"] if once else [])])
    assert done.exit_code == code
    assert json.loads(done.stdout)["drained"] is (ended if once else None)
    assert ("run it again" in done.stderr) is (code == 3)


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(job, "session", session)
    done = CliRunner().invoke(main, ARGUMENTS)
    assert (done.exit_code, "install Java 17" in done.stderr, "fault" in done.stderr) == (2, True, False)


def test_what_spark_refuses_as_a_query_starts_is_not_a_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise PySparkRuntimeError("[CANNOT_LOAD_STATE] The checkpoint is another query's.")

    monkeypatch.setattr(job, "session", session)
    done = exited(CliRunner().invoke(main, ARGUMENTS), 1)
    assert "The checkpoint is another query's" in done.stderr and "fault" not in done.stderr


def test_topics_of_undone_restores_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic of that name that was created again since is named, and so is one that nobody undid."""
    writer = ArchiveWriter(tmp_path)
    for topic, numbers in (("copy", 2), ("again", 1), ("orders", 1)):
        for number in range(numbers):
            writer.partition(topic, number)
    writer.partition("again", 0, incarnation=2)
    store, undone = LocalStore(tmp_path), {("copy", "id-1"), ("again", "id-1"), ("unknown", "id"), ("orders", "id-2")}
    config = RunConfig(archive=str(tmp_path), bootstrap_servers="127.0.0.1:1", topics=("*",))
    places = [("copy", 0), ("copy", 1), ("again", 0), ("orders", 0)]
    result = RunResult([PartitionHistory(place, failure=TopicGone(place[0])) for place in places], ())

    def shown() -> list[str]:
        assert archiving.print_reports(config, result, as_json=False) == 3
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error", "gone"))]

    assert len(shown()) == 4
    assert mark_undone(store, undone, 5) == 3
    assert mark_undone(store, undone, 6) == 3, "again"
    told = shown()
    assert told[:2] == ["error: topic 'again' is gone", "error: topic 'orders' is gone"]
    assert told[2].startswith("gone: 2 partitions of undone restores; ")
    writer.put(inventory_key("topic"), b"{}")
    assert len(shown()) == 4, "an inventory that cannot be read hides nothing"
