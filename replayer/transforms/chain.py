"""Transforms in order, each with the predicate that says for which records it is."""

from collections.abc import Callable
from dataclasses import dataclass

from replayer.transforms.predicates import Predicate, TopicNameMatches
from replayer.transforms.record import CannotTransform, ConnectRecord, Converter
from replayer.transforms.routers import RegexRouter, TimestampRouter

Transform = Callable[[ConnectRecord], ConnectRecord | None]
"""None: the record is dropped. Raises CannotTransform."""


@dataclass(frozen=True)
class Condition:
    """A predicate, and the answer for which the transform is applied."""

    predicate: Predicate
    applies_when: bool


@dataclass(frozen=True)
class Step:
    """A transform by the name that it has in the settings, and its condition."""

    alias: str
    transform: Transform
    condition: Condition | None = None


@dataclass(frozen=True)
class Chain:
    """All transforms, and how keys and values are read and written. `fingerprint` holds every setting."""

    steps: tuple[Step, ...]
    key_converter: Converter
    value_converter: Converter
    fingerprint: str

    @property
    def routes(self) -> bool:
        """Whether it may give a record another topic."""
        return any(isinstance(step.transform, RegexRouter | TimestampRouter) for step in self.steps)

    def routed_name(self, topic: str) -> str | None:
        """The topic of all records of `topic`; None where nothing routes, or where records decide about it."""
        if not self.routes:
            return None
        for step in self.steps:
            predicate = step.condition.predicate if step.condition else None
            if isinstance(step.transform, TimestampRouter):
                return None
            if isinstance(step.transform, RegexRouter):
                if isinstance(predicate, TopicNameMatches):
                    if predicate.matches(topic) is not (step.condition is not None and step.condition.applies_when):
                        continue
                elif predicate is not None:
                    return None
                topic = step.transform.renamed(topic)
        return topic

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None:
        """What becomes of a record, None where it is dropped; raises CannotTransform, naming the transform."""
        for step in self.steps:
            condition = step.condition
            if condition is not None and condition.predicate(record) is not condition.applies_when:
                continue
            try:
                result = step.transform(record)
            except CannotTransform as error:
                raise CannotTransform(f"transform {step.alias} ({type(step.transform).__name__}): {error}") from error
            except RecursionError as error:
                raise CannotTransform(f"transform {step.alias}: it is nested too deep") from error
            if result is None:
                return None
            record = result
        return record
