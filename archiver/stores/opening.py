"""Choosing the store by its address."""

from pathlib import Path

from index_format.addresses import LocalAddress, parse_address

from . import Store
from .local import LocalStore
from .s3 import S3Store


def open_store(address: str, *, endpoint_url: str | None, region: str | None) -> Store:
    """The store at `s3://bucket/prefix`, `file:///dir` or `./dir`; a missing folder is created, a bucket is not."""
    parsed = parse_address(address)
    if isinstance(parsed, LocalAddress):
        return LocalStore(local_root(parsed))
    return S3Store(parsed.bucket, parsed.prefix, endpoint_url=endpoint_url, region=region)


def local_root(address: LocalAddress) -> Path:
    """The folder, absolute."""
    return Path(address.path).expanduser().absolute()


def default_buffer_root(address: str) -> Path:
    """Where open chunks wait unless told otherwise: inside a local archive, so that they are linked and not copied."""
    parsed = parse_address(address)
    if isinstance(parsed, LocalAddress):
        return local_root(parsed) / ".buffer"
    return Path("~/.cache/blockgz/buffer").expanduser()
