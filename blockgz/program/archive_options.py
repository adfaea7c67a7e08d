"""Options of both programs for the place of an archive, and for the format of an old one."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from blockgz.encryption.keyring import FORMS, parse_keys
from blockgz.errors import UsageError
from blockgz.hosts import unencrypted_endpoint
from blockgz.program.options import SIZE, F, Option, OptionSet, choice_option, with_options
from blockgz.store.address import CONNECTION, S3Settings
from blockgz.units import format_size
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES
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


_OF_S3 = {each.name: Option(f"--{each.name.replace('_', '-')}", **each.metadata) for each in fields(S3Settings)}


def _settings(**given: Any) -> S3Settings:
    settings = S3Settings(**given)
    host = unencrypted_endpoint(settings.endpoint_url) if settings.endpoint_url else None
    if host is not None:
        click.echo(f"warning: the connection to S3 at {host} is not encrypted (--endpoint-url)", err=True)
    return settings


# Add the settings of S3 for reading; pass `s3: S3Settings`.
s3_options = OptionSet("s3", _settings, *(_OF_S3[name] for name in CONNECTION))

# Add all settings of S3; pass `s3: S3Settings`.
writing_s3_options = OptionSet("s3", _settings, *_OF_S3.values())


def _checked_keys(keys: str) -> str:
    try:
        parse_keys(keys)
    except ValueError as error:
        raise UsageError("the keys cannot be used", why=str(error), remedy=f"write {FORMS}") from error
    return keys


# Passes `encrypt: str | None`.
encrypt_option = Option(
    "--encrypt",
    metavar="KEYS",
    envvar="BLOCKGZ_ENCRYPT",
    parse=_checked_keys,
    help="Keys to encrypt chunks with: file:/path, env:NAME or kms:ARN; separated by commas, the newest last.",
)

# Passes `keyring: str | None`.
keys_option = Option(
    "--keys",
    "keyring",
    metavar="KEYS",
    envvar="BLOCKGZ_KEYS",
    parse=_checked_keys,
    help="Keys of an encrypted archive: file:/path, env:NAME or kms:ARN, separated by commas.",
)

# Passes `max_block_bytes: int`.
max_block_option = Option(
    "--max-block-bytes",
    type=SIZE,
    default=DEFAULT_MAX_BLOCK_BYTES,
    show_default=format_size(DEFAULT_MAX_BLOCK_BYTES),
    help="Refuse blocks that decompress to more.",
)


def _old_format(old_format: str, key_delimiter: str) -> OldFormat:
    try:
        return OldFormat.of_options(old_format, key_delimiter)
    except ValueError as error:
        raise UsageError(
            f"--key-delimiter {key_delimiter!r} cannot be used", why=str(error), remedy=r"write it as '\t' or '\x1f'"
        ) from error


# Passes `old_format: OldFormat`.
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


def store_options(s3: OptionSet = s3_options, *, required: bool = True) -> Callable[[F], F]:
    """Add --archive and options of S3; pass `archive: str` and `s3: S3Settings`."""
    return lambda function: with_options(function, [archive_option(required=required), s3])
