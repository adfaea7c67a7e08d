"""What a command says where the extra `spark` is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from blockgz.errors import UsageError

_PACKAGES = {"pyspark", "py4j", "pandas", "fastavro", "google"}
"""What the extra brings."""


@contextmanager
def spark_needed(command: str) -> Iterator[None]:
    """Around imports of what needs the extra: raises UsageError, which says what to install, where it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        raise UsageError(
            f"`{command}` needs {missing}, which is not installed",
            why="Spark is an optional extra, which most commands do not need",
            remedy="pip install 'blockgz[spark]', and Java 17 for it",
        ) from error
