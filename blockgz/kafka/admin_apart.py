"""Three admin calls of librdkafka 2.16 that abort the whole process if a broker goes away: a child process makes them.

The child runs this file and gets its question, with the settings and their secrets, through a pipe.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

# Time for the child to start, beside the time for the answer.
START_SECONDS = 20.0


class AdminApart:
    """A client for `make_client`, which looks up the secrets among the settings. All calls raise KafkaException.

    A child that dies is an error of the connection, so that the call may be repeated.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {name: value for name, value in settings.items() if name != "logger" and not callable(value)}

    def cluster_operations(self, seconds: float) -> frozenset[str]:
        """Return what this user may do to the cluster, in Kafka's words such as DESCRIBE."""
        return frozenset(self._ask("describe_cluster", seconds) or ())  # None stands for no right at all

    def group_operations(self, group_id: str, seconds: float) -> frozenset[str] | None:
        """Return what this user may do to a consumer group; None if the brokers do not report it."""
        operations = self._ask("describe_consumer_groups", seconds, group_id)
        return None if operations is None else frozenset(operations)

    def delete_group(self, group_id: str, seconds: float) -> None:
        self._ask("delete_consumer_groups", seconds, group_id)

    def _ask(self, call: str, seconds: float, group_id: str = "") -> list[str] | None:
        question = {"settings": self._settings, "call": call, "seconds": seconds, "group_id": group_id}
        command = [sys.executable, "-P", __file__]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(question).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # librdkafka's log may repeat secrets
                timeout=START_SECONDS + seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        if done.returncode:
            died = f"the process that made the call ended with {done.returncode}: a broker went away meanwhile"
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, died))
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise KafkaException(KafkaError(*answer["error"]))
        operations: list[str] | None = answer["operations"]
        return operations


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    admin, call, group = AdminClient(question["settings"]), question["call"], question["group_id"]
    options = {"request_timeout": question["seconds"]}
    if call != "delete_consumer_groups":
        options["include_authorized_operations"] = True
    try:
        if call == "delete_consumer_groups":
            answer = admin.delete_consumer_groups([group], **options)[group]
        elif call == "describe_consumer_groups":
            answer = admin.describe_consumer_groups([group], **options)[group]
        else:
            answer = admin.describe_cluster(**options)
        operations = getattr(answer.result(), "authorized_operations", None)
    except KafkaException as error:
        failure: KafkaError = error.args[0]
        return {"error": [failure.code(), failure.str()]}
    return {"operations": None if operations is None else [operation.name for operation in operations]}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is expected, and its dump would hold secrets
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
