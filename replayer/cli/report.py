"""`--report` and `--sign-key`: what was found, kept as files that can be handed on."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import msgspec

from blockgz_runtime.errors import UsageError
from index_format.errors import BlockgzError
from replayer.verify.report import Document
from replayer.verify.report_page import page

F = TypeVar("F", bound=Callable[..., Any])

SIGNATURE_SUFFIX = ".sig"
FORMAT = "blockgz-report"


@dataclass(frozen=True)
class ReportOptions:
    """Where reports go, and the key that signs them."""

    paths: tuple[Path, ...]
    sign_key: Path | None

    def check(self) -> None:
        """Raises UsageError for what could not be written after hours of verifying."""
        for path in self.paths:
            if path.suffix not in (".json", ".html"):
                raise UsageError(
                    f"{path} is no report", why="its name tells the form", remedy="end it in .json or .html"
                )
            if not path.absolute().parent.is_dir():
                raise UsageError(f"{path} cannot be written", why="there is no such folder", remedy="make it first")
            if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
                why = "it is a folder" if path.is_dir() else "its mode forbids it"
                raise UsageError(f"{path} cannot be written", why=why, remedy="name another file")
        if self.sign_key is not None:
            if not self.paths:
                raise UsageError("--sign-key has nothing to sign", remedy="give --report FILE as well")
            _signature(self.sign_key, b"")

    def write(self, document: Document) -> None:
        """Writes each report, and its signature beside it; raises BlockgzError."""
        whole = {
            "format": FORMAT,
            "version": 1,
            "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "program": f"blockgz {version('blockgz')}",
            **document,
        }
        for path in self.paths:
            body = (
                page(whole).encode()
                if path.suffix == ".html"
                else msgspec.json.format(msgspec.json.encode(whole)) + b"\n"
            )
            try:
                path.write_bytes(body)
                if self.sign_key is not None:
                    path.with_name(path.name + SIGNATURE_SUFFIX).write_bytes(_signature(self.sign_key, body))
            except OSError as error:
                raise BlockgzError(
                    f"the report {error.filename or path} could not be written",
                    why=error.strerror or str(error),
                    remedy="what was found stands on stdout",
                ) from error


def _signature(key: Path, body: bytes) -> bytes:
    """Raises UsageError for a file that is no key."""
    # Here, because the cryptography of a signature takes long to load, and few reports are signed.
    from replayer.verify.signing import private_key  # noqa: PLC0415

    return private_key(key).sign(body)


def report_options(function: F) -> F:
    """Adds --report --sign-key; passes `report_to: ReportOptions`."""

    @functools.wraps(function)
    def with_report(*args: Any, report: tuple[Path, ...], sign_key: Path | None, **kwargs: Any) -> Any:
        options = ReportOptions(report, sign_key)
        options.check()
        return function(*args, report_to=options, **kwargs)

    decorated: Any = with_report
    for option in (
        click.option(
            "--sign-key",
            type=click.Path(path_type=Path),
            metavar="PEM",
            help="Sign the reports with this Ed25519 key, into FILE.sig.",
        ),
        click.option(
            "--report",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write what was found to a .json or .html file too; may be repeated.",
        ),
    ):
        decorated = option(decorated)
    return cast(F, decorated)
