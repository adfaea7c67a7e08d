"""Where keys may be, what is refused, and that they show themselves nowhere; master keys at AWS KMS, played by moto."""

import base64
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from blockgz.encryption import keyring as keyrings
from blockgz.encryption.key_service import ServiceKey
from blockgz.encryption.keyring import Keyring, joined_keys, keyring_of, load_keyring, opened_block, parse_keys
from blockgz.errors import AccessDenied, StoreUnavailable, UsageError, exit_code
from index_format.errors import KeyMissing, MalformedObject
from index_format.objects import WrappedKey
from tests.index_format.builders import record
from tests.support.encryption import key_line, key_of
from tests.support.format_objects import chunk_of
from tests.support.s3_server import CREDENTIALS

ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    load_keyring.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# of 2026\n{key_line(1)}\n{key_line(2)}")
    path.chmod(0o600)
    return path


def test_sources() -> None:
    assert parse_keys(f"kms:{ARN}, env:KEYS,file:/etc/keys") == (f"kms:{ARN}", "env:KEYS", "file:/etc/keys")


@pytest.mark.parametrize(
    "text", ["", "keys", "file:", "file:keys", "file:./keys", "kms:alias/blockgz", f"kms:{ARN[:-13]}", "env:A,env:A"]
)
def test_what_names_no_keys(text: str) -> None:
    with pytest.raises(ValueError):
        parse_keys(text)
    with pytest.raises(UsageError):
        load_keyring(text)


def test_the_last_key_wraps_and_all_unwrap(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORE_KEYS", key_line(3) + key_line(4))
    ring = load_keyring(f"file:{file},env:MORE_KEYS")
    assert ring.newest_id == key_of(4).id
    made = ring.new_key()
    assert made.wrapped.id == key_of(4).id and ring.unwrap(made.wrapped, "it") == made.secret
    for number in range(1, 5):
        assert ring.unwrap(key_of(number).wrap(made.secret), "it") == made.secret


def test_one_keyring_for_a_setting_and_process(file: Path) -> None:
    assert load_keyring(f"file:{file}") is load_keyring(f"file:{file}")
    assert keyring_of(None) is None
    assert load_keyring(f"file:{file}").tail is load_keyring(f"file:{file}").tail


def test_a_key_that_is_not_there(file: Path) -> None:
    ring = load_keyring(f"file:{file}")
    with pytest.raises(KeyMissing, match=r"orders:3 is encrypted with a key that file:.* does not have") as caught:
        ring.unwrap(key_of(9).wrap(bytes(32)), "orders:3")
    assert key_of(9).id in caught.value.why and exit_code(caught.value) == 12


@pytest.mark.parametrize("wrapped", [b"", bytes(40), bytes(48)])
def test_a_wrapped_key_that_was_changed(wrapped: bytes) -> None:
    with pytest.raises(MalformedObject, match="the key of it cannot be unwrapped"):
        Keyring([key_of(1)]).unwrap(WrappedKey(key_of(1).id, wrapped), "it")
    with pytest.raises(MalformedObject):
        Keyring([key_of(1)]).unwrap(WrappedKey(key_of(1).id, key_of(1).wrap(bytes(32)).wrapped, b"session"), "it")


@pytest.mark.parametrize("text", ["", "# none\n", "short", "é" * 44, base64.b64encode(bytes(31)).decode()])
def test_keys_that_are_none_are_refused_without_being_shown(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    monkeypatch.setenv("WRONG_KEYS", text)
    for keys in (f"file:{path}", "env:WRONG_KEYS"):
        with pytest.raises(UsageError) as caught:
            load_keyring(keys)
        shown = caught.value.what + caught.value.why + caught.value.remedy
        assert "openssl rand -base64 32" in shown and (text.strip() == "" or text not in shown)


def test_keys_that_are_nowhere(tmp_path: Path) -> None:
    for keys in (f"file:{tmp_path / 'none'}", "env:NO_SUCH_VARIABLE"):
        with pytest.raises(UsageError):
            load_keyring(keys)


def test_a_file_that_every_user_can_read(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        load_keyring(f"file:{file}")
    assert "every user can read the keys" in caplog.text


def test_keys_show_themselves_nowhere() -> None:
    secret = repr(bytes([1]) * 32)
    made: Any = Keyring([key_of(1)]).new_key()
    assert secret not in repr(key_of(1)) and repr(made.secret) not in repr(made)


def test_many_threads_unwrap_at_once() -> None:
    ring = Keyring([key_of(1)])
    made = [ring.new_key() for _ in range(20)]
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(ring.unwrap(each.wrapped, "it"))) for each in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(each.secret for each in made)


@pytest.mark.parametrize(
    ("keys", "newer", "joined"),
    [
        (None, None, None),
        ("env:A", None, "env:A"),
        (None, "env:B", "env:B"),
        ("env:A,env:B", "env:C,env:A", "env:B,env:C,env:A"),
    ],
)
def test_the_newer_of_two_settings_wraps(keys: str | None, newer: str | None, joined: str | None) -> None:
    assert joined_keys(keys, newer) == joined


def test_a_key_is_wrapped_again_with_the_newest() -> None:
    old, both = Keyring([key_of(1)]), Keyring([key_of(1), key_of(2)])
    made = old.new_key()
    again = both.rewrapped(made.wrapped, "it")
    assert (again.id, Keyring([key_of(2)]).unwrap(again, "it")) == (key_of(2).id, made.secret)
    assert (both.has(made.wrapped), old.has(again)) == (True, False)
    with pytest.raises(KeyMissing):
        Keyring([key_of(2)]).rewrapped(made.wrapped, "it")


def test_a_plain_block_needs_no_keys() -> None:
    index, data = chunk_of([record(0, b"x")])
    assert opened_block(data, 0, index, "it", None) == (data, index.blocks[0])


def test_its_forms_are_documented() -> None:
    assert all(f"{kind}:" in keyrings.FORMS for kind in ("file", "env", "kms"))


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    load_keyring.cache_clear()
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield


def arn() -> str:
    made = boto3.client("kms", region_name="eu-central-1").create_key()
    return str(made["KeyMetadata"]["Arn"])


class Counting:
    """A client that notes what it is asked, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._client: Any = boto3.client("kms", region_name="eu-central-1")
        self._failure = failure
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        if self._failure is not None:
            raise self._failure
        return getattr(self._client, name)


@pytest.mark.slow
def test_a_process_asks_once_to_write_and_once_for_each_writer_to_read() -> None:
    name, writing, reading = arn(), Counting(), Counting()
    ring = Keyring([ServiceKey(name, lambda: writing)])
    made = [ring.new_key() for _ in range(5)]
    assert writing.asked == ["generate_data_key"]
    assert {each.wrapped.id for each in made} == {name}
    reader = Keyring([ServiceKey(name, lambda: reading)])
    assert [reader.unwrap(each.wrapped, "it") for each in made] == [each.secret for each in made]
    assert [ring.unwrap(each.wrapped, "it") for each in made] == [each.secret for each in made]
    assert (writing.asked, reading.asked) == (["generate_data_key"], ["decrypt"])


def test_by_its_setting_and_beside_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = arn(), arn()
    first = load_keyring(f"kms:{older}").new_key()
    ring = load_keyring(f"kms:{older},kms:{newer}")
    second = ring.new_key()
    assert (first.wrapped.id, second.wrapped.id) == (older, newer)
    assert (ring.unwrap(first.wrapped, "it"), ring.unwrap(second.wrapped, "it")) == (first.secret, second.secret)
    with pytest.raises(KeyMissing, match="does not have"):
        load_keyring(f"kms:{older}").unwrap(second.wrapped, "it")


def test_a_key_of_this_process_is_none_of_a_service() -> None:
    service = ServiceKey(arn())
    with pytest.raises(ValueError, match="no key of a session"):
        service.unwrap(key_of(1).wrap(bytes(32)))


def test_a_changed_session_is_refused() -> None:
    ring = Keyring([ServiceKey(arn())])
    made = ring.new_key()
    session = made.wrapped.session
    assert isinstance(session, bytes)
    other = type(made.wrapped)(made.wrapped.id, made.wrapped.wrapped, session[:-1] + bytes([session[-1] ^ 1]))
    with pytest.raises(AccessDenied):
        ring.unwrap(other, "it")
    with pytest.raises(MalformedObject):
        ring.unwrap(type(made.wrapped)(made.wrapped.id, bytes(40), session), "it")


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Decrypt")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (refusal("AccessDeniedException"), AccessDenied),
        (refusal("DisabledException"), AccessDenied),
        (refusal("ThrottlingException"), StoreUnavailable),
        (NoCredentialsError(), AccessDenied),
        (EndpointConnectionError(endpoint_url="https://kms"), StoreUnavailable),
    ],
)
def test_what_the_service_says_is_told(failure: Exception, expected: type[Exception]) -> None:
    service = ServiceKey("arn:aws:kms:eu-central-1:1:key/x", lambda: Counting(failure))
    with pytest.raises(expected):
        service.wrap(bytes(32))
