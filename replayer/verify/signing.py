"""Ed25519 signatures of report files (RFC 8032): 64 bytes over the file as it is, as openssl makes them too."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from blockgz_runtime.errors import UsageError

_UNREADABLE = (OSError, ValueError, TypeError, UnsupportedAlgorithm)


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a PEM file without a password; raises UsageError."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except _UNREADABLE as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, "it is another kind of key")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file; raises UsageError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except _UNREADABLE as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _unusable(path, "it is another kind of key")
    return key


def is_signed(body: bytes, signature: bytes, key: Ed25519PublicKey) -> bool:
    """Whether the signature is that of the key's owner for exactly these bytes."""
    try:
        key.verify(signature, body)
    except InvalidSignature:
        return False
    return True


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a usable Ed25519 key",
        why=why.strip().splitlines()[0] if why.strip() else "it cannot be read",
        remedy="make a pair: openssl genpkey -algorithm ed25519 > key.pem; openssl pkey -in key.pem -pubout > pub.pem",
    )
