"""Keys that sign reports."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def key_pair(folder: Path) -> tuple[Path, Path]:
    """A private and a public Ed25519 key as PEM files, as openssl writes them."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key.pem", folder / "pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
