"""Options of commands that write reports."""

from pathlib import Path

import click

from blockgz.program.options import Option

sign_key_option = Option(
    "--sign-key",
    type=click.Path(path_type=Path),
    metavar="PEM",
    help="Sign the reports with this Ed25519 key; writes FILE.sig.",
)
"""Passes `sign_key: Path | None`."""
