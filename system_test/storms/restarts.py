"""Every question and change that the product asks a cluster for, again and again, while its broker goes and comes back.

Each is asked by a process of its own, which must not die, and all failures must be errors of ours. As a control, three
processes make the calls directly that `blockgz.kafka.admin_apart` makes in a child process. These may die,
which shows that the storm is strong.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from archiver.doctor import KafkaAccess
from archiver.ingest.kafka_cluster import KafkaCluster
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import client_settings, make_client
from blockgz.kafka.groups import GroupOffset, KafkaGroups
from index_format.errors import BlockgzError
from index_format.objects import Acl
from replayer.kafka.admin import KafkaAdmin, TopicChanges, kafka_groups
from replayer.kafka.topic_facts import ConfigChange, NewTopic
from system_test.support.consumer_groups import commit
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, fill_topic

TOPIC = "storm"
PARTITIONS = 4
PLACES = [(TOPIC, number) for number in range(PARTITIONS)]
GROUPS = [f"group-{number}" for number in range(5)]
PAUSE_SECONDS = 0.05
END_SECONDS = 120.0
LAST_SECONDS = 10.0
"""After the last restart everything is answered again."""
GOOD_ENDS = {"answered", "BrokerUnreachable", "PartitionUnavailable", "ReplayRefused"}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""For the broker: without it there are no ACLs to ask for."""
CONTROL = "librdkafka's own"
DIRECT = ("describe_cluster", "describe_consumer_groups", "delete_consumer_groups")

Ask = Callable[[int], Any]
"""Asks once; is given a number that is new."""


def asks(properties: Mapping[str, str]) -> dict[str, Callable[[], Ask]]:
    """Return what makes each question's client, and asks with it."""
    settings = client_settings(properties, "storm")

    def cluster() -> KafkaCluster:
        return KafkaCluster(settings)

    def access() -> KafkaAccess:
        return KafkaAccess(cluster().admin, make_client(AdminApart, settings))

    def apart() -> AdminApart:
        client: AdminApart = make_client(AdminApart, settings)
        return client

    def alone(ask: Callable[[Any], Any], client: Callable[[], Any]) -> Callable[[], Ask]:
        def made() -> Ask:
            asked = client()
            return lambda _: ask(asked)

        return made

    groups: Callable[[], KafkaGroups] = lambda: kafka_groups(properties)  # noqa: E731
    positions = {number: GroupOffset(number) for number in range(PARTITIONS)}
    acl = Acl("LITERAL", TOPIC, "User:reader", "*", "READ", "ALLOW")
    return {
        "topics and the cluster's id": alone(lambda each: (each.topics(), each.cluster_id()), cluster),
        "ends of logs": alone(lambda each: each.bounds(PLACES, "read_committed"), cluster),
        "topic ids": alone(lambda each: each.topic_ids([TOPIC]), cluster),
        "configurations and ACLs": alone(lambda each: each.describe([TOPIC]), cluster),
        "members of a group": alone(lambda each: each.unowned(GROUPS[0], [TOPIC]), cluster),
        "metadata of offsets": alone(lambda each: each.committed_metadata(GROUPS[0], [TOPIC]), cluster),
        "rights on topics": alone(lambda each: each.topic_operations([TOPIC]), access),
        "protocols": alone(lambda each: each.rebalance_protocols(), access),
        "newest timestamps": alone(lambda each: each.newest_timestamp(PLACES), access),
        "states of groups": alone(lambda each: each.members(GROUPS), groups),
        "offsets of groups": alone(
            lambda each: each.answers(GROUPS, {TOPIC: PARTITIONS}, 10), lambda: KafkaGroups(settings, cluster().admin)
        ),
        "offsets that are set": alone(lambda each: each.set_positions(GROUPS[1], TOPIC, positions), groups),
        "ACLs that are created": alone(lambda each: each.create_acls([acl]), lambda: TopicChanges(properties)),
        "a topic that is described": alone(
            lambda each: (each.again().topic(TOPIC), each.refuse_uncreatable(NewTopic("new", 1, {})), each.groups()),
            lambda: KafkaAdmin(properties),
        ),
        "topics that are changed": lambda: changes(properties),
        "rights on a group, apart": alone(lambda each: each.group_operations(GROUPS[0], 3), apart),
        "rights on the cluster, apart": alone(lambda each: each.cluster_operations(3), apart),
        "groups that are deleted, apart": alone(lambda each: each.delete(GROUPS[2]), groups),
        **{f"{CONTROL} {call}": lambda call=call: lambda _: directly(call, settings) for call in DIRECT},
    }


def directly(call: str, settings: dict[str, Any]) -> None:
    """Make one of the three calls that may abort the process, with a new client, as the child process does."""
    admin: AdminClient = make_client(AdminClient, settings)
    if call == "describe_cluster":
        admin.describe_cluster(include_authorized_operations=True, request_timeout=3).result()
    else:
        for answer in getattr(admin, call)(GROUPS, request_timeout=3).values():
            answer.result()


def changes(properties: Mapping[str, str]) -> Ask:
    client = TopicChanges(properties)

    def ask(number: int) -> None:
        topic = f"{TOPIC}-{number}"
        client.create(NewTopic(topic, 1, {}))
        client.add_partitions(topic, 2)
        client.alter(topic, ConfigChange({"retention.ms": "-1"}, ()))
        client.delete(topic, "")

    return ask


@dataclass
class Outcome:
    """What came of each question."""

    answers: dict[str, Counter[str]] = field(default_factory=dict)
    restarts: int = 0
    seconds: float = 0.0
    unexpected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{name}: {dict(counts)}" for name, counts in self.answers.items()]
        end = f"{self.restarts} restarts in {self.seconds:.0f} s, {len(self.unexpected)} unexpected"
        return "\n".join([*lines, *self.unexpected, end])


def ask_until_told(name: str, properties: Mapping[str, str], parent: Connection) -> None:
    """Be the process that asks one question until its parent sends anything."""
    made, counts, number = asks(properties)[name], Counter[str](), 0
    while not parent.poll(PAUSE_SECONDS):
        try:
            ask = made()
            while not parent.poll(PAUSE_SECONDS):
                number += 1
                ask(number)
                counts["answered"] += 1
        except (BlockgzError, KafkaException) as error:
            counts[type(error).__name__] += 1
    parent.send(counts)


def storm_of_restarts(broker: KafkaBroker, restarts: int, seed: int) -> Outcome:
    """Kill the broker, or stop it, so many times while everything is asked."""
    chance, outcome, begun = random.Random(seed), Outcome(), time.monotonic()
    prepare(broker.bootstrap)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes: dict[str, tuple[BaseProcess, Connection]] = {}
    properties = {"bootstrap.servers": broker.bootstrap}
    for name in asks(properties):
        here, there = context.Pipe()
        process = context.Process(target=ask_until_told, args=(name, properties, there), daemon=True)
        process.start()
        there.close()
        processes[name] = process, here
    for _ in range(restarts):
        time.sleep(chance.choice((0.5, 2.0, 5.0)))
        chance.choice((broker.kill, broker.stop))()
        time.sleep(chance.choice((0.0, 0.5, 3.0)))
        broker.start()
        outcome.restarts += 1
        died = sorted(name for name, (process, _) in processes.items() if process.exitcode is not None)
        print(f"{outcome.restarts} restarts; processes that died: {died}", flush=True)
    time.sleep(LAST_SECONDS)
    for name, (process, here) in processes.items():
        outcome.answers[name] = _ended(process, here)
        good_ends = GOOD_ENDS | ({"KafkaException"} if name.endswith("apart") else set())
        if not outcome.answers[name].keys() <= good_ends and not name.startswith(CONTROL):
            outcome.unexpected.append(f"{name}: {dict(outcome.answers[name])}")
    outcome.seconds = time.monotonic() - begun
    return outcome


def _ended(process: BaseProcess, here: Connection) -> Counter[str]:
    """What a process tells when it is told to end, and how it ended."""
    counts = Counter[str]()
    with suppress(EOFError, OSError):
        here.send("end")
        counts = here.recv() if here.poll(END_SECONDS) else counts
    process.join(END_SECONDS)
    if process.exitcode != 0:
        counts[f"ended with {process.exitcode}"] += 1
        process.kill()
    elif not counts["answered"]:
        counts["never answered"] += 1
    return counts


def prepare(bootstrap: str) -> None:
    """Make a topic, and groups with offsets in it."""
    fill_topic(bootstrap, TOPIC, [NewRecord(b"v", partition=number) for number in range(PARTITIONS)], PARTITIONS)
    for group in GROUPS:
        commit(bootstrap, group, TOPIC, dict.fromkeys(range(PARTITIONS), 1))
