"""The servers of a campaign as child processes, with what they store left in place for whoever looks into a failure."""

import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Commanded:
    """A program of this package that takes commands on stdin and answers each with a line."""

    def __init__(self, module: str, arguments: Sequence[object], log: Path) -> None:
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )
        self._name = module

    def ask(self, line: str, expected: str) -> None:
        """Give a command and wait until it is carried out; RuntimeError when the program died instead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._name} has died") from None
        self.expect(expected)

    def expect(self, expected: str) -> None:
        """Wait for a line."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != expected:
            raise RuntimeError(f"{self._name} answered {answer!r} instead of {expected!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class VerifiableProducer(Commanded):
    """One verifiable producer."""

    def __init__(self, name: str, mode: str, bootstrap: str, rate: float, seed: str, home: Path) -> None:
        ledger = home / f"{name}.ledger"
        arguments = (mode, "--bootstrap", bootstrap, "--ledger", ledger, "--rate", rate, "--seed", seed)
        super().__init__("system_test.faults.kafka_producer", arguments, home / f"{name}.log")

    def open(self, topic: str, topic_id: str, partitions: int, keys: int) -> None:
        self._command("open", topic, topic_id, partitions, keys)

    def pause(self, topic: str) -> None:
        """Produce to it no longer; returns when all that was sent is acknowledged."""
        self._command("pause", topic)

    def quit(self) -> None:
        self._command("quit")

    def _command(self, *command: Any) -> None:
        self.ask(json.dumps(command), command[0])


def archived_topic_id(topic_id: str) -> str:
    """A topic id as kafka-python gives it (a UUID's text) in the form that librdkafka gives and archives hold."""
    return base64.b64encode(uuid.UUID(topic_id).bytes).rstrip(b"=").decode()
