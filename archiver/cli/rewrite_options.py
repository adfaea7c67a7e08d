"""The options of commands that write chunks again."""

from pathlib import Path

import click

from archiver.maintain.contents.keys import RewriteKeys
from blockgz.program.archive_options import encrypt_option, keys_option
from blockgz.program.options import SIZE, F, OptionSet, with_options

FREED = "; archiver gc frees the space"


def buffer_options(function: F) -> F:
    """Adds `buffer_dir: Path | None` and `buffer_bytes: int`."""
    return with_options(
        function,
        [
            click.option("--buffer-dir", type=click.Path(path_type=Path), help="Folder for chunks that are rewritten."),
            click.option(
                "--buffer-bytes",
                type=SIZE,
                default="8GiB",
                show_default=True,
                help="Rewrite at most this many bytes at a time, unless a single chunk is larger.",
            ),
        ],
    )


rewrite_keys_options = OptionSet("rewrite_keys", RewriteKeys.of, keys_option, encrypt_option)
"""Passes `rewrite_keys: RewriteKeys`."""
