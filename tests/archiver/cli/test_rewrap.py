"""An encrypted archive in a folder over its life: keys wrapped again, chunks compacted, records erased."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver_main
from archiver.commit.archive import settle_same_topic
from blockgz.store.local import LocalStore
from index_format.keys import ENCRYPTED_SUFFIX
from replayer.cli import main as replayer_main
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in
from tests.support.encryption import key_line, key_of

NAME = "BLOCKGZ_TEST_KEYS"


class Vault:
    """An archive of one partition, encrypted with the first key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "archive"
        self.world: EraseWorld = encrypted_world(random.Random(1), 80, keys_in(folder, 1))
        for key, body in self.world.store.bodies().items():
            (self.root / key).parent.mkdir(parents=True, exist_ok=True)
            (self.root / key).write_bytes(body)
        settle_same_topic(LocalStore(self.root), "topic", self.world.keys.folder, self.world.identity.topic_id)

    def archiver(self, *words: str) -> Result:
        environ = {NAME: key_line(1) + key_line(2), "COLUMNS": "200"}
        return CliRunner().invoke(archiver_main, [*words, "-a", str(self.root)], env=environ)

    def keys(self, *numbers: int) -> tuple[str, str]:
        return "--keys", keys_in(self.folder, *numbers)

    def offsets(self, *numbers: int) -> list[int]:
        """What the other program reads with these keys, and finds sound."""
        keys = self.keys(*numbers)
        checked = CliRunner().invoke(replayer_main, ["verify", "--records", "-a", str(self.root), *keys])
        assert checked.exit_code == 0, checked.output
        words = ["cat", "orders:3", "-a", str(self.root), *keys, "-f", "%o\n"]
        return [int(offset) for offset in CliRunner().invoke(replayer_main, words).stdout.split()]

    def contents(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Vault(tmp_path)


@pytest.mark.slow
def test_keys_are_rotated(vault: Vault) -> None:
    before, data = vault.contents(), {key for key in vault.contents() if key.endswith(ENCRYPTED_SUFFIX)}
    expected = sorted(vault.world.held_offsets())
    shown = vault.archiver("rewrap", "--keys", f"env:{NAME}", "--dry-run", "--json")
    told: Any = json.loads(shown.stdout)
    chunks = vault.world.marker.num_chunks
    assert (told["key"], told["chunks"], told["partitions"][0]["old_keys"]) == (
        key_of(2).id,
        chunks,
        [key_of(1).id],
    )
    assert vault.archiver("rewrap", "--keys", f"env:{NAME}").exit_code == 2, "it asks first"
    assert vault.contents() == before
    done = vault.archiver("rewrap", "--keys", f"env:{NAME}", "--yes")
    assert done.exit_code == 0, done.output
    assert "rewrapped 1 of 1 partitions" in done.stdout
    assert {key for key in vault.contents() if key.endswith(ENCRYPTED_SUFFIX)} == data
    assert vault.offsets(2) == expected
    newest = json.loads(vault.archiver("status", "--json").stdout)["partitions"][0]["newest_ms"]
    assert newest == vault.world.marker.newest_timestamp, "its chunk is in a catalog now"
    assert "nothing to rewrap" in vault.archiver("rewrap", *vault.keys(2)).stdout


@pytest.mark.slow
def test_missing_keys_are_named_and_nothing_is_changed(vault: Vault) -> None:
    before = vault.contents()
    assert "no keys were given" in vault.archiver("rewrap", "--yes").stderr
    for words, code in (
        (("rewrap", *vault.keys(2)), 12),
        (("compact",), 3),
        (("compact", *vault.keys(2)), 3),
        (("erase", "orders", "--key", "k1"), 3),
        (("erase", "orders:3", "--offsets", "0..9", *vault.keys(2)), 3),
    ):
        refused = vault.archiver(*words, "--yes")
        assert refused.exit_code == code, refused.output
        assert "key" in refused.stderr and "Traceback" not in refused.output
        assert not refused.stdout.startswith(("nothing to", "no record to")), "that is not known"
        assert vault.contents() == before


@pytest.mark.slow
def test_chunks_are_merged_and_records_are_erased(vault: Vault) -> None:
    expected = vault.world.held_offsets()
    done = vault.archiver("compact", *vault.keys(1), "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["encrypted_chunks"] == 0
    assert json.loads(done.stdout)["chunks_after"] < json.loads(done.stdout)["chunks"]
    assert vault.offsets(1) == sorted(expected)
    erased = vault.archiver("erase", "orders", "--key", "k1", *vault.keys(1), "--yes")
    assert erased.exit_code == 0, erased.output
    gone = {each.offset for each in vault.world.log.records if each.key == b"k1"} & expected
    assert gone and vault.offsets(1) == sorted(expected - gone)
    converted = vault.archiver(
        "compact", *vault.keys(1), "--encrypt", keys_in(vault.folder, 2), "--codec", "zstd", "--yes"
    )
    assert converted.exit_code == 0, converted.output
    assert vault.offsets(1, 2) == sorted(expected - gone)
    assert all(key.endswith(ENCRYPTED_SUFFIX) for key in vault.contents() if ".gz" in key or ".zst" in key)
