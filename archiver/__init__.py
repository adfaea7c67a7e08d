"""Kafka to chunks: the program `archiver` and all that writes into an archive."""

from typing import TYPE_CHECKING

__version__: str


if not TYPE_CHECKING:  # else a type checker would take every name for one of ours

    def __getattr__(name: str) -> str:
        """Look the version up on first use: the program starts without it."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("blockgz")
        raise AttributeError(f"module 'archiver' has no attribute {name!r}")
