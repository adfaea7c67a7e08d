"""Reports as files, each with its signature beside it."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from blockgz_runtime.atomic_file import write_private
from blockgz_runtime.errors import UsageError
from index_format.errors import BlockgzError
from replayer.verify.report import Document, page

SIGNATURE_SUFFIX = ".sig"
FORMAT = "blockgz-report"


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
            as_json = msgspec.json.format(msgspec.json.encode(whole)) + b"\n"
            body = page(whole).encode() if path.suffix == ".html" else as_json
            try:
                write_private(path, body)
                if self.sign_key is not None:
                    write_private(signature_of(path), _signature(self.sign_key, body))
            except OSError as error:
                raise BlockgzError(
                    f"the report {error.filename or path} could not be written",
                    why=error.strerror or str(error),
                    remedy="the findings are on stdout",
                ) from error


def _signature(key: Path, body: bytes) -> bytes:
    """Raises UsageError for a file that is no key."""
    # Here, because the cryptography of a signature takes long to load, and few reports are signed.
    from replayer.verify.signing import private_key  # noqa: PLC0415

    return private_key(key).sign(body)


def signature_of(report: Path) -> Path:
    """Where the signature of a report is."""
    return report.with_name(report.name + SIGNATURE_SUFFIX)


def is_signed_by(body: bytes, signature: bytes, key: Path) -> bool:
    """Whether the signature is that of the key's owner for exactly these bytes; raises UsageError for no key."""
    # Here, as in `_signature`.
    from replayer.verify.signing import is_signed, public_key  # noqa: PLC0415

    return is_signed(body, signature, public_key(key))
