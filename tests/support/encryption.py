"""Keys of tests."""

import base64

from archiver.commit.sealing import Sealing
from blockgz_runtime.encryption.keyring import Keyring, LocalKey
from tests.support.chunks import ARCHIVE_ID


def key_of(number: int) -> LocalKey:
    """A master key."""
    return LocalKey(bytes([number]) * 32)


def key_line(number: int) -> str:
    """As it stands in a file of keys."""
    return f"{base64.b64encode(key_of(number).secret).decode()}\n"


def sealing(*numbers: int, topic: str = "orders", partition: int = 0) -> Sealing:
    """What encrypts with the last of these keys."""
    return Sealing(Keyring([key_of(number) for number in numbers or (1,)]), ARCHIVE_ID, topic, partition)
