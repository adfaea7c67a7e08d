"""What the doctor finds of this machine."""

from pathlib import Path

import pytest

from archiver.doctor import Finding, Verdict, carefully, check_keys
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import load_keyring
from tests.support.encryption import key_line, key_of


def checked(encrypt: str | None) -> list[Finding]:
    config = RunConfig(archive="./a", bootstrap_servers="h:1", topics="orders", encrypt=encrypt)
    return list(carefully("keys", lambda: check_keys(config)))


def test_keys_of_encrypted_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_keyring.cache_clear()
    monkeypatch.setenv("KEYS", key_line(1) + key_line(2))
    assert checked(None) == []
    (finding,) = checked("env:KEYS")
    assert finding.verdict is Verdict.OK and key_of(2).id in finding.detail
    (missing,) = checked(f"file:{tmp_path / 'none'}")
    assert missing.verdict is Verdict.FAIL and "cannot be read" in missing.detail
