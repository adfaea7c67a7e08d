"""What older versions of Spark lack: formats load there all the same, and what cannot work says from where it does."""

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource

from blockgz.errors import UsageError

__all__ = ["DataSourceStreamArrowWriter", "require_spark"]

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)
"""Spark 4.0 has none: a writer of streams begins with `require_spark`."""


def require_spark(version: str, what: str, found: str = pyspark.__version__) -> None:
    """Raises UsageError where Spark is older than `version`, such as 4.2, which `what` needs."""
    if _number(found) < _number(version):
        raise UsageError(
            f"{what} needs Spark {version} or later",
            why=f"this is Spark {found}, which lacks what that takes",
            remedy=f"install pyspark {version} or later, or do it as a batch",
        )


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
