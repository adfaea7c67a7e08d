"""The log: events with fixed names and fixed keys, as text for people or one JSON object a line.

An event is what happened, its keys say to what: `log.warning(LogEvent.RETRY, attempt=3, cause="…")`. Every event and
its keys stand in docs/monitoring.md.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from io import TextIOBase
from typing import Any, TextIO

from blockgz.errors import BlockgzError, masked_urls
from blockgz.kafka import LOGGER
from blockgz.process import refused

with refused("rich"):  # which it would have for tracebacks in colours, the tenth part of a start
    import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

NAME = "blockgz.archiver"


class LogEvent(StrEnum):
    """All that the archiver logs."""

    ABANDONED = "abandoned"
    ASSIGNED = "assigned"
    CLAIMED = "claimed"
    CLIENT_LOG = "client_log"
    COMMITTED = "committed"
    COMPACTED = "compacted"
    CONFIGURATION = "configuration"
    COURTESY_FAILED = "courtesy_failed"
    DENIED = "denied"
    DESCRIBE_DENIED = "describe_denied"
    DROPPED = "dropped"
    DRILLS_LEFT_OUT = "drills_left_out"
    GAP = "gap"
    GROUP_UNKNOWN = "group_unknown"
    GROUPS_UNKNOWN = "groups_unknown"
    INVENTORY_BEHIND = "inventory_behind"
    INVENTORY_REBUILT = "inventory_rebuilt"
    LISTENING = "listening"
    LOST = "lost"
    NOT_MAINTAINED = "not_maintained"
    PARTITION_PAUSED = "partition_paused"
    PARTITION_RESUMED = "partition_resumed"
    PAUSED = "paused"
    PROCESS_DIED = "process_died"
    PROGRESS = "progress"
    PRUNED = "pruned"
    REQUEST_FAILED = "request_failed"
    RESTART = "restart"
    RESUMED = "resumed"
    RETRY = "retry"
    REVOKED = "revoked"
    SINGLE_WRITER = "single_writer"
    STARTED = "started"
    STOPPED = "stopped"
    SUBSCRIBED = "subscribed"
    SUCCEEDED = "succeeded"
    TAIL_UNVERIFIED = "tail_unverified"
    TOPIC_GONE = "topic_gone"
    TOO_LATE = "too_late"
    TOPIC_CHANGED = "topic_changed"
    TOPIC_CONFIG_KEPT = "topic_config_kept"
    TOPIC_CONFIG_UNKNOWN = "topic_config_unknown"
    TOPIC_MISSING = "topic_missing"
    TOPICS_UNKNOWN = "topics_unknown"
    UNANSWERED = "unanswered"
    UNCONFIRMED = "unconfirmed"
    UNENCRYPTED = "unencrypted"
    UNOWNED = "unowned"
    WAITING = "waiting"
    WATERMARKS_UNKNOWN = "watermarks_unknown"
    WORKER_DIED = "worker_died"


def _logger(name: str) -> structlog.stdlib.BoundLogger:
    wrapped: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return wrapped


# The archiver's log. Silent below WARNING until `log_to` names its stream; no other logger is configured.
log = _logger(NAME)
# Messages at the start of a run and about its progress, regardless of the level that `log_to` gets.
progress_log = _logger(f"{NAME}.progress")


def log_to(stream: TextIO | TextIOBase, *, level: int, log_format: str) -> None:
    """Write events of at least `level` to the stream, in format `text` or `json`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log_format),
                _without_passwords,
            ]
        )
    )
    # librdkafka logs details only where `debug` among the user's settings asks for them.
    details = logging.DEBUG if level <= logging.INFO else level
    for name, listener, least in ((NAME, handler, level), (LOGGER, ClientLog(), details)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [listener]
        logger.setLevel(least)
        logger.propagate = False
    logging.getLogger(f"{NAME}.progress").setLevel(logging.INFO)


FIRST_QUIET_SECONDS = 60.0
LONGEST_QUIET_SECONDS = 3600.0
# Different lines that are remembered.
MOST_LINES = 1000


@dataclass
class Repeats:
    """How often a line came again."""

    quiet_until: float
    quiet_seconds: float = FIRST_QUIET_SECONDS
    left_out: int = 0

    def again(self, now: float) -> int | None:
        """Return how many lines were left out before this one; None to leave this one out too."""
        # A line that keeps coming is logged after a minute, then after twice as long each time, up to an hour.
        if now < self.quiet_until:
            self.left_out += 1
            return None
        is_new = now >= self.quiet_until + self.quiet_seconds
        self.quiet_seconds = FIRST_QUIET_SECONDS if is_new else min(2 * self.quiet_seconds, LONGEST_QUIET_SECONDS)
        self.quiet_until = now + self.quiet_seconds
        left_out, self.left_out = self.left_out, 0
        return left_out


class SeenLines:
    """The lines that came before, so that the same one is logged once and then ever more seldom."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, Repeats] = {}

    def again(self, alike: str) -> int | None:
        """Return how many of the lines that are `alike` were left out before this one; None to leave this out too."""
        now, seen = self._clock(), self._seen.get(alike)
        if seen is not None:
            return seen.again(now)
        if len(self._seen) >= MOST_LINES:
            del self._seen[next(iter(self._seen))]
        self._seen[alike] = Repeats(now + FIRST_QUIET_SECONDS)
        return 0


class FailureLog:
    """Logs failures that many partitions meet at once, or one again and again: one line for each cause, and a count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen = SeenLines(clock)

    def note(
        self, partition: tuple[str, int], attempt: int, error: BlockgzError | str, *, is_restart: bool = False
    ) -> None:
        """Log that `attempt` failed, unless the same cause was logged a short while ago."""
        name, part = partition
        what, why, to_do = (error, "", "") if isinstance(error, str) else (error.what, error.why, error.remedy)
        # Most errors name an object or a partition, and have a remedy that does not.
        n = self._seen.again(f"{is_restart} {type(error).__name__} {to_do or _NUMBER.sub('', what)}")
        if n is None:
            return
        log.warning(
            LogEvent.RESTART if is_restart else LogEvent.RETRY,
            topic=name,
            partition=part,
            attempt=attempt,
            cause=what,
            why=why,
            remedy=to_do,
            repeated=n,
        )


class ClientLog(logging.Handler):
    """Logs what Kafka clients log, as events; a broker that is down is not logged twenty times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seen = SeenLines(clock)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line in parts: kind, client, text."""
        parts = record.args if isinstance(record.args, tuple) and len(record.args) == 3 else ("", "", record.msg)
        kind, client, text = map(str, parts)
        text = _THREAD.sub("", text)
        if record.levelno < logging.WARNING:
            log.info(LogEvent.CLIENT_LOG, client=client, kind=kind, text=text)
            return
        broker = _BROKER.match(text)
        repeated = self._seen.again((broker[0] if broker else "") + _NUMBER.sub("", text))
        if repeated is not None:
            log.warning(LogEvent.CLIENT_LOG, client=client, kind=kind, text=text, repeated=repeated)


_THREAD = re.compile(r"^\[thrd:[^]]*\]: ")
_BROKER = re.compile(r"\S+:\d+/\S+: ")
_NUMBER = re.compile(r"\d+")


HEADING = ("timestamp", "level", "event")


def _renderers(log_format: str) -> list[Processor]:
    if log_format == "json":
        return [_heading_first, structlog.processors.JSONRenderer()]
    return [_as_text]


def _without_passwords(_: WrappedLogger, __: str, line: Any) -> Any:
    return masked_urls(line)


def _heading_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**{key: event[key] for key in HEADING}, **event}


_PAIRS = structlog.processors.LogfmtRenderer(bool_as_flag=False)


def _as_text(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Return `2026-01-02T03:04:05.678901Z WARNING retry attempt=3 cause="no answer"`."""
    heading = f"{event['timestamp']} {event['level'].upper()} {event['event']}"
    pairs = {key: value for key, value in event.items() if key not in HEADING and value is not None}
    return f"{heading} {_PAIRS(logger, method, pairs)}" if pairs else heading
