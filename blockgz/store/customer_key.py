"""The key of a customer (SSE-C), with which S3 encrypts and decrypts what it stores and keeps no copy of.

An archive names its key by a fingerprint in `_archive.json`, the one object that is stored without it. So a key that is
missing or wrong is found out by name, where S3 just refuses the request.
"""

import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from blockgz.errors import AccessDenied, FormatError, ObjectMissing, StoreError, StoreUnavailable, UsageError
from blockgz.references import naming, resolve_references
from blockgz.store.reader import ObjectReader, PassingReader
from blockgz.store.writer import ToolStore
from index_format import objects
from index_format.encryption import KEY_BYTES, key_id, parse_key
from index_format.keys import ARCHIVE_OBJECT, LAYOUTS, archive_key
from index_format.objects import ArchiveInfo

REMEDY = "give the key that the archive was created with: --customer-key '${file:/path}'"

_FILE = re.compile(r"\$\{file:(.*)\}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CustomerKey:
    """A key of 32 bytes, for AES-256."""

    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, which may be shown."""
        return key_id(self.key)

    def of_object(self, name: str) -> dict[str, Any]:
        """Arguments of every request that writes or reads the object."""
        if name.rpartition("/")[2] == ARCHIVE_OBJECT:
            return {}
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": self.key}


def load_customer_key(reference: str | None) -> CustomerKey | None:
    """Return the key that `${file:/path}` or `${env:NAME}` leads to on this machine; None without a reference.

    Raises UsageError. Warns of a file that every user can read.
    """
    if reference is None:
        return None
    named = _FILE.fullmatch(reference)
    with naming("customer_key", remedy="write ${file:/path} or ${env:NAME}"):
        text = resolve_references(reference, os.environ)
    if named and Path(named[1]).expanduser().stat().st_mode & 0o004:
        _warn_once(named[1])
    try:
        return CustomerKey(parse_key(text))
    except ValueError:  # its text may be a part of a key
        raise UsageError(
            f"{reference} holds no customer key",
            why=f"a key has {KEY_BYTES} bytes, written in base64",
            remedy="make one: openssl rand -base64 32",
        ) from None


@cache
def _warn_once(file: str) -> None:
    _log.warning("warning: every user can read the customer key in %s; chmod o-r", file)


def fingerprint_of(reference: str | None) -> str | None:
    """Return the fingerprint of a referenced key; raises as `load_customer_key`."""
    key = load_customer_key(reference)
    return None if key is None else key.fingerprint


def check_fingerprint(archive: ArchiveInfo, given: str | None, url: str) -> None:
    """Raise AccessDenied if the archive has another key than the one with that fingerprint, or UsageError if none."""
    named = archive.customer_key or None
    if named == given:
        return
    if named is None:
        raise UsageError(
            f"{url} is not encrypted with a customer key",
            why="a key was given, but the archive was created without one",
            remedy="remove --customer-key, or create another archive",
        )
    if given is None:
        what, why = "is encrypted with a customer key", f"its fingerprint is {named}, and no key was given"
    else:
        what, why = "has another customer key", f"its fingerprint is {named}, that of the given key {given}"
    raise AccessDenied(f"{url} {what}", why=why, remedy=REMEDY)


def check_stored_archive(store: ToolStore, given: str | None) -> None:
    """Check the fingerprint of the archive at a store, if there is one."""
    for key in map(archive_key, LAYOUTS):
        found = store.get(key)
        if found is not None:
            check_fingerprint(objects.decode(found.body, ArchiveInfo, key), given, store.url)
            return


class KeyCheckingReader(PassingReader):
    """A reader that reports if the customer key is the reason for a refused read."""

    def __init__(self, reader: ObjectReader, fingerprint: str | None) -> None:
        super().__init__(reader)
        self._fingerprint = fingerprint

    @asynccontextmanager
    async def _request(self, *, is_range: bool = False) -> AsyncIterator[None]:  # noqa: ARG002
        try:
            yield
        except StoreUnavailable:
            raise
        except (AccessDenied, StoreError):
            for key in map(archive_key, LAYOUTS):
                try:
                    body = await self._reader.get(key, objects.MAX_OBJECT_BYTES)
                    archive = objects.decode(body, ArchiveInfo, key)
                except (AccessDenied, FormatError, ObjectMissing, StoreError):
                    continue
                check_fingerprint(archive, self._fingerprint, self.address)
            raise
