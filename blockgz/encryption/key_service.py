"""Master keys that AWS KMS has and never gives away: it makes and opens keys of sessions, which wrap all others.

So a process that writes asks KMS once, and one that reads once for each process that wrote.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound

from blockgz.errors import AccessDenied, StoreUnavailable
from index_format.encryption import StoredKey, unwrapped_key, wrapped_key
from index_format.objects import WrappedKey

# The context that KMS binds the key of a session to, and notes in its log.
CONTEXT = {"format": "block-gzip"}
PERMISSIONS = "kms:GenerateDataKey to write, kms:Decrypt to read"
_PASSING = ("ThrottlingException", "KMSInternalException", "DependencyTimeoutException", "InternalFailure")


class ServiceKey:
    """A key at AWS KMS, by its ARN; credentials come from AWS's own chain on each machine."""

    def __init__(self, arn: str, make_client: Callable[[], Any] | None = None) -> None:
        self.id = arn
        self._make_client = make_client or partial(_client, arn.split(":")[3])
        self._made: Any = None
        self._own: StoredKey | None = None
        self._opened: dict[bytes, bytes] = {}
        self._lock = Lock()

    def wrap(self, secret: bytes) -> WrappedKey:
        """See MasterKey. Raises AccessDenied, or StoreUnavailable if KMS does not answer."""
        with self._lock:
            self._own = session = self._own or self._new_session()
        return WrappedKey(self.id, wrapped_key(secret, session.secret), session.wrapped.wrapped)

    def unwrap(self, wrapped: WrappedKey) -> bytes:
        """See MasterKey. Raises AccessDenied, or StoreUnavailable if KMS does not answer."""
        if not isinstance(wrapped.session, bytes):
            raise ValueError("it has no key of a session")
        with self._lock:
            if wrapped.session not in self._opened:
                self._opened[wrapped.session] = self._open(wrapped.session)
            return unwrapped_key(wrapped.wrapped, self._opened[wrapped.session])

    def _new_session(self) -> StoredKey:
        with self._errors():
            made = self._client.generate_data_key(KeyId=self.id, KeySpec="AES_256", EncryptionContext=CONTEXT)
        stored = StoredKey(made["Plaintext"], WrappedKey(self.id, made["CiphertextBlob"]))
        self._opened[stored.wrapped.wrapped] = stored.secret
        return stored

    def _open(self, session: bytes) -> bytes:
        with self._errors():
            found = self._client.decrypt(KeyId=self.id, CiphertextBlob=session, EncryptionContext=CONTEXT)
        return bytes(found["Plaintext"])

    @property
    def _client(self) -> Any:
        self._made = self._made or self._make_client()
        return self._made

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
            raise AccessDenied(
                "no usable AWS credentials for KMS were found",
                why=str(error),
                remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use an instance role",
            ) from error
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _PASSING:
                raise self._unavailable(error) from error
            raise AccessDenied(
                f"the key {self.id} cannot be used", why=str(error), remedy=f"check the key; it takes {PERMISSIONS}"
            ) from error
        except BotoCoreError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"AWS KMS does not give the key {self.id}", why=str(error), remedy="check the network, and try again"
        )


def _client(region: str) -> Any:
    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    return boto3.client("kms", region_name=region, config=Config(retries=retries, connect_timeout=10, read_timeout=20))
