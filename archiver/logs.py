"""The log: events with fixed names and fixed keys, as text for people or one JSON object a line.

An event is what happened, its keys say to what: `log.warning(LogEvent.RETRY, attempt=3, cause="…")`. Every event and
its keys stand in docs/operations.md.
"""

import logging
from enum import StrEnum
from typing import TextIO

from blockgz_runtime.process import refused

with refused("rich"):  # which it would have for tracebacks in colours, the tenth part of a start
    import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

NAME = "blockgz.archiver"


class LogEvent(StrEnum):
    """All that the archiver logs."""

    ABANDONED = "abandoned"
    ASSIGNED = "assigned"
    CLAIMED = "claimed"
    COMMITTED = "committed"
    COURTESY_FAILED = "courtesy_failed"
    DENIED = "denied"
    DROPPED = "dropped"
    GAP = "gap"
    GROUP_UNKNOWN = "group_unknown"
    LISTENING = "listening"
    LOST = "lost"
    PARTITION_PAUSED = "partition_paused"
    PARTITION_RESUMED = "partition_resumed"
    PAUSED = "paused"
    REQUEST_FAILED = "request_failed"
    RESTART = "restart"
    RESUMED = "resumed"
    RETRY = "retry"
    REVOKED = "revoked"
    SINGLE_WRITER = "single_writer"
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
    WATERMARKS_UNKNOWN = "watermarks_unknown"
    WORKER_DIED = "worker_died"


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(NAME),
    processors=[structlog.stdlib.filter_by_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    wrapper_class=structlog.stdlib.BoundLogger,
)
"""The archiver's log. Silent below WARNING until `log_to` says where it goes; no other logger is configured."""


def log_to(stream: TextIO, *, level: int, log_format: str) -> None:
    """Write events of at least `level` to the stream, in format `text` or `json`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log_format),
            ],
        )
    )
    logger = logging.getLogger(NAME)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


HEADING = ("timestamp", "level", "event")


def _renderers(log_format: str) -> list[Processor]:
    if log_format == "json":
        return [_heading_first, structlog.processors.JSONRenderer()]
    return [_TextRenderer()]


def _heading_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**{key: event[key] for key in HEADING}, **event}


class _TextRenderer:
    """`2026-01-02T03:04:05.678901Z WARNING retry attempt=3 cause="no answer"`."""

    def __init__(self) -> None:
        self._pairs = structlog.processors.LogfmtRenderer(bool_as_flag=False)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        heading = f"{event['timestamp']} {event['level'].upper()} {event['event']}"
        pairs = {key: value for key, value in event.items() if key not in HEADING}
        return f"{heading} {self._pairs(logger, method, pairs)}" if pairs else heading
