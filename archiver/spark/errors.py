"""What a batch is refused for, and how Spark is told of an error and tells it back."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from archiver import errors as archiver_errors
from blockgz_runtime.errors import UsageError
from index_format import errors as format_errors
from index_format.errors import BlockgzError


class WriteFailed(Exception):
    """An error with its reason and its remedy in one text: of an exception, Spark shows no more than that."""


class BatchRefused(BlockgzError):
    """Records that cannot become part of an archive as they are; nothing of their batch is committed."""


class JobFailed(BlockgzError):
    """Spark ended a job, for no reason of the archive's."""


_KINDS: dict[str, type[BlockgzError]] = {
    name: kind
    for name, kind in {**vars(format_errors), **vars(archiver_errors), "BatchRefused": BatchRefused}.items()
    if isinstance(kind, type) and issubclass(kind, BlockgzError)
}
"""What may be raised while an archive is written, by name."""


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours as WriteFailed."""
    try:
        yield
    except BlockgzError as error:
        lines = [
            f"[{type(error).__name__}] {error.what}",
            f"why:   {error.why}" if error.why else "",
            f"do:    {error.remedy}" if error.remedy else "",
        ]
        raise WriteFailed("\n".join(in_options(line) for line in lines if line)) from error


def error_in(text: str) -> BlockgzError:
    """The error of ours that Spark tells about, of its own class; JobFailed for any other.

    UsageError where Spark cannot begin for want of Java.
    """
    if "[JAVA_GATEWAY_EXITED]" in text:
        return UsageError("Spark cannot begin", why="it finds no Java", remedy="install Java 17 and set JAVA_HOME")
    found = re.findall(r"WriteFailed: \[(\w+)\] (.*)(?:\nwhy:   (.*))?(?:\ndo:    (.*))?", text)
    if not found:
        lines = [line for line in text.splitlines() if line.strip()]
        return JobFailed(lines[0] if lines else "Spark ended the query", why=" ".join(lines[1:3]))
    name, what, why, remedy = found[-1]
    kind = _KINDS.get(name, JobFailed)
    return kind(what, why=why, remedy=remedy)


def in_options(text: str) -> str:
    """The text with the names of the format's options in place of the program's: groupId for --group-id."""
    return re.sub(r"(?<!\w)--([a-z]+(?:-[a-z]+)*)\b", _option, text)


def _option(match: re.Match[str]) -> str:
    first, *rest = match[1].split("-")
    name = first + "".join(word.capitalize() for word in rest)
    return {"archive": "path"}.get(name, name)
