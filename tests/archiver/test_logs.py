"""The log: what docs/operations.md says is what the code does, and both formats hold the same."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver import logs
from archiver.logs import LogEvent, log, log_to

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call of a log method in the archiver."""
    for path in sorted((ROOT / "archiver").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("log"), attr=method)) if method in LEVELS:
                    yield path, node


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger(logs.NAME)
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]


def test_events_and_keys_are_as_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([\w, ]*)\| \S", PAGE.partition("## Log")[2], re.MULTILINE)
    documented = {(event, level, keys.strip()) for event, level, keys in rows}
    used = set()
    for path, call in calls():
        assert isinstance(call.func, ast.Attribute)
        (event,) = call.args
        assert isinstance(event, ast.Attribute), f"{path}:{call.lineno}: an event is a LogEvent, its values are keys"
        keys = ", ".join(keyword.arg or "**" for keyword in call.keywords)
        used.add((LogEvent[event.attr].value, call.func.attr, keys))
    assert used == documented
    assert {event for event, _, _ in used} == set(LogEvent)


def test_nothing_else_logs_by_itself() -> None:
    getters = {path for path in (ROOT / "archiver").rglob("*.py") if "getLogger" in path.read_text()}
    assert {path.name for path in getters} == {"logs.py"}


def test_json_lines(stream: io.StringIO) -> None:
    log_to(stream, level=logging.WARNING, log_format="json")
    log.info(LogEvent.RESUMED)
    log.warning(LogEvent.RETRY, topic="orders", partition=3, attempt=1, cause='no "answer"\nyet')
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert list(entry) == ["timestamp", "level", "event", "topic", "partition", "attempt", "cause"]
    assert (entry["level"], entry["event"], entry["cause"]) == ("warning", "retry", 'no "answer"\nyet')
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry["timestamp"])


def test_text_lines(stream: io.StringIO) -> None:
    log_to(stream, level=logging.INFO, log_format="text")
    log.info(LogEvent.RESUMED)
    log.error(LogEvent.STOPPED, topic="orders", partition=3, cause="a b\nc", why="")
    resumed, stopped = stream.getvalue().splitlines()
    assert resumed.split(" ", 1)[1] == "INFO resumed"
    assert stopped.split(" ", 1)[1] == 'ERROR stopped topic=orders partition=3 cause="a b\\nc" why='
