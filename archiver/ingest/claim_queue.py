"""Partitions that wait to be claimed: the bounds of their logs are asked for all at once."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Generic, NamedTuple, TypeVar

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_log import AskBounds
from archiver.ingest.kafka_source import Partition
from index_format.errors import BlockgzError

C = TypeVar("C")


class _Claim(NamedTuple):
    partition: Partition
    carry_out: Callable[[Partition, LogBounds], Any]
    result: Future[Any]


class ClaimQueue(Generic[C]):
    """Has claims carried out, each with the bounds of its log. Where nobody tells them, the claim fails.

    A partition without a leader so takes no thread from the others. `submit` and `ask` belong to one thread.
    """

    def __init__(self, ask: AskBounds, executor: Executor) -> None:
        self._ask = ask
        self._executor = executor
        self._new: list[_Claim] = []

    def submit(self, partition: Partition, claim: Callable[[Partition, LogBounds], C]) -> Future[C]:
        """What `claim` returns or raises, in time; it is carried out in another thread."""
        result: Future[C] = Future()
        self._new.append(_Claim(partition, claim, result))
        return result

    def ask(self) -> None:
        """Ask for the logs of all partitions that were submitted since the last call."""
        if self._new:
            self._executor.submit(self._begin, self._new)
            self._new = []

    def _begin(self, claims: list[_Claim]) -> None:
        left = list(claims)
        try:
            answers = self._ask([claim.partition for claim in claims])
            while left:
                answer = answers[left[-1].partition]
                if isinstance(answer, LogBounds):
                    self._executor.submit(_carry_out, left[-1], answer)
                else:
                    left[-1].result.set_exception(answer)
                left.pop()
        except Exception as error:  # nobody asks for the result of this call, but for each claim's
            for claim in left:
                claim.result.set_exception(_internal(error))


def _carry_out(claim: _Claim, bounds: LogBounds) -> None:
    try:
        claim.result.set_result(claim.carry_out(claim.partition, bounds))
    except BlockgzError as error:
        claim.result.set_exception(error)
    except Exception as error:
        claim.result.set_exception(_internal(error))


def _internal(error: Exception) -> BlockgzError:
    failure = BlockgzError("internal error", why=repr(error))
    failure.__cause__ = error
    return failure
