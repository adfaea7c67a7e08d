"""A broker that dies under replays: they go on by themselves once it is back, and can be ended while it is away."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from replayer.replay.run import CADENCE
from system_test.replay_kills.killing import PARTITIONS, Watch, prepare, same_records
from system_test.support.archiving import Site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, start
from system_test.support.topics import create_topic
from tests.support.sampling import in_long_run

RECORDS = 40_000
KILLS = 2
ENDING_SECONDS = 25.0
"""A stop after ten seconds, what the client takes to be dropped, and a slow machine."""


@pytest.fixture
def alive(broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """The broker; it runs again for the next test."""
    yield broker
    if not broker.running:
        broker.start()


def replaying(site: Site, topic: str, target: str, *options: str) -> Running:
    fixed = ("--to-topic", target, "--job", target, "--resume", "--yes", "--json", "-X", "compression.type=gzip")
    return start("replayer", "replay", topic, *fixed, *options, *site.kafka, *site.archive, env=site.env)


def test_a_broker_killed_in_the_middle_of_transactions(site: Site, alive: KafkaBroker, topic_name: str) -> None:
    """At a random moment, and in the middle of a commit: one and the same run of the replay outlives all that."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    prepare(site, topic_name, RECORDS, seed)
    target = f"{topic_name}-copy"
    create_topic(site.bootstrap, target, PARTITIONS)
    shares = sorted(randomly.randrange(RECORDS // 2) for _ in range(KILLS))
    with replaying(site, topic_name, target, "--transactional", "--rate", "5000/s") as replay:
        for share in shares:
            with Watch(site.bootstrap, target, f"blockgz-{target}") as watch:
                goal = max(share, watch.committed() + 1)
                replay.wait_for(lambda watch=watch, goal=goal: watch.committed() >= goal, 120, "progress")  # type: ignore[misc]
            if share == shares[-1]:
                # Frozen until the next commit has begun: cut off in its requests librdkafka does not come back.
                alive.pause()
                time.sleep(CADENCE.seconds + 1)
            else:
                time.sleep(randomly.uniform(0, 0.5))
            alive.kill()
            alive.start()
        result = json.loads(replay.wait(180).expect(0).stdout)
    assert (result["complete"], result["records"], result["records_before"]) == (True, RECORDS, 0)
    assert same_records(site, topic_name, target)


@in_long_run
@pytest.mark.timeout(200)
def test_ended_while_the_broker_is_away(site: Site, alive: KafkaBroker, topic_name: str) -> None:
    """SIGTERM and Ctrl-C do not wait for a broker that is gone, and what was committed is gone on with."""
    prepare(site, topic_name, RECORDS // 2, 1)
    modes = {
        f"{topic_name}-term": (("--transactional",), signal.SIGTERM, 143),
        f"{topic_name}-int": (("--transactional",), signal.SIGINT, 130),
        f"{topic_name}-plain": ((), signal.SIGTERM, 143),
    }
    runs = {}
    try:
        for target, (mode, _, _) in modes.items():
            create_topic(site.bootstrap, target, PARTITIONS)
            runs[target] = replaying(site, topic_name, target, *mode, "--rate", "1500/s")
        for target, run in runs.items():
            with Watch(site.bootstrap, target, f"blockgz-{target}") as watch:
                run.wait_for(lambda watch=watch: watch.logged() > 2000, 60, "records")  # type: ignore[misc]
        alive.kill()
        for target, (_, number, _) in modes.items():
            runs[target].signal(number)
        for target, (_, _, exit_code) in modes.items():
            told = runs[target].wait(ENDING_SECONDS).expect(exit_code).stderr
            assert "Traceback" not in told
            assert "--resume" in told
    finally:
        for run in runs.values():
            run.kill()
    alive.start()
    with ExitStack() as stack:
        again = {
            target: stack.enter_context(replaying(site, topic_name, target, *mode))
            for target, (mode, _, _) in modes.items()
        }
        for target, run in again.items():
            assert json.loads(run.wait(90).expect(0).stdout)["complete"]
            if modes[target][0]:
                assert same_records(site, topic_name, target)
