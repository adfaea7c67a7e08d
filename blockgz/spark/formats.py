"""Code that the Spark formats share: Kafka's columns, options by name, pickling for workers, Spark's versions."""

import difflib
import json
import pickle
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import datasource

from blockgz.errors import UsageError
from blockgz.store.address import LocalAddress

# Their types in Spark's simple notation; `headers` comes with includeHeaders.
KAFKA_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


# Settings of Hadoop's S3A that mean the same as options of ours.
S3A_NAMES = {
    "fs.s3a.endpoint": "endpointUrl",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.access.key": "accessKeyId",
    "fs.s3a.secret.key": "secretAccessKey",
    "fs.s3a.session.token": "sessionToken",
    "fs.s3a.assumed.role.arn": "roleArn",
}
# It may be a host alone.
S3A_ENDPOINT = "fs.s3a.endpoint"

# Options of Spark's own that it hands on to the format of a stream.
SPARK_OPTIONS = ("checkpointLocation", "queryName")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class FormatOptions:
    """The options that a format was given, read by the names that it knows."""

    def __init__(
        self,
        name: str,
        given: Mapping[str, str],
        known: Collection[str],
        *,
        hidden: Collection[str] = (),
        dotted: str = "remove it",
    ) -> None:
        """Raise UsageError for an option that is neither known nor `hidden`, which is known and never offered.

        `dotted` is the remedy for names with a dot, as a Kafka client has them; its {} is the name.
        """
        self._format = name
        if any(option.startswith("option.") for option in given):
            raise UsageError(
                f"format {name} cannot be a table of Spark's catalog",
                why="Spark does not pass the options of such a table to a Python format when it is read",
                remedy=f"CREATE TEMPORARY VIEW name USING {name} OPTIONS (…)",
            )
        if S3A_NAMES[S3A_ENDPOINT] in known:
            given = _without_s3a(given)
        names = {each.lower(): each for each in (*known, *hidden)}
        for option in sorted(given):
            if option.lower() not in names:
                lower = {each.lower(): each for each in known}
                near = difflib.get_close_matches(option.lower(), lower, 1)
                other = dotted.format(option) if "." in option else "remove it"
                raise UsageError(
                    f"format {name} has no option {option!r}",
                    why=f"there are {', '.join(sorted(known))}",
                    remedy=f"did you mean {lower[near[0]]}?" if near else other,
                )
        # The given options by their documented names.
        self.given = {names[option.lower()]: value for option, value in given.items()}

    def text(self, name: str) -> str | None:
        """Return the value; None if the option was left out or left empty."""
        return self.given.get(name) or None

    def path(self, usage: str) -> str:
        """Return the archive's address: a bare name is a folder, as everywhere in Spark.

        Folders are absolute, because executors work in folders of their own. Raises UsageError.
        """
        path = self.text("path")
        if path is None:
            raise UsageError(
                f"format {self._format} needs a path", remedy=f'add .option("path", "s3://bucket/prefix") or {usage}'
            )
        return path if _URL.match(path) else str(LocalAddress(path).root())

    def word(self, name: str, words: Collection[str], default: str) -> str:
        """Return one of `words`, given in any case."""
        text = self.given.get(name, default).lower()
        if text not in words:
            raise bad_value(name, text, " or ".join(words))
        return text

    def flag(self, name: str, *, default: bool) -> bool:
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str) -> int | None:
        """Return a whole number that is not negative."""
        text = self.given.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
            raise bad_value(name, text, "123456")
        return int(text)


def _without_s3a(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with our names for those of S3A; raises UsageError for an unknown or repeated one."""
    options = {name: value for name, value in given.items() if not name.lower().startswith("fs.s3a.")}
    for name in given.keys() - options.keys():
        lower, value = name.lower(), given[name]
        if lower not in S3A_NAMES:
            raise UsageError(
                f"{name} has no effect",
                why="the archive is read and written without Hadoop",
                remedy=f"remove it; these of S3A mean the same here: {', '.join(S3A_NAMES)}",
            )
        ours = S3A_NAMES[lower]
        if ours.lower() in map(str.lower, options):
            raise UsageError(f"{name} and {ours} are the same option", remedy="remove one of them")
        options[ours] = f"https://{value}" if lower == S3A_ENDPOINT and "://" not in value else value
    return options


def json_object(name: str, text: str, example: str) -> dict[str, Any]:
    """Return the JSON object of an option; raises UsageError."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise bad_value(name, text, example)
    return found


def bad_value(name: str, text: str, example: str) -> UsageError:
    """Return the error for a value that an option does not take."""
    return UsageError(f"{name} is {text[:80]!r}", why="the value is not valid", remedy=f"write it like {example}")


class Shipped:
    """An object that Spark pickles for workers; a worker whose Python lacks this package says so, and what to do."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, bytes]]:
        kind = type(self)
        return _opener(), (kind.__module__, kind.__qualname__, pickle.dumps(self.__dict__))


def _opener() -> Callable[..., Any]:
    """Return a function that cloudpickle sends as code and not by its name, as it does with functions inside others."""

    def opened(module: str, name: str, state: bytes) -> Any:
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import sys  # noqa: PLC0415

        try:
            made: Any = object.__new__(getattr(importlib.import_module(module), name))
            made.__dict__.update(pickle.loads(state))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the Python of Spark's workers, {sys.executable}, has no blockgz: {error}\n"
                "why:   tasks run in Python processes: spark.pyspark.python or PYSPARK_PYTHON, otherwise python3\n"
                "do:    install the driver's version of blockgz[spark] there, or ship an environment with "
                "--archives and set PYSPARK_PYTHON to its Python"
            ) from None
        return made

    return opened


__all__ = ["DataSourceStreamArrowWriter", "require_spark"]

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)
"""Spark 4.0 has none: a writer of streams begins with `require_spark`."""


def require_spark(version: str, what: str, found: str = pyspark.__version__) -> None:
    """Raise UsageError if Spark is older than `version`, such as 4.2, which `what` needs."""
    if _number(found) < _number(version):
        raise UsageError(
            f"{what} needs Spark {version} or later",
            why=f"this is Spark {found}, which lacks what that takes",
            remedy=f"install pyspark {version} or later, or do it as a batch",
        )


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
