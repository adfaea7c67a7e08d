"""The offsets that a batch of Spark's Kafka source read: those without a record are holes of the log.

Without it, each transaction's last offset and each hole of compaction between two batches would be recorded as a gap
with reason `unverified`, and each such archive be verified with a WARNING. A batch reads from where the one before it
ended to offsets that Spark writes into the checkpoint before it begins. With `failOnDataLoss` it fails if it cannot
have all of them, or if a new partition does not begin at 0.

The sink commits in a Python process that has no Spark session, and a checkpoint may be anywhere that Hadoop reads. So
the job's process reads it through Spark, and the sink asks that process over a socket: both are on the driver's
machine, and the socket is in a folder that is this user's alone. Spark hands a sink nothing else of a batch but its
number: options are fixed for a query, and listeners hear of a batch after it is committed. A file that cannot be read
leaves what was read unknown, which costs a gap and never a record. Where the job itself is gone, nothing is committed:
the Python process of a sink outlives a driver that is killed by a moment, and the next job does the batch again.
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

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from archiver.spark.rows import BatchRefused
from index_format.keys import TopicPartition

# A file of the checkpoint by its path inside, None if it cannot be read.
ReadFile = Callable[[str], str | None]

# The version of both kinds of files; another one may mean anything.
VERSION = "v1"

# The checkpoint may be in a store that is slow.
ANSWER_SECONDS = 60
STOP_SECONDS = 0.1


def checkpoint_files(spark: SparkSession, checkpoint: str) -> ReadFile:
    """Read files of the checkpoint as Spark itself does: on any file system, with its settings.

    Raises Py4JNetworkError if Spark's Java is gone.
    """

    def read(name: str) -> str | None:
        jvm: Any = spark._jvm
        try:
            settings = spark._jsparkSession.sessionState().newHadoopConf()
            path = jvm.org.apache.hadoop.fs.Path(checkpoint, name)
            stream = path.getFileSystem(settings).open(path)
            try:
                text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
        except Py4JNetworkError:
            raise
        except Py4JError:
            return None
        return text

    return read


def ranges_read(read_file: ReadFile, batch_id: int) -> dict[TopicPartition, range]:
    """Return the offsets that the batch read of each partition; empty if the files do not say so for certain."""
    after = logged_offsets(read_file(f"offsets/{batch_id}"))
    if batch_id > 0:
        before = logged_offsets(read_file(f"offsets/{batch_id - 1}"))
    else:
        before = initial_offsets(read_file("sources/0/0"))
    if before is None or after is None:
        return {}
    ranges = {partition: range(before.get(partition, 0), end) for partition, end in after.items()}
    return {partition: reading for partition, reading in ranges.items() if reading}


def logged_offsets(text: str | None) -> Mapping[TopicPartition, int] | None:
    """Return the end of a batch from a file `offsets/N`: version, metadata, and a line for the only source."""
    match (text or "").splitlines():
        case [version, _, source] if version == VERSION:
            return _offsets(source)
    return None


def initial_offsets(text: str | None) -> Mapping[TopicPartition, int] | None:
    """Return the start of the first batch from the source's own file, which starts with a zero byte."""
    match (text or "").removeprefix("\0").splitlines():
        case [version, source] if version == VERSION:
            return _offsets(source)
    return None


def _offsets(line: str) -> Mapping[TopicPartition, int] | None:
    try:
        found = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in json.loads(line).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError):
        return None
    # Below zero stand words such as latest, of which nobody knows what they meant.
    return found if all(type(offset) is int and offset >= 0 for offset in found.values()) else None


class _RangesServer(UnixStreamServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Send no answer, which means that the job is gone."""


@contextmanager
def serve_ranges(ranges_of: Callable[[int], Mapping[TopicPartition, range]]) -> Iterator[str | None]:
    """Answer what batches read, by their numbers; gives the address, or None if no socket can be made."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            found = ranges_of(int(self.rfile.readline()))
            answer = [[*partition, reading.start, reading.stop] for partition, reading in found.items()]
            self.wfile.write(json.dumps(answer).encode())

    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="blockgz-"))
            address = str(Path(folder) / "readings")
            server = stack.enter_context(_RangesServer(address, Handler))
        except OSError:  # a folder for temporary files with a path too long for a socket, for one
            yield None
            return
        threading.Thread(target=server.serve_forever, args=(STOP_SECONDS,), daemon=True).start()
        stack.callback(server.shutdown)
        yield address


def ask_ranges(address: str, batch_id: int) -> dict[TopicPartition, range]:
    """Request from the job what the batch read of each partition; partitions for which that is unknown are left out.

    Raises BatchRefused if the job does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(address)
            connection.sendall(b"%d\n" % batch_id)
            with connection.makefile("rb") as answer:
                found = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise BatchRefused(
            f"batch {batch_id} is not committed",
            why=f"the job that reads it no longer answers: {error}",
            remedy="start the job again: it does the batch again",
        ) from error
    return {TopicPartition(topic, partition): range(start, end) for topic, partition, start, end in found}
