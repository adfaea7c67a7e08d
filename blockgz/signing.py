"""Ed25519 signatures of report files (RFC 8032): 64 bytes over the file as it is, as openssl makes them too.

Libraries of cryptography load slowly, and few reports are signed: each function imports what it needs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from blockgz.errors import UsageError
from index_format.errors import MalformedObject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_SUFFIX = ".sig"


def signature_of(report: Path) -> Path:
    """Return the path of a report's signature."""
    return report.with_name(report.name + SIGNATURE_SUFFIX)


def signed(body: bytes, key: Path) -> bytes:
    """Return the signature by the private key in a PEM file without a password; raises UsageError for no such key."""
    return _private_key(key).sign(body)


def is_signed_by(body: bytes, signature: bytes, key: Path) -> bool:
    """Return whether the key's owner signed exactly these bytes; raises UsageError for no key.

    The signer's private key is a key for this too.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        _public_key(key).verify(signature, body)
    except InvalidSignature:
        return False
    return True


def check_signature(body: bytes, report: Path, key: Path) -> None:
    """Raise MalformedObject if FILE.sig of a report is not the key's signature of `body`; UsageError without it."""
    signature = signature_of(report)
    try:
        is_right = is_signed_by(body, signature.read_bytes(), key)
    except OSError as error:
        raise UsageError(
            f"{signature} cannot be read",
            why=f"{error.strerror or error}; {report} must be signed",
            remedy="restore both files from a safe copy",
        ) from error
    if not is_right:
        raise MalformedObject(
            f"{report} does not match the signature by {key}",
            why="the report, its signature or the key is the wrong one",
            remedy="restore both files from a safe copy, or name another key",
        )


def _private_key(path: Path) -> "Ed25519PrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, "it is another kind of key")
    return key


def _public_key(path: Path) -> "Ed25519PublicKey":
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        body = path.read_bytes()
        key = _private_key(path).public_key() if b"PRIVATE KEY" in body else load_pem_public_key(body)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _unusable(path, "it is another kind of key")
    return key


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a usable Ed25519 key",
        why=why.strip().splitlines()[0] if why.strip() else "it cannot be read",
        remedy="make a pair: openssl genpkey -algorithm ed25519 > key.pem; openssl pkey -in key.pem -pubout > pub.pem",
    )
