"""Kafka to chunks: the program `archiver` and all that writes into an archive."""

__version__: str


def __getattr__(name: str) -> str:
    """Looks the version up when it is asked for: the program starts without."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("blockgz")
    raise AttributeError(f"module 'archiver' has no attribute {name!r}")
