"""The log: what docs/monitoring.md says is what the code does, and both formats hold the same."""

import ast
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from archiver.logs import LONGEST_QUIET_SECONDS, ClientLog, FailureLog, LogEvent, log, log_to
from blockgz.errors import AccessDenied, StoreFull
from blockgz.kafka.connection import ConnectionErrors, client_settings, make_client

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/monitoring.md").read_text()
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call of a log method in the archiver."""
    for path in sorted((ROOT / "archiver").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("log" | "progress_log"), attr=method)) if (
                    method in LEVELS
                ):
                    yield path, node


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.mark.slow
def test_events_and_keys_are_as_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([\w, ]*)\| \S", PAGE.partition("## Log")[2], re.MULTILINE)
    documented = {(event, level, keys.strip()) for event, level, keys in rows}
    used = set()
    for path, call in calls():
        assert isinstance(call.func, ast.Attribute)
        (chosen,) = call.args
        keys = ", ".join(keyword.arg or "**" for keyword in call.keywords)
        for event in [chosen.body, chosen.orelse] if isinstance(chosen, ast.IfExp) else [chosen]:
            where = f"{path}:{call.lineno}"
            assert isinstance(event, ast.Attribute), f"{where}: an event is a LogEvent, its values are keys"
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


def test_a_cause_that_many_partitions_meet_is_one_line_with_a_count(stream: io.StringIO) -> None:
    log_to(stream, level=logging.WARNING, log_format="json")
    clock = [0.0]
    failures = FailureLog(lambda: clock[0])
    full = StoreFull("s3://bucket is full", remedy="raise the quota")
    for clock[0] in (0.0, 1.0, 59.0, 60.0):
        for number in range(50):
            denied = AccessDenied(f"access to {number}/marker was denied", why="403", remedy="renew the credentials")
            failures.note(("orders", number), 1, denied)
            failures.note(("orders", number), 1, denied, is_restart=True)
            failures.note(("orders", number), 2, full)
            failures.note(("orders", number), 1, f"the store says both that {number} exists and that it does not")
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["event"], each["repeated"]) for each in entries] == [
        *((event, 0) for event in ("retry", "restart", "retry", "retry")),
        *((event, 149) for event in ("retry", "restart", "retry", "retry")),
    ]
    assert entries[0]["remedy"] == "renew the credentials" and entries[0]["cause"] == "access to 0/marker was denied"


REFUSED = "b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after {}ms in state CONNECT)"


def client_logs(text: str, client: str = "archiver#consumer-1", level: int = logging.ERROR) -> logging.LogRecord:
    parts = ("FAIL", client, text)
    return logging.LogRecord("librdkafka", level, __file__, 1, "%s [%s] %s", parts, None)


@pytest.mark.slow
def test_a_dead_broker_is_logged_ever_more_seldom(stream: io.StringIO) -> None:
    log_to(stream, level=logging.WARNING, log_format="json")
    now = 0.0
    handler = ClientLog(lambda: now)
    logged_at = []
    for second in range(0, 86_400, 10):
        now = float(second)
        for client in ("archiver#consumer-1", "archiver#producer-2"):
            handler.emit(client_logs(f"[thrd:b1:9092/1]: {REFUSED.format(second)}", client))
        handler.emit(client_logs(REFUSED.format(second)))  # the same as the client's error callback has it
        logged_at += [second] * len(stream.getvalue().splitlines())
        if second == 60:
            (entry,) = map(json.loads, stream.getvalue().splitlines())
            assert entry | {"timestamp": ""} == {
                "timestamp": "",
                "level": "warning",
                "event": "client_log",
                "client": "archiver#consumer-1",
                "kind": "FAIL",
                "text": REFUSED.format(60),
                "repeated": 3 * 6 - 1,
            }
        stream.truncate(stream.seek(0))
    assert logged_at[:4] == [0, 60, 180, 420]
    assert len(logged_at) < 35, "one an hour in the end"
    now += 3 * LONGEST_QUIET_SECONDS
    for _ in range(2):
        handler.emit(client_logs(REFUSED.format(1)))
    now += 60
    handler.emit(client_logs(REFUSED.format(1)))
    assert len(stream.getvalue().splitlines()) == 2, "the next outage is a new one"


def test_other_brokers_and_other_lines_are_not_held_back(stream: io.StringIO) -> None:
    log_to(stream, level=logging.INFO, log_format="text")
    handler = ClientLog(lambda: 0.0)
    for text in (REFUSED, REFUSED.replace("b1:", "b2:"), "JoinGroup failed: Broker: Invalid session timeout"):
        handler.emit(client_logs(text))
        handler.emit(client_logs(text))
    handler.emit(client_logs("a detail", level=logging.DEBUG))
    handler.emit(client_logs("a detail", level=logging.DEBUG))
    levels = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert levels == ["WARNING"] * 3 + ["INFO"] * 2


def test_clients_log_here(stream: io.StringIO) -> None:
    log_to(stream, level=logging.WARNING, log_format="text")
    settings = client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test")
    errors = ConnectionErrors()
    client = make_client(AdminClient, {**settings, "error_cb": errors})
    deadline = time.monotonic() + 10
    while not errors.all_down:
        assert time.monotonic() < deadline
        client.poll(0.1)
    lines = stream.getvalue().splitlines()
    assert sum("Connection refused" in line for line in lines) == 1
    assert sum("brokers are down" in line for line in lines) == 1
