"""Addresses of archives: `s3://bucket/prefix`, `file:///dir`, `./dir`; and as Hadoop spells them."""

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from blockgz.errors import BadName, UsageError, masked_urls

REMEDY = "write s3://bucket/prefix, file:///dir or a path such as ./dir or /dir"

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PATH = re.compile(r"(?:/|~|\.\.?(?:/|$))")


class S3Address(NamedTuple):
    """A bucket and the prefix of all keys, which is empty or ends with a slash."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".removesuffix("/")


class LocalAddress(NamedTuple):
    """A directory as it was written: it may be relative or start with `~`."""

    path: str

    def __str__(self) -> str:
        return f"file://{self.path}" if self.path.startswith("/") else self.path

    def root(self) -> Path:
        """Return the folder, absolute; raises UsageError for the home of an unknown user."""
        try:
            return Path(self.path).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(
                f"{self.path!r} names no home directory", why=str(error), remedy="write the full path"
            ) from error


Address = S3Address | LocalAddress


def parse_address(text: str) -> Address:
    """Return the address that `text` names; raises BadName."""
    scheme, separator, rest = text.partition("://")
    if text.startswith("file:/") and not separator:
        scheme, separator, rest = "file", "://", text.removeprefix("file:")
    if not separator:
        if not _PATH.match(text):
            raise _unusable(text, "it is neither a URL nor a path; is it a bucket or a directory?")
        return LocalAddress(text)
    if scheme in ("s3", "s3a"):
        url = urlsplit(f"s3://{rest}")
        if url.query or url.fragment or not _BUCKET.fullmatch(url.netloc):
            named = url.netloc if "@" not in url.netloc else masked_urls(f"s3://{url.netloc}")
            raise _unusable(text, f"{named!r} is not a bucket name" if named else "it names no bucket")
        prefix = url.path.strip("/")
        return S3Address(url.netloc, f"{prefix}/" if prefix else "")
    if scheme == "file":
        if not rest.startswith("/"):
            raise _unusable(text, "a file URL has three slashes: what follows the second would be a host name")
        return LocalAddress(unquote(rest))
    raise _unusable(text, f"the scheme {scheme[:20]!r} is unknown")


def _unusable(text: str, why: str) -> BadName:
    return BadName(f"{text[:200]!r} is not the address of an archive", why=why, remedy=REMEDY)
