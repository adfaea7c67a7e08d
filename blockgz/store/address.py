"""The place of an archive: `s3://bucket/prefix`, `file:///dir` or `./dir`, and the settings of S3.

The settings are the endpoint, the credentials, and how objects are stored. Addresses may be spelled as Hadoop does.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from blockgz.errors import BadName, UsageError, masked_urls

_REMEDY = "write s3://bucket/prefix, file:///dir or a path such as ./dir or /dir"

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
            raise _no_address(text, "it is neither a URL nor a path; is it a bucket or a directory?")
        return LocalAddress(text)
    if scheme in ("s3", "s3a"):
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            named = bucket if "@" not in bucket else masked_urls(f"s3://{bucket}")
            raise _no_address(text, f"{named!r} is not a bucket name" if named else "it names no bucket")
        if strange := next((each for each in prefix if each in "?#" or not each.isprintable()), None):
            raise _no_address(text, f"its prefix has {strange!r}, which clients of S3 take for something else")
        if {".", ".."} & set(prefix.split("/")):
            raise _no_address(text, "S3 does not resolve '.' and '..' in a prefix")
        prefix = prefix.strip("/")
        return S3Address(bucket, f"{prefix}/" if prefix else "")
    if scheme == "file":
        if not rest.startswith("/"):
            raise _no_address(text, "a file URL has three slashes: what follows the second would be a host name")
        return LocalAddress(unquote(rest))
    raise _no_address(text, f"the scheme {scheme[:20]!r} is unknown")


def _no_address(text: str, why: str) -> BadName:
    return BadName(f"{text[:200]!r} is not the address of an archive", why=why, remedy=_REMEDY)


ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
# Storage classes whose objects can be read at once.
STORAGE_CLASSES = ("STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY")
SLOW_CLASSES = ("GLACIER", "DEEP_ARCHIVE")
ACLS = (
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
)
# Checksums that botocore computes without further libraries.
CHECKSUMS = ("CRC32", "SHA1", "SHA256")
MOST_TAGS = 10

CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")
# Settings that readers need as well.
CONNECTION = (
    *("endpoint_url", "region", "profile", "proxy_url", "role_arn", "external_id", "customer_key"),
    *CREDENTIALS,
)
# Settings whose values are references to secrets, which every machine looks up where it makes a client; in which form a
# secret is to be written there.
REFERENCES = {"customer_key": " in base64", **dict.fromkeys(CREDENTIALS, "")}

_TAG = re.compile(r"[\w .:/+@-]{1,128}=[\w .:/=+@-]{0,256}")
_REFERENCE = re.compile(r"\$\{(env|file):[^${}]+\}")
_ELSEWHERE_IN_CLEAR = re.compile(r"http://(?!(localhost|127\.0\.0\.1|\[::1\])([:/]|$))", re.I)


def _setting(text: str, metavar: str | None = None, *, is_shown: bool = True) -> Any:
    """Return a field with its help, from which the options of commands and the configuration are made."""
    return field(default=None, repr=is_shown, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True)
class S3Settings:
    """Settings of S3, none of which a folder needs.

    Credentials come from AWS's own chain on each machine, or are referred to, and looked up on each machine.

    Raises UsageError for what S3 would refuse, and for what could not be read back at once.
    """

    endpoint_url: str | None = _setting("URL of the S3 API if it is not AWS; uses path-style addressing.", "URL")
    region: str | None = _setting("The bucket's region.")
    profile: str | None = _setting("Profile in the AWS configuration files, like AWS_PROFILE.")
    proxy_url: str | None = _setting("HTTP proxy for requests to S3, such as http://HOST:PORT.", "URL", is_shown=False)
    role_arn: str | None = _setting("ARN of the AWS role to assume.", "ARN")
    external_id: str | None = _setting("External id that the role's trust policy requires.", "ID")
    customer_key: str | None = _setting(
        "Key of SSE-C, 32 bytes in base64, that S3 does not keep: ${file:/path} or ${env:NAME}.", "REFERENCE"
    )
    access_key_id: str | None = _setting(
        "Id of the access key for S3, where AWS's own chain has none: ${file:/path} or ${env:NAME}.", "REFERENCE"
    )
    secret_access_key: str | None = _setting("Secret of the access key: ${file:/path} or ${env:NAME}.", "REFERENCE")
    session_token: str | None = _setting(
        "Session token of a temporary access key: ${file:/path} or ${env:NAME}.", "REFERENCE"
    )
    sse: str | None = _setting(
        "Server-side encryption: AES256, aws:kms or aws:kms:dsse. The default is the bucket's.", "|".join(ENCRYPTIONS)
    )
    kms_key_id: str | None = _setting(
        "KMS key for sse aws:kms: id, ARN or alias. The default is AWS's key for S3.", "ID"
    )
    storage_class: str | None = _setting(
        "Storage class of chunk data: STANDARD_IA, ONEZONE_IA, INTELLIGENT_TIERING or GLACIER_IR.", "CLASS"
    )
    acl: str | None = _setting("Canned ACL of objects, such as bucket-owner-full-control.")
    object_tags: str | None = _setting("Tags of objects, such as team=data,env=prod.", "NAME=VALUE,…")
    checksum_algorithm: str | None = _setting(
        "Checksum that S3 verifies and keeps: CRC32, SHA1 or SHA256.", "|".join(CHECKSUMS)
    )

    def __post_init__(self) -> None:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, value in given.items():
            if value is not None:
                check_setting(name, value)
        for names, reason, remedy in conflicts(given):
            raise UsageError(f"{' and '.join(names)} cannot be combined", why=reason, remedy=remedy)

    @property
    def of_objects(self) -> dict[str, Any]:
        """Arguments of PutObject and CreateMultipartUpload, for every object."""
        given = {
            "ServerSideEncryption": self.sse,
            "SSEKMSKeyId": self.kms_key_id,
            "ACL": self.acl,
            "Tagging": urlencode(parse_tags(self.object_tags)) if self.object_tags else None,
            **self.of_content,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def of_content(self) -> dict[str, Any]:
        """Arguments of every request that sends content, such as UploadPart."""
        return {} if self.checksum_algorithm is None else {"ChecksumAlgorithm": self.checksum_algorithm}


def check_setting(name: str, value: str) -> None:
    """Raise UsageError for a value that the setting cannot have."""
    if name in CHECKED:
        CHECKED[name](name, value)


def conflicts(given: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str, str]]:
    """Return settings that cannot be combined, with the reason and the remedy."""
    sse, key = given["sse"] or "", given["customer_key"]
    one, other = given["access_key_id"], given["secret_access_key"]
    needs_kms = given["kms_key_id"] and not sse.startswith("aws:kms")
    needs_role = given["external_id"] and not given["role_arn"]
    is_seen = key and _ELSEWHERE_IN_CLEAR.match(given["endpoint_url"] or "")
    why_seen = "the key itself goes to S3 with every request, and http:// does not encrypt it"
    rules = (
        (needs_kms, ("sse", "kms_key_id"), "only KMS keys have an id", "set sse to aws:kms"),
        (key and sse, ("sse", "customer_key"), "an object has one kind of encryption", "remove one of them"),
        (needs_role, ("role_arn", "external_id"), "an external id is sent when a role is assumed", "set role_arn too"),
        (bool(one) != bool(other), CREDENTIALS[:2], "a key has an id and a secret", "set both"),
        (
            given["session_token"] and not one,
            ("access_key_id", "session_token"),
            "it is the token of a key",
            "set access_key_id too",
        ),
        (one and given["profile"], ("profile", "access_key_id"), "both are credentials", "remove one of them"),
        (is_seen, ("endpoint_url", "customer_key"), why_seen, "use an https:// endpoint"),
    )
    return [(names, reason, remedy) for is_wrong, names, reason, remedy in rules if is_wrong]


def parse_tags(text: str) -> dict[str, str]:
    """Tags from `team=data,env=prod`; raises UsageError."""
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    unfit = [pair for pair in pairs if not _TAG.fullmatch(pair)]
    tags = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    if unfit:
        why = f"{unfit[0][:80]!r} is no NAME=VALUE of up to 128 and 256 letters, digits, spaces and _.:/=+@-"
    elif len(tags) < len(pairs):
        why = "a name is repeated"
    elif not 0 < len(tags) <= MOST_TAGS:
        why = f"an object has 1 to {MOST_TAGS} tags"
    else:
        return tags
    raise _unusable("object_tags", text, why, "write team=data,env=prod")


def _unusable(name: str, value: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"{name} cannot be {value[:80]!r}", why=why, remedy=remedy)


def _one_of(*values: str) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        if value not in values:
            raise _unusable(name, value, "there is no such value", f"write one of {', '.join(values)}")

    return check


def _check_storage_class(name: str, value: str) -> None:
    if value in SLOW_CLASSES:
        why = "its objects cannot be read until they are restored, which takes hours"
        raise _unusable(name, value, why, "write GLACIER_IR, whose objects can be read at once")
    _one_of(*STORAGE_CLASSES)(name, value)


def _check_proxy(name: str, value: str) -> None:
    try:
        url = urlsplit(value)
        is_proxy = url.scheme in ("http", "https") and url.hostname and url.port != 0 and url.path in ("", "/")
    except ValueError:
        is_proxy = False
    if not is_proxy:  # without the value, which may hold a password
        raise UsageError(
            f"{name} is not the URL of a proxy",
            why="a proxy has a scheme, a host and a port",
            remedy="write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT",
        )


def _check_role(name: str, value: str) -> None:
    if not re.fullmatch(r"arn:[a-z0-9-]*:iam::[^:]*:role/.+", value):
        raise _unusable(name, value, "it is not the ARN of a role", "write arn:aws:iam::ACCOUNT:role/NAME")


def _check_reference(name: str, value: str) -> None:
    if not _REFERENCE.fullmatch(value):  # without the value, which may be a key
        raise UsageError(
            f"{name} is not a reference to a key",
            why="other users could see a key on a command line or in a configuration file",
            remedy=f"write ${{file:/path}} or ${{env:NAME}}, and put the key there{REFERENCES[name]}",
        )


# The settings that have a form, with functions that raise UsageError for other values.
CHECKED: Mapping[str, Callable[[str, str], object]] = {
    "proxy_url": _check_proxy,
    "role_arn": _check_role,
    **dict.fromkeys(REFERENCES, _check_reference),
    "sse": _one_of(*ENCRYPTIONS),
    "storage_class": _check_storage_class,
    "acl": _one_of(*ACLS),
    "object_tags": lambda _, value: parse_tags(value),
    "checksum_algorithm": _one_of(*CHECKSUMS),
}

# Everything as the environment says.
AT_AWS = S3Settings()
