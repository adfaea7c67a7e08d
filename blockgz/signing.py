"""Ed25519 signatures of report files (RFC 8032): 64 bytes over the file as it is, as openssl makes them too.

Libraries of cryptography load slowly, and few reports are signed: each function imports what it needs.
"""

from pathlib import Path
from typing import Any

from blockgz.errors import MalformedObject, UsageError

SIGNATURE_SUFFIX = ".sig"


def signature_of(report: Path) -> Path:
    """Return the path of a report's signature."""
    return report.with_name(report.name + SIGNATURE_SUFFIX)


def signed(body: bytes, key: Path) -> bytes:
    """Return the signature by the private key in a PEM file without a password; raises UsageError for no such key."""
    signature: bytes = _key(key, is_private=True).sign(body)
    return signature


def is_signed_by(body: bytes, signature: bytes, key: Path) -> bool:
    """Return whether the owner of a public or private key signed exactly these bytes; raises UsageError."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        _key(key, is_private=False).verify(signature, body)
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


def _key(path: Path, *, is_private: bool) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key  # noqa: PLC0415

    try:
        body = path.read_bytes()
        key = load_pem_private_key(body, None) if is_private or b"PRIVATE KEY" in body else load_pem_public_key(body)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise _unusable(path, "it is another kind of key")
    # The signer's private key proves signatures too.
    return key.public_key() if isinstance(key, Ed25519PrivateKey) and not is_private else key


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a usable Ed25519 key",
        why=why.strip().splitlines()[0] if why.strip() else "it cannot be read",
        remedy="make a pair: openssl genpkey -algorithm ed25519 > key.pem; openssl pkey -in key.pem -pubout > pub.pem",
    )
