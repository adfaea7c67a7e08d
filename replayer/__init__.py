"""Reads archives: the program `replayer`, and for Python programs `replayer.open_archive` (docs/python.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockgz.archive.lookup import TimedOffset
    from blockgz.errors import AccessDenied, CutUndecided, NoArchiveThere, NotInArchive, StoreError, UsageError
    from index_format.errors import BlockgzError, FormatError
    from replayer.errors import DeliveryFailed, ReplayRefused
    from replayer.library.archive import BATCH_SCHEMA, Archive, ArchivedRecord, LostRecords, open_archive

__version__: str

_HOMES = {
    "blockgz.errors": (
        "AccessDenied",
        "CutUndecided",
        "NoArchiveThere",
        "NotInArchive",
        "StoreError",
        "UsageError",
    ),
    "index_format.errors": ("BlockgzError", "FormatError"),
    "replayer.errors": ("DeliveryFailed", "ReplayRefused"),
    "replayer.library.archive": ("BATCH_SCHEMA", "Archive", "ArchivedRecord", "LostRecords", "open_archive"),
    "blockgz.archive.lookup": ("TimedOffset",),
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


if not TYPE_CHECKING:  # else a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        """Loads what is asked for: programs start as fast as if there were no library."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("blockgz")
        for home, names in _HOMES.items():
            if name in names:
                from importlib import import_module  # noqa: PLC0415

                return getattr(import_module(home), name)
        raise AttributeError(f"module 'replayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
