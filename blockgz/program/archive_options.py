"""Options of both programs for the place of an archive, and for the format of an old one."""

from collections.abc import Callable
from typing import Any

import click

from blockgz.encryption.keyring import FORMS, parse_keys
from blockgz.errors import UsageError
from blockgz.hosts import unencrypted_endpoint
from blockgz.program.options import SIZE, F, Option, OptionSet, choice_option, with_options
from blockgz.store.s3_settings import CHECKSUMS, ENCRYPTIONS, S3Settings
from blockgz.units import format_size
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from index_format.old_objects import OLD_FORMATS, OldFormat


def archive_option(*, required: bool = True) -> Option:
    """Return -a/--archive, which passes `archive: str`."""
    return Option(
        "-a",
        "--archive",
        metavar="ADDRESS",
        required=required,
        help="Where the archive is: s3://bucket/prefix, file:///dir or ./dir.",
    )


_CONNECTION = (
    Option("--endpoint-url", metavar="URL", help="URL of the S3 API if it is not AWS; uses path-style addressing."),
    Option("--region", help="The bucket's region."),
    Option("--profile", help="Profile in the AWS configuration files, like AWS_PROFILE."),
    Option("--proxy-url", metavar="URL", help="HTTP proxy for requests to S3, such as http://HOST:PORT."),
    Option("--role-arn", metavar="ARN", help="ARN of the AWS role to assume."),
    Option("--external-id", metavar="ID", help="External id that the role's trust policy requires."),
    Option(
        "--customer-key",
        metavar="REFERENCE",
        help="Key of SSE-C, 32 bytes in base64, that S3 does not keep: ${file:/path} or ${env:NAME}.",
    ),
    Option("--access-key-id", metavar="REFERENCE", help="Id of the access key: ${file:/path} or ${env:NAME}."),
    Option("--secret-access-key", metavar="REFERENCE", help="Its secret: ${file:/path} or ${env:NAME}."),
    Option("--session-token", metavar="REFERENCE", help="Its session token: ${file:/path} or ${env:NAME}."),
)
_OBJECTS = (
    Option("--sse", metavar="|".join(ENCRYPTIONS), help="Server-side encryption. The default is the bucket's."),
    Option("--kms-key-id", metavar="ID", help="KMS key for --sse aws:kms: id, ARN or alias."),
    Option("--storage-class", metavar="CLASS", help="Storage class of chunk data, such as STANDARD_IA."),
    Option("--acl", help="Canned ACL of objects, such as bucket-owner-full-control."),
    Option("--object-tags", metavar="NAME=VALUE,…", help="Tags of objects."),
    Option("--checksum-algorithm", metavar="|".join(CHECKSUMS), help="Checksum that S3 verifies and keeps."),
)


def _settings(**given: Any) -> S3Settings:
    settings = S3Settings(**given)
    host = unencrypted_endpoint(settings.endpoint_url)
    if host is not None:
        click.echo(f"warning: the connection to S3 at {host} is not encrypted (--endpoint-url)", err=True)
    return settings


s3_options = OptionSet("s3", _settings, *_CONNECTION)
"""Add the settings of S3 for reading; pass `s3: S3Settings`."""

writing_s3_options = OptionSet("s3", _settings, *_CONNECTION, *_OBJECTS)
"""Add all settings of S3; pass `s3: S3Settings`."""


def _checked_keys(keys: str) -> str:
    try:
        parse_keys(keys)
    except ValueError as error:
        raise UsageError("the keys cannot be used", why=str(error), remedy=f"write {FORMS}") from error
    return keys


encrypt_option = Option(
    "--encrypt",
    metavar="KEYS",
    envvar="BLOCKGZ_ENCRYPT",
    parse=_checked_keys,
    help="Keys to encrypt chunks with: file:/path, env:NAME or kms:ARN; separated by commas, the newest last.",
)
"""Passes `encrypt: str | None`."""

keys_option = Option(
    "--keys",
    "keyring",
    metavar="KEYS",
    envvar="BLOCKGZ_KEYS",
    parse=_checked_keys,
    help="Keys of an encrypted archive: file:/path, env:NAME or kms:ARN, separated by commas.",
)
"""Passes `keyring: str | None`."""

max_block_option = Option(
    "--max-block-bytes",
    type=SIZE,
    default=DEFAULT_MAX_BLOCK_BYTES,
    show_default=format_size(DEFAULT_MAX_BLOCK_BYTES),
    help="Refuse blocks that decompress to more.",
)
"""Passes `max_block_bytes: int`."""


def _old_format(old_format: str, key_delimiter: str) -> OldFormat:
    try:
        return OldFormat.of_options(old_format, key_delimiter)
    except ValueError as error:
        raise UsageError(
            f"--key-delimiter {key_delimiter!r} cannot be used", why=str(error), remedy=r"write it as '\t' or '\x1f'"
        ) from error


old_format_option = OptionSet(
    "old_format",
    _old_format,
    choice_option(
        "--old-format",
        choices=OLD_FORMATS,
        help="How an archive of kafka-connect-s3 or a fork stores records: values as lines, key and delimiter "
        "before each value, or length-prefixed without or with keys.",
    ),
    Option("--key-delimiter", default=r"\t", help=r"Delimiter for --old-format delimited; \t and \x1f mean bytes."),
)
"""Passes `old_format: OldFormat`."""


def store_options(s3: OptionSet = s3_options, *, required: bool = True) -> Callable[[F], F]:
    """Add --archive and options of S3; pass `archive: str` and `s3: S3Settings`."""
    return lambda function: with_options(function, [archive_option(required=required), s3])
