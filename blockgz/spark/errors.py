"""Errors on their way through Spark, which only passes texts on."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException

from blockgz.errors import BlockgzError, UsageError, camel_case, exit_code

# The text before an error of ours, as JSON, in Spark's message about an exception.
PREFIX = "blockgz failure: "

# Beginnings of lines of stack traces.
_TRACE = re.compile(r"at |Traceback|File \"|JVM stacktrace|Driver stacktrace|: [a-z.]+\.[A-Z]")

_FLAG = re.compile(r"(?<!\w)(?:-a/)?--([a-z]+(?:-[a-z]+)*)\b")
_COMMAND = re.compile(r"\b(archiver|replayer) [a-z]")

_NO_MODULE = re.compile(r"No module named '?([A-Za-z0-9_]+)")

# Conditions of Spark that the user's options caused, with remedies.
_SETTLED = {
    "JAVA_GATEWAY_EXITED": "install Java 17 and set JAVA_HOME, or run with --debug to see its output",
    "PATH_ALREADY_EXISTS": "choose another place, or use --mode append or --mode overwrite",
    "TABLE_OR_VIEW_ALREADY_EXISTS": "choose another name, or use --mode append or --mode overwrite",
    "AVRO_DATA_SOURCE_NOT_ENABLED": "add Spark's Avro jar: --jars spark-avro_2.13-VERSION.jar, or "
    "--conf spark.jars.packages=org.apache.spark:spark-avro_2.13:VERSION",
}


class ReadFailed(Exception):
    """An error of a read, its reason and its remedy in one text: of an exception, Spark shows no more than that."""


class WriteFailed(Exception):
    """An error of a write, in one text as ReadFailed has it."""


class TaskFailed(Exception):
    """An error of a task of one of our jobs, in one text as ReadFailed has it."""


class SparkFailed(BlockgzError):
    """Spark could not do the job."""

    exit_code = 1


class JobFailed(BlockgzError):
    """An error that came through Spark, with the exit code that it has; `kind` is the name of its class."""

    def __init__(self, what: str, why: str, remedy: str, exit_code: int, kind: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.exit_code = exit_code
        self.kind = kind


@contextmanager
def report_errors(kind: type[Exception]) -> Iterator[None]:
    """Raise errors of ours as `kind`, with a text for people, in words of the format."""
    try:
        yield
    except BlockgzError as error:
        _hide_traceback()
        raise kind(in_options(_text(error.what, error.why, error.remedy))) from None


@contextmanager
def carry_errors(kind: type[Exception], wording: Callable[[str], str] = str) -> Iterator[None]:
    """Raise errors of ours as `kind` with JSON behind the text, which `failure_of` finds.

    `wording` is applied to what, why and remedy.
    """
    try:
        yield
    except BlockgzError as error:
        _hide_traceback()
        name = type(error).__name__
        what, why, remedy = map(wording, (error.what, error.why, error.remedy))
        fields = {"what": what, "why": why, "remedy": remedy, "exit_code": exit_code(error), "kind": name}
        raise kind(f"[{name}] {_text(what, why, remedy)}\n{PREFIX}{json.dumps(fields)}") from error


def in_options(text: str) -> str:
    """Return the text with the names of the format's options in place of the program's: groupId for --group-id."""
    # A command that it names stays as it is.
    command = _COMMAND.search(text)
    end = command.start() if command else len(text)
    return _FLAG.sub(_option, text[:end]) + text[end:]


def _option(match: re.Match[str]) -> str:
    return "path" if match[1] == "archive" else camel_case(match[1])


def _hide_traceback() -> None:
    """Hide the traceback in a worker of Spark's, which ends with the exception: the text would be below our stack."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _text(what: str, why: str, remedy: str) -> str:
    return "\n".join(filter(None, [what, why and f"why:   {why}", remedy and f"do:    {remedy}"]))


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise Spark's errors as errors of ours."""
    try:
        yield
    except BlockgzError:
        raise
    except PySparkException as error:
        raise failure_of(str(error), error.getCondition()) from error
    except Exception as error:  # a driver's JVM that died is a connection refused
        if not isinstance(error, ConnectionError) and not type(error).__module__.startswith("py4j."):
            raise
        raise failure_of(str(error)) from error


def failure_of(text: str, condition: str | None = None) -> BlockgzError:
    """Return the error in Spark's message about an exception: ours if there is one, otherwise Spark's first lines."""
    if (place := text.find(PREFIX)) >= 0:
        with suppress(ValueError):  # cut short on the way
            fields, _ = json.JSONDecoder().raw_decode(text[place + len(PREFIX) :])
            return JobFailed(**fields)
    if (missing := _NO_MODULE.search(text)) is not None:
        return UsageError(
            f"the Python of Spark's workers has no module {missing[1]}",
            why="tasks run in Python processes: spark.pyspark.python or PYSPARK_PYTHON, otherwise python3",
            remedy="install the driver's version of blockgz[spark] there, or ship an environment with "
            "--archives and set PYSPARK_PYTHON to its Python",
        )
    said = [line for each in text.splitlines() if (line := each.strip()) and not _TRACE.match(line)]
    why = " ".join(" ".join(said[:3]).split())[:500]
    if condition in _SETTLED:
        return UsageError("Spark refuses to start", why=why, remedy=_SETTLED[condition])
    return SparkFailed(
        "Spark could not do the job",
        why=why,
        remedy="see Spark's log, or run again with --debug; a lost executor needs more memory outside the "
        "heap: set spark.executor.memoryOverhead=1g",
    )
