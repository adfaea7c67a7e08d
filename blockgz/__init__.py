"""Block-GZIP archives for Python programs (docs/python.md), and what the programs archiver and replayer share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockgz.archive.lookup import TimedOffset
    from blockgz.errors import AccessDenied, CutUndecided, NoArchiveThere, NotInArchive, StoreError, UsageError
    from index_format.errors import BlockgzError, FormatError
    from replayer.errors import DeliveryFailed, ReplayRefused
    from replayer.library import BATCH_SCHEMA, Archive, ArchivedRecord, LostRecords, open_archive

__version__: str

_HOMES = {
    "AccessDenied": "blockgz.errors",
    "Archive": "replayer.library",
    "ArchivedRecord": "replayer.library",
    "BATCH_SCHEMA": "replayer.library",
    "BlockgzError": "index_format.errors",
    "CutUndecided": "blockgz.errors",
    "DeliveryFailed": "replayer.errors",
    "FormatError": "index_format.errors",
    "LostRecords": "replayer.library",
    "NoArchiveThere": "blockgz.errors",
    "NotInArchive": "blockgz.errors",
    "ReplayRefused": "replayer.errors",
    "StoreError": "blockgz.errors",
    "TimedOffset": "blockgz.archive.lookup",
    "UsageError": "blockgz.errors",
    "open_archive": "replayer.library",
}

__all__ = [
    "BATCH_SCHEMA",
    "AccessDenied",
    "Archive",
    "ArchivedRecord",
    "BlockgzError",
    "CutUndecided",
    "DeliveryFailed",
    "FormatError",
    "LostRecords",
    "NoArchiveThere",
    "NotInArchive",
    "ReplayRefused",
    "StoreError",
    "TimedOffset",
    "UsageError",
    "__version__",
    "open_archive",
]


if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> object:
        """Load a public name on first use: both programs import this package, and must not pay for the library."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("blockgz")
        if name in _HOMES:
            from importlib import import_module  # noqa: PLC0415

            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'blockgz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
