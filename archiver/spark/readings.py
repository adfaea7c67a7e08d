"""How the sink learns what a batch read: it commits in a process of its own, which has no Spark, and asks the job.

The job's process reads the checkpoint through Spark, wherever that is. Both are on the driver's machine, and speak over
a socket in a folder that is this user's alone: a batch's number there, what it read back.
"""

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import Any

from archiver.commit.batch import Reading
from archiver.spark.sorting import Place

ANSWER_SECONDS = 60
"""The checkpoint may be in a store that is slow, or asked again and again."""
STOP_SECONDS = 0.1


class _Server(UnixStreamServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asked gets no answer, and takes it for unknown."""


@contextmanager
def answered(readings_of: Callable[[int], Mapping[Place, Reading]]) -> Iterator[str | None]:
    """Answer what batches read, by their numbers; gives the address, or None where no socket can be made."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            found = readings_of(int(self.rfile.readline()))
            self.wfile.write(json.dumps([[*place, *reading] for place, reading in found.items()]).encode())

    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="blockgz-"))
            address = str(Path(folder) / "readings")
            server = stack.enter_context(_Server(address, Handler))
        except OSError:  # a folder for temporary files with a path too long for a socket, for one
            yield None
            return
        threading.Thread(target=server.serve_forever, args=(STOP_SECONDS,), daemon=True).start()
        stack.callback(server.shutdown)
        yield address


def asked(address: str, batch_id: int) -> dict[Place, Reading]:
    """What the batch read of each partition; empty where nobody knows or answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(address)
            connection.sendall(b"%d\n" % batch_id)
            with connection.makefile("rb") as answer:
                found = json.loads(answer.read())
    except (OSError, ValueError):
        return {}
    return {Place(topic, partition): Reading(start, end) for topic, partition, start, end in found}
