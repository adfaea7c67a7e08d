"""`archiver run --encrypt` on a mock cluster, and what `replayer` makes of it with keys and without."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner, Result
from moto import mock_aws

import blockgz
from archiver.cli import main as archiver_main
from blockgz.encryption.keyring import load_keyring
from index_format import objects
from index_format.chunk_index import ChunkIndex
from index_format.errors import KeyMissing
from index_format.marker import decode_marker
from replayer.cli import main as replayer_main
from tests.support.archives import records
from tests.support.encryption import key_line
from tests.support.mock_cluster import MockCluster
from tests.support.s3_server import CREDENTIALS

SECRET = b"value of 17"
names = map("vault-{}".format, itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


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
    done = vault.archive("--encrypt", vault.keys)
    assert done.exit_code == 0, done.output
    return vault


def test_nothing_in_the_archive_is_plain_but_what_indexes_say(vault: Vault) -> None:
    files = [path for path in vault.root.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.suffix == ".gz"] == []
    assert not any(SECRET in path.read_bytes() for path in files)
    (data,) = (path for path in files if path.name.endswith(".gz.enc"))
    index = objects.decode(data.with_name(data.name.replace(".gz.enc", ".index.json")).read_bytes(), ChunkIndex, "it")
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
    refused = vault.replayer("get", f"{vault.topic}:0:17", keys=f"file:{other}")
    assert refused.exit_code == 12
    assert "is encrypted with a key that file:" in refused.stderr
    assert vault.replayer("verify", "--records", keys=f"file:{other}").exit_code == 12


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
        done = vault.archive("--encrypt", both)
        assert done.exit_code == 0, done.output
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
