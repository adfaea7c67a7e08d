"""What a job must not read over silently, and how errors pass through Spark, which knows them as texts alone."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException

from blockgz_runtime.errors import UsageError, exit_code
from index_format.errors import BlockgzError

PREFIX = "blockgz failure: "
"""Stands before an error of ours, as JSON, in what Spark says of an exception in a task."""

_TRACE = re.compile(r"at |Traceback|File \"|JVM stacktrace|Driver stacktrace|: [a-z.]+\.[A-Z]")
"""Beginnings of lines of stack traces."""

_SETTLED = {
    "JAVA_GATEWAY_EXITED": "install Java 17 and set JAVA_HOME, or see what it says with --debug",
    "PATH_ALREADY_EXISTS": "choose another place, or say --mode append or --mode overwrite",
    "TABLE_OR_VIEW_ALREADY_EXISTS": "choose another name, or say --mode append or --mode overwrite",
    "AVRO_DATA_SOURCE_NOT_ENABLED": "add Spark's own jar for Avro: --jars spark-avro_2.13-VERSION.jar, or "
    "--conf spark.jars.packages=org.apache.spark:spark-avro_2.13:VERSION",
}
"""Conditions of Spark that are about what was asked for."""


class ReadFailed(Exception):
    """An error with its reason and remedy in one text: of an exception, Spark shows no more than that."""


class TaskFailed(Exception):
    """An error of a task of ours, as JSON, for `failure_of`."""


class SparkFailed(BlockgzError):
    """Spark could not do the job."""

    exit_code = 1


class JobFailed(BlockgzError):
    """An error of a task, with the exit code that it had there."""

    def __init__(self, what: str, why: str, remedy: str, exit_code: int) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.exit_code = exit_code


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


@contextmanager
def in_task() -> Iterator[None]:
    """Errors of ours as TaskFailed, so that the driver finds them again in what Spark says."""
    try:
        yield
    except BlockgzError as error:
        told = {"what": error.what, "why": error.why, "remedy": error.remedy, "exit_code": exit_code(error)}
        raise TaskFailed(PREFIX + json.dumps(told)) from error


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark raises, as errors of ours."""
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
    """The error in what Spark says of an exception: ours if a task raised one, otherwise Spark's own first lines."""
    if (place := text.find(PREFIX)) >= 0:
        with suppress(ValueError):  # cut short on the way
            told, _ = json.JSONDecoder().raw_decode(text[place + len(PREFIX) :])
            return JobFailed(told["what"], told["why"], told["remedy"], told["exit_code"])
    why = _first_words(text)
    if condition in _SETTLED:
        return UsageError("Spark refuses to begin", why=why, remedy=_SETTLED[condition])
    return SparkFailed(
        "Spark could not do the job",
        why=why,
        remedy="see Spark's own log, or run it again with --debug; an executor that was lost needs memory outside the "
        "heap: --conf spark.executor.memoryOverhead=1g",
    )


def _first_words(text: str) -> str:
    """What Spark says, without stack traces."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not _TRACE.match(line)]
    return " ".join(" ".join(said[:3]).split())[:500]


class DataLost(BlockgzError):
    """Offsets that the job asks for are not in the archive."""

    def __init__(self, where: str, start: int, end: int, why: str) -> None:
        super().__init__(
            f"offsets {start} to {end} of {where} cannot be read",
            why=why,
            remedy="set failOnDataLoss to false to read the rest, or choose other offsets",
        )
