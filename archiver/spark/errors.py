"""What a batch is refused for, and how errors of a write reach Spark, and Spark's reach the job."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark import SparkContext

from archiver.errors import GapRefused
from blockgz.spark.errors import WriteFailed, carry_errors, in_options
from index_format.errors import BlockgzError

DATA_LOSS = "KAFKA_DATA_LOSS"
"""Spark's condition of errors about records that the topic does not hold any more; each has one of its own below it."""


class BatchRefused(BlockgzError):
    """Records that cannot become part of an archive as they are; nothing of their batch is committed."""


def as_write_failed() -> AbstractContextManager[None]:
    """Raises errors of ours as WriteFailed, in words of the format."""
    return carry_errors(WriteFailed, in_options)


def conditions(error: BaseException) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Conditions and parameters of an error and of its causes: pyspark forgets them where it knows no class for one."""
    gateway = SparkContext._gateway
    cause: Any = getattr(error, "_origin", None)
    while cause is not None:
        if is_instance_of(gateway, cause, "org.apache.spark.SparkThrowable") and (condition := cause.getCondition()):
            yield condition, dict(cause.getMessageParameters())
        cause = cause.getCause()


def data_loss(error: BaseException, checkpoint: str, *, is_recorded: bool) -> GapRefused | None:
    """The error to end a job with where Spark's source found that records are gone; None for any other.

    The checkpoint holds the offsets that are gone, so that each further try fails as well; a query without one begins
    where the topic does, and leaves out what is archived.
    """
    for condition, parameters in conditions(error):
        if condition.partition(".")[0] == DATA_LOSS:
            said = ", ".join(f"{name} {value}" for name, value in sorted(parameters.items()))
            again = f"remove the checkpoint {checkpoint}, or choose another one, and start again"
            return GapRefused(
                "the topic no longer holds the records to be archived next",
                why=f"Spark's Kafka source says {condition}: {said}",
                remedy=f"{again}{'' if is_recorded else ' with --on-gap record'}: what is archived already is left "
                "out, and the jump is recorded as a gap",
            )
    return None
