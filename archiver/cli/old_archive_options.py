"""What an operator knows of an old archive and its files do not say: options that commands share."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from archiver.cli.value_types import SIZE
from archiver.config.model import format_size
from blockgz_runtime.errors import UsageError
from index_format.ancestor.payloads import OLD_FORMATS, OldFormat
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES

F = TypeVar("F", bound=Callable[..., Any])


def old_archive_options(function: F) -> F:
    """Adds --old-format --key-delimiter --max-block-bytes; passes `old_format` and `max_block_bytes`."""

    @functools.wraps(function)
    def with_format(*args: Any, old_format: str, key_delimiter: str, **kwargs: Any) -> Any:
        try:
            parsed = OldFormat.of_options(old_format, key_delimiter)
        except ValueError as error:
            raise UsageError(
                f"--key-delimiter {key_delimiter!r} cannot be used",
                why=str(error),
                remedy=r"write it as '\t' or '\x1f'",
            ) from error
        return function(*args, old_format=parsed, **kwargs)

    options = [
        click.option(
            "--old-format",
            type=click.Choice(OLD_FORMATS),
            default=OLD_FORMATS[0],
            show_default=True,
            help="How records lie in the old files: values in lines, key and delimiter before them, or length-prefixed "
            "without or with keys.",
        ),
        click.option(
            "--key-delimiter",
            default=r"\t",
            show_default=True,
            help=r"Of --old-format delimited; \t and \x1f mean bytes.",
        ),
        click.option(
            "--max-block-bytes",
            type=SIZE,
            default=format_size(DEFAULT_MAX_BLOCK_BYTES),
            show_default=True,
            help="Refuse blocks that inflate to more.",
        ),
    ]
    decorated: Any = with_format
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)
