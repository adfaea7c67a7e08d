"""The child process that makes dangerous calls may die, and keeps secrets to itself."""

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from blockgz.kafka import admin_apart
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.settings import client_settings, make_client

PROPERTIES = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "${env:PASSWORD_OF_A_TEST}"}


def apart(child: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdminApart:
    """A client whose child process is this program."""
    script = tmp_path / "child.py"
    script.write_text(child)
    monkeypatch.setattr(admin_apart, "__file__", str(script))
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2")
    client: AdminApart = make_client(AdminApart, client_settings(PROPERTIES, "test"))
    monkeypatch.delenv("PASSWORD_OF_A_TEST")
    return client


@pytest.mark.parametrize("end", ["import os; os.abort()", "raise SystemExit(1)"])
def test_a_child_that_dies_is_an_error_of_the_connection(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KafkaException) as raised:
        apart(end, tmp_path, monkeypatch).delete_group("g", 1)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT
    assert "a broker went away" in raised.value.args[0].str()


def test_a_child_that_gives_no_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_apart, "START_SECONDS", 0.1)
    with pytest.raises(KafkaException) as raised:
        apart("import signal; signal.pause()", tmp_path, monkeypatch).cluster_operations(0)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT


def test_settings_go_through_the_pipe_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = """
import json, sys
question = json.load(sys.stdin)
seen = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
password = question["settings"]["sasl.password"]
json.dump({"operations": [question["call"], question["group_id"], password, str(password in seen)]}, sys.stdout)
"""
    told = apart(child, tmp_path, monkeypatch).group_operations("g", 1)
    assert told == {"describe_consumer_groups", "g", "hunter2", "False"}


def test_an_error_is_raised_as_it_was_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"error": [KafkaError.GROUP_ID_NOT_FOUND, "no such group"]})
    with pytest.raises(KafkaException) as raised:
        apart(f"print({answer!r})", tmp_path, monkeypatch).delete_group("g", 1)
    assert (raised.value.args[0].code(), raised.value.args[0].str()) == (
        KafkaError.GROUP_ID_NOT_FOUND,
        "no such group",
    )


def test_without_a_broker_the_call_times_out() -> None:
    client: AdminApart = make_client(AdminApart, client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    with pytest.raises(KafkaException) as raised:
        client.cluster_operations(0.1)
    assert raised.value.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
    assert "ended with" not in raised.value.args[0].str()
