"""Master keys at AWS KMS, as moto plays it."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from blockgz.encryption.key_service import ServiceKey
from blockgz.encryption.keyring import Keyring, load_keyring
from blockgz.errors import AccessDenied, StoreUnavailable
from index_format.errors import KeyMissing, MalformedObject
from tests.support.encryption import key_of
from tests.support.s3_server import CREDENTIALS


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
