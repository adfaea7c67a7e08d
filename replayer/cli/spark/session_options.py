"""Options of every Spark job: where it runs, and Spark's own settings."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from blockgz_runtime.errors import UsageError
from blockgz_runtime.program.options import with_options

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGES = {"pyspark", "py4j", "pandas", "fastavro"}
"""What the extra `spark` brings."""


@dataclass(frozen=True)
class SessionOptions:
    """Where Spark runs: `master` is None for what spark-submit says, or this machine; `settings` are Spark's."""

    master: str | None
    settings: dict[str, str]


def session_options(function: F) -> F:
    """Adds --master --conf --jars; passes `spark: SessionOptions`."""

    @functools.wraps(function)
    def with_session(
        *args: Any, master: str | None, settings: tuple[str, ...], jars: tuple[str, ...], **kwargs: Any
    ) -> Any:
        given = dict(_setting(text) for text in settings)
        if jars:
            given["spark.jars"] = ",".join(jars)
        return function(*args, spark=SessionOptions(master, given), **kwargs)

    options = [
        click.option(
            "--master",
            envvar="BLOCKGZ_SPARK_MASTER",
            metavar="URL",
            help="Spark's master; what spark-submit says, or local[*].",
        ),
        click.option(
            "--conf",
            "settings",
            multiple=True,
            envvar="BLOCKGZ_SPARK_CONF",
            metavar="NAME=VALUE",
            help="A setting of Spark; may be repeated.",
        ),
        click.option(
            "--jars",
            multiple=True,
            envvar="BLOCKGZ_SPARK_JARS",
            metavar="FILE",
            help="A jar that Spark loads, such as spark-avro; may be repeated.",
        ),
    ]
    return cast(F, with_options(with_session, options))


@contextmanager
def spark_needed() -> Iterator[None]:
    """Around imports of what needs the extra `spark`: says what to install where it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        raise UsageError(
            f"`replayer spark` needs {missing}, which is not installed",
            why="Spark is an extra: most commands do without",
            remedy="pip install 'blockgz[spark]', and Java 17 for it",
        ) from error


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise UsageError(
            f"--conf {text[:80]!r} is not a setting of Spark",
            why="it has no '='" if not separator else "its name does not begin with spark.",
            remedy="write it as --conf spark.executor.memory=2g",
        )
    return name, value
