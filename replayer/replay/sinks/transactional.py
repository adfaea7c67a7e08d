"""Producing in transactions: the records of each commit and the position after them stand together or not at all."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blockgz_runtime.errors import BrokerUnreachable, UsageError
from blockgz_runtime.kafka.connection import DENIED
from index_format.errors import BlockgzError
from replayer.errors import CommitLost, DeliveryFailed, JobTakenOver
from replayer.replay.job import Job
from replayer.replay.ledger import Position
from replayer.replay.pipeline import KeepPartitions, Router, ScannedBatch
from replayer.replay.result import Delivered
from replayer.replay.sinks.bounded_calls import Calls, NoAnswer
from replayer.replay.sinks.committed_positions import READ_SECONDS, CommittedPositions
from replayer.replay.sinks.producer import STOP_SECONDS, TopicProducer, producer_settings

T = TypeVar("T")
P = TypeVar("P", bound=Position)

TRANSACTION_TIMEOUT_MS = 60_000
ANSWER_SECONDS = 15.0
"""How long the cluster may take for each step; less than the time after which it aborts a transaction."""
ABORT_SECONDS = 5.0
HANG_SECONDS = 5.0
"""So long after its own timeout a call of librdkafka has not come back yet: it is given up, with its producer."""
LANES_AT_ONCE = 8
RESUME = "repair the cause and resume with --resume"
RESERVED = ("message.timeout.ms", "transaction.timeout.ms", "transactional.id")

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
HOPELESS = {
    *DENIED,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
}
"""What another attempt would meet again."""


class TransactionalSink(Generic[P]):
    """A producer for each lane: a second run of the job fences the first one lane by lane."""

    def __init__(
        self,
        properties: Mapping[str, str],
        job: Job,
        positions: CommittedPositions[P],
        max_message_bytes: int | None = None,
        router: Router | None = None,
    ) -> None:
        """`max_message_bytes` is the topic's, where it is known. Raises UsageError.

        A lane is a target partition, unless a `router` says where its records go, taking the lane for their source.
        """
        for name in sorted(set(RESERVED) & properties.keys()):
            raise UsageError(f"-X {name} cannot be set", why="--transactional sets it itself", remedy="leave it out")
        settings = producer_settings(properties, max_message_bytes)
        self._settings = {**settings, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self._job = job
        self._positions = positions
        self._router = router or KeepPartitions()
        self._calls = Calls()
        self._lanes: dict[int, _LaneProducer[P]] = {}
        self._undecided: dict[int, _LaneProducer[P]] = {}
        """Those whose commit was begun and not answered, until `begin` learns what became of it."""
        self._delivered: dict[int, Delivered] = {}

    def begin(self, lanes: Iterable[int]) -> Mapping[int, P]:
        """Fences other runs, ends what they left open, and reads what is committed then.

        Raises JobTakenOver, CommitLost, AccessDenied, or what CommittedPositions raises.
        """
        wanted = list(lanes)
        _at_once(_LaneProducer.drop, self._lanes.values())
        for lane in self._lanes.values():
            lane.raise_if_fenced()
        self._undecided |= {number: lane for number, lane in self._lanes.items() if lane.undecided is not None}
        self._lanes = {
            number: _LaneProducer(self._settings, self._job, number, self._calls, self._router) for number in wanted
        }
        _at_once(_LaneProducer.init, self._lanes.values())
        recorded = self._settled(wanted)
        for number, lane in self._undecided.items():
            if lane.undecided == recorded.get(number):
                self._note(lane)
        self._undecided.clear()
        return recorded

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Into the lane's transaction, which begins with it; raises DeliveryFailed, CommitLost or JobTakenOver."""
        self._lanes[lane].send(batch)

    def commit(self, positions: Mapping[int, P]) -> None:
        """Ends the transactions of these lanes, several at a time; raises as `send` does."""
        metadata = self._positions.group_metadata

        def commit(number: int) -> None:
            self._lanes[number].commit(positions[number], metadata)
            self._note(self._lanes[number])

        _at_once(commit, positions)

    def delivered(self) -> Mapping[int, Delivered]:
        return dict(self._delivered)

    def stop(self) -> None:
        """Aborts what is open, if the cluster answers soon; the next run would do it as well."""
        self._calls.stop()
        _at_once(_LaneProducer.drop, self._lanes.values())

    def _settled(self, lanes: list[int]) -> Mapping[int, P]:
        what = f"where the job stands in {self._job.target} is not known"
        try:
            return self._calls.make(lambda: self._positions.settled(lanes), READ_SECONDS + HANG_SECONDS)
        except NoAnswer:
            raise CommitLost(what, why="the cluster does not answer", remedy=RESUME) from None
        except BrokerUnreachable as error:
            raise CommitLost(what, why=error.why, remedy=RESUME) from error

    def _note(self, lane: "_LaneProducer[P]") -> None:
        for partition, taken in lane.delivered().items():
            if taken.last_offset is not None:
                before = self._delivered.get(partition, taken)
                self._delivered[partition] = Delivered(before.first_offset, taken.last_offset)


class _LaneProducer(Generic[P]):
    """The transactional producer of one lane; a call that does not come back is the end of it."""

    def __init__(self, settings: Mapping[str, Any], job: Job, number: int, calls: Calls, router: Router) -> None:
        self.number = number
        self._router = router
        self.undecided: P | None = None
        """The position of a commit that was begun and not answered."""
        settings = {**settings, "transactional.id": job.transactional_id(number)}
        self._producer = TopicProducer(settings, job.target, self._meaning)
        self.delivered = self._producer.delivered
        self._client = self._producer.client
        self._calls = calls
        self._open = False
        self._dropped = False
        self._last_word: KafkaError | None = None

    def init(self) -> None:
        """Fences whoever had the transactional id, and ends what was left open."""
        self._do(lambda: self._client.init_transactions(ANSWER_SECONDS))

    def send(self, batch: pa.RecordBatch) -> None:
        self._begin()
        for target, records in self._router.route(ScannedBatch(self.number, batch)):
            self._producer.send(target, records)

    def commit(self, position: P, group_metadata: Any) -> None:
        self._begin()
        place = TopicPartition(self._producer.topic, self.number, position.written, position.encoded())
        self._do(lambda: self._client.send_offsets_to_transaction([place], group_metadata, ANSWER_SECONDS))
        self.undecided = position
        self._do(lambda: self._client.commit_transaction(ANSWER_SECONDS))
        self.undecided = None
        self._open = False

    def drop(self) -> None:
        """The end of this producer; what is open is aborted, unless the cluster does not answer."""
        if self._dropped:
            return
        self._dropped = True
        calls = Calls()
        with suppress(NoAnswer):
            if self._open:
                calls.make(self._abort, ABORT_SECONDS + HANG_SECONDS)
            calls.make(self._producer.stop, STOP_SECONDS + HANG_SECONDS)

    def _abort(self) -> None:
        try:
            self._client.abort_transaction(ABORT_SECONDS)
        except KafkaException as error:
            self._last_word = error.args[0]

    def raise_if_fenced(self) -> None:
        """After `drop`: raises JobTakenOver where another run took the lane, so that this one does not take it back."""
        word = self._producer.connection_errors.fatal or self._last_word
        if word is not None and word.code() in FENCED:
            raise self._meaning(self.number, word)

    def _begin(self) -> None:
        if not self._open:
            self._do(self._client.begin_transaction)
            self._open = True

    def _do(self, step: Callable[[], None]) -> None:
        """Takes a step, again while librdkafka says that this is safe; raises what its failure means."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._calls.make(step, ANSWER_SECONDS + HANG_SECONDS)
            except NoAnswer:
                # The producer is left to the call: its thread keeps it, and a new one's epoch fences it.
                self._dropped = True
                raise self._lost("the Kafka client did not come back, or was not waited for", RESUME) from None
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                if not failure.retriable() or time.monotonic() >= deadline:
                    self._producer.raise_failure()
                    raise self._meaning(self.number, failure) from error

    def _meaning(self, partition: int, error: KafkaError) -> BlockgzError:
        cause = self._producer.connection_errors.fatal or error
        topic = self._producer.topic
        if cause.code() in FENCED:
            return JobTakenOver(
                f"this run of the job lost target partition {partition} of {topic}",
                why=f"another run of the same job began, or this one stood still for too long ({cause.str()})",
                remedy="let the other run finish; if there is none, run this again with --resume",
            )
        failure = self._producer.not_taken(partition, cause)
        if cause.code() in HOPELESS or not isinstance(failure, DeliveryFailed):
            return failure
        return self._lost(failure.why, failure.remedy)

    def _lost(self, why: str, remedy: str) -> CommitLost:
        what = f"a transaction for {self._producer.topic}:{self.number} was not committed"
        return CommitLost(what, why=why, remedy=remedy)


def _at_once(step: Callable[[T], None], of: Iterable[T]) -> None:
    """Takes the step for several at a time, for all of them; raises the first failure in their order."""
    with ThreadPoolExecutor(LANES_AT_ONCE) as pool:
        for _ in pool.map(step, of):
            pass
