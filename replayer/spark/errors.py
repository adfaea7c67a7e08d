"""What a job must not read over silently, and how Spark is told of an error."""

from collections.abc import Iterator
from contextlib import contextmanager

from index_format.errors import BlockgzError


class ReadFailed(Exception):
    """An error with its reason and remedy in one text: of an exception, Spark shows no more than that."""


class WriteFailed(Exception):
    """The same of a write."""


@contextmanager
def told(kind: type[Exception] = ReadFailed) -> Iterator[None]:
    """Errors of ours as `kind`."""
    try:
        yield
    except BlockgzError as error:
        lines = [
            error.what,
            f"why:   {error.why}" if error.why else "",
            f"do:    {error.remedy}" if error.remedy else "",
        ]
        raise kind("\n".join(line for line in lines if line)) from error


class DataLost(BlockgzError):
    """Offsets that the job asks for are not in the archive."""

    def __init__(self, where: str, start: int, end: int, why: str) -> None:
        super().__init__(
            f"offsets {start} to {end} of {where} cannot be read",
            why=why,
            remedy="set failOnDataLoss to false to read the rest, or choose other offsets",
        )
