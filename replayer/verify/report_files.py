"""Reports as files, each with its signature beside it."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from blockgz.atomic_file import write_private
from blockgz.errors import UsageError
from blockgz.signing import signature_of, signed
from index_format.errors import BlockgzError
from replayer.verify.report import Document, page

FORMAT = "blockgz-report"


def created_now() -> str:
    """Return the time as reports have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class ReportFiles:
    """Where reports go, the key that signs them, and whether they leave out what records hold."""

    paths: tuple[Path, ...]
    sign_key: Path | None
    without_content: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for what could not be written after hours of verifying."""
        for path in self.paths:
            if path.suffix not in (".json", ".html"):
                raise UsageError(
                    f"{path} is not a report",
                    why="its name determines the format",
                    remedy="use a name that ends in .json or .html",
                )
            if not path.absolute().parent.is_dir():
                raise UsageError(f"{path} cannot be written", why="the folder does not exist", remedy="create it first")
            if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
                why = "it is a folder" if path.is_dir() else "its mode forbids it"
                raise UsageError(f"{path} cannot be written", why=why, remedy="name another file")
        if self.sign_key is not None:
            if not self.paths:
                raise UsageError("--sign-key has nothing to sign", remedy="add --report FILE")
            signed(b"", self.sign_key)

    def write(self, document: Document) -> None:
        """Writes each report, and its signature beside it; raises BlockgzError."""
        whole = {
            "format": FORMAT,
            "version": 1,
            "created": created_now(),
            "program": f"blockgz {version('blockgz')}",
            **document,
        }
        for path in self.paths:
            as_json = msgspec.json.format(msgspec.json.encode(whole)) + b"\n"
            body = page(whole).encode() if path.suffix == ".html" else as_json
            try:
                write_private(path, body)
                if self.sign_key is not None:
                    write_private(signature_of(path), signed(body, self.sign_key))
            except OSError as error:
                raise BlockgzError(
                    f"the report {error.filename or path} could not be written",
                    why=error.strerror or str(error),
                    remedy="the findings are on stdout",
                ) from error
