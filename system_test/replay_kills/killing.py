"""A transactional replay, SIGKILLed at random moments and resumed until it is done; what the target holds then."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from system_test.support.archiving import Site
from system_test.support.bulk import produce_bulk
from system_test.support.programs import Running, start
from system_test.support.topics import Record, create_topic, read
from system_test.support.waiting import wait_until

PARTITIONS = 4
JOB = "kills"
STARTING_SECONDS = 2.5
JITTER_SECONDS = 0.5
POLL_SECONDS = 0.02
RUN_SECONDS = 600
LEAST_SECONDS = 40
"""What a whole replay takes at the least where it is to be killed, so that it is not done before, however slow the
questions about its progress are. The last run has no such limit."""


@dataclass(frozen=True)
class Outcome:
    """What happened. `target_offsets` count transaction markers, and records that were rolled back, too."""

    records: int
    kills: int
    kills_before_first_record: int
    runs_that_committed: int
    lost: int
    doubled: int
    out_of_order: int
    target_offsets: int
    last_run: dict[str, Any]
    peak_mb: int
    seconds: float


def prepare(site: Site, topic: str, records: int, seed: int) -> None:
    """Produces the records and archives them."""
    create_topic(site.bootstrap, topic, PARTITIONS)
    produce_bulk(site.bootstrap, topic, records, partitions=PARTITIONS, value_bytes=100, seed=seed)
    site.run(topic, "--once", "--chunk-records", str(max(records // 40, 1000)), timeout=RUN_SECONDS)


def replay_and_kill(site: Site, topic: str, target: str, records: int, kills: int, seed: int) -> Outcome:
    """Most kills come a moment after a random share was committed, a quarter of them at some moment of the start."""
    randomly = random.Random(seed)
    began = time.monotonic()
    create_topic(site.bootstrap, target, PARTITIONS)
    shares: list[int | None] = [*sorted(randomly.randrange(records * 3 // 4) for _ in range(kills - kills // 4))]
    for _ in range(kills // 4):
        shares.insert(randomly.randrange(len(shares)), None)
    slowed = partial(_started, site, topic, target, "--rate", f"{records // LEAST_SECONDS}/s")
    with Watch(site.bootstrap, target, f"blockgz-{JOB}") as watch:
        lives = [_live_and_die(slowed, watch, share, randomly) for share in shares]
        with _started(site, topic, target) as replay:
            last_run = json.loads(replay.wait(RUN_SECONDS).expect(0).stdout)
        compared = [_compared(site, topic, target, partition) for partition in range(PARTITIONS)]
        lost, doubled, out_of_order = (sum(each[place] for each in compared) for place in range(3))
        target_offsets = watch.logged()
    return Outcome(
        records,
        sum(life.killed for life in lives),
        sum(life.logged == 0 for life in lives),
        sum(life.committed > 0 for life in lives),
        lost,
        doubled,
        out_of_order,
        target_offsets,
        {name: last_run[name] for name in ("records", "records_before", "complete")},
        max(life.peak_bytes for life in lives) // 1_000_000,
        round(time.monotonic() - began, 1),
    )


class Life(NamedTuple):
    """What one run did before it was killed, if it was not done before."""

    killed: bool
    logged: int
    committed: int
    peak_bytes: int


class Watch:
    """What the target's log and the job's group hold, from outside the replay."""

    def __init__(self, bootstrap: str, target: str, group: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted"}
        self._consumer = Consumer(settings)
        self._places = [TopicPartition(target, partition) for partition in range(PARTITIONS)]

    def logged(self) -> int:
        """Offsets in the log: records, committed or not, and transaction markers."""
        return self._asked(
            lambda: sum(self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in self._places)
        )

    def committed(self) -> int:
        """Records that the job says are written."""
        return self._asked(
            lambda: sum(max(place.offset, 0) for place in self._consumer.committed(self._places, timeout=10))
        )

    def _asked(self, question: Callable[[], int]) -> int:
        """A broker that just started has no leaders and no coordinator for a moment."""

        def answer() -> tuple[int] | None:
            with suppress(KafkaException):
                return (question(),)
            return None

        return wait_until(answer, 30, "the target's leaders and the job's coordinator")[0]

    def __enter__(self) -> Watch:
        self.logged()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _live_and_die(command: Callable[[], Running], watch: Watch, share: int | None, randomly: random.Random) -> Life:
    logged, committed = watch.logged(), watch.committed()
    with command() as replay:
        if share is not None:
            goal = max(share, committed + 1)
            reached = partial(_reached, watch, goal, replay)
            wait_until(reached, RUN_SECONDS, "progress", longest_pause=POLL_SECONDS)
        moment = time.monotonic() + randomly.uniform(0, STARTING_SECONDS if share is None else JITTER_SECONDS)
        wait_until(partial(_past, moment), RUN_SECONDS, "the moment", longest_pause=POLL_SECONDS)
        peak = _peak_bytes(replay.pid)
        done = replay.kill()
    if done.exit_code not in (-9, 0):
        raise AssertionError(f"it ended by itself\n{done.transcript}")
    return Life(done.exit_code == -9, watch.logged() - logged, watch.committed() - committed, peak)


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else 0


def _reached(watch: Watch, goal: int, replay: Running) -> bool:
    return watch.committed() >= goal or not replay.alive


def _past(moment: float) -> bool:
    return time.monotonic() >= moment


def _started(site: Site, topic: str, target: str, *pace: str) -> Running:
    """Every run is the same command but for its pace, the first one too; the foreign client reads no lz4."""
    job = ("--transactional", "--resume", "--job", JOB)
    options = (*job, *pace, "--yes", "--json", "-X", "compression.type=gzip")
    arguments = ("replay", topic, "--to-topic", target, *options, *site.kafka, *site.archive)
    return start("replayer", *arguments, env=site.env)


def _compared(site: Site, topic: str, target: str, partition: int) -> tuple[int, int, int]:
    """Records lost, doubled, out of order, as a foreign client reads both topics."""
    wanted = [_content(record) for record in read(site.bootstrap, topic, partition)]
    found = [_content(record) for record in read(site.bootstrap, target, partition)]
    lost = len(set(wanted) - set(found))
    doubled = len(found) - len(set(found))
    out_of_order = sum(1 for one, other in zip(wanted, found, strict=False) if one != other)
    return lost, doubled, out_of_order


def same_records(site: Site, topic: str, target: str) -> bool:
    """Whether the target's partitions hold the topic's records, each once and in order."""
    return all(_compared(site, topic, target, partition) == (0, 0, 0) for partition in range(PARTITIONS))


def _content(record: Record) -> tuple[object, ...]:
    return (record.timestamp, record.key, record.value, record.headers)
