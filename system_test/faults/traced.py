"""`archiver` with small catalogs, which also writes down what it holds, and on SIGUSR1 all threads' stacks to stderr.

The variable FAULTS_POSITIONS names the file; see `positions.py` for what stands there. A line is written before the
records can be committed, and stays when the process is killed.
"""

import faulthandler
import itertools
import json
import os
import runpy
import signal
import time
from typing import Any

from archiver.commit.commit import PartitionIdentity
from archiver.commit.recovery import Claimed
from archiver.ingest import ownership
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import PartitionEvent
from system_test.support.hurried import hurry

_FILE = os.open(os.environ["FAULTS_POSITIONS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_numbers = itertools.count()


def _note(*entry: object) -> None:
    os.write(_FILE, json.dumps(entry).encode() + b"\n")


class Traced(PartitionArchiver):
    """A partition that tells what was handed over to it, and how it ended."""

    def __init__(self, identity: PartitionIdentity, claimed: Claimed, *args: Any, **named: Any) -> None:
        super().__init__(identity, claimed, *args, **named)
        self._number = next(_numbers)
        self._told = claimed.position
        keys, epoch = identity.keys, claimed.held.marker.epoch
        _note("claim", self._number, identity.topic_id, str(keys.folder), keys.partition, epoch, claimed.position)

    def offer(self, event: PartitionEvent) -> None:
        super().offer(event)
        if self.state.fetched > self._told:
            self._told = self.state.fetched
            _note("fetched", self._number, self._told)

    def close(self) -> None:
        state = self.state
        failure = None if state.failure is None else type(state.failure).__name__
        _note("end", self._number, time.time(), failure, state.is_idle, state.confirmed)
        super().close()


if __name__ == "__main__":
    hurry()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    ownership.PartitionArchiver = Traced  # type: ignore[misc]
    runpy.run_module("archiver", run_name="__main__", alter_sys=True)
