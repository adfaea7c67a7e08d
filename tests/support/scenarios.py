"""What the simulator runs: writers of one short partition, alone, in a crowd, or beside garbage collection."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from index_format import objects
from index_format.keys import TOPIC_OBJECT, archive_key, topic_home
from index_format.objects import ArchiveInfo, TopicInfo
from tests.support.archives import records
from tests.support.chain import check_markers, check_write_once, read_chain
from tests.support.chunks import archive_all, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Run, Scenario, simulate

IDENTITY = identity_of()
LOG = MemoryLog(records([0, 1, 2, 4, 5, 9, 10, 11, 12], value_bytes=0), high=15)
Mutation = Callable[[Run], Run]


class Company(NamedTuple):
    """Who takes part in a schedule."""

    writers: int
    crashes: int
    collectors: int


PAIR = Company(writers=2, crashes=2, collectors=0)
CROWD = Company(writers=6, crashes=4, collectors=0)
COLLECTED = Company(writers=2, crashes=2, collectors=1)


def short_partition(mutation: Mutation = lambda protocol: protocol) -> Scenario:
    """Writers that archive nine records with holes among them; `mutation` changes how they do it."""

    def writer(name: str, rng: random.Random) -> Run:
        return mutation(archive_all(IDENTITY, LOG, name, lambda: rng.randint(1, 4), takeovers=4))

    return Scenario(_founded(), LOG, writer, _check, _check_complete)


def harmed_partition(mutation: Mutation = lambda protocol: protocol) -> Scenario:
    """The same, judged by what readers see alone: an object may change as long as no chain holds it."""
    return replace(short_partition(mutation), check=_check_chain, check_complete=_check_chain_complete)


def run_schedule(scenario: Scenario, seed: int, company: Company = PAIR) -> None:
    """One schedule; raises Violation."""
    simulate(scenario, seed, writers=company.writers, crashes=company.crashes, collectors=company.collectors)


def company_of(seed: int) -> Company:
    """Mostly pairs, now and then a crowd or a collector: what a long run is made of."""
    if seed % 20 == 0:
        return CROWD
    return COLLECTED if seed % 20 == 10 else PAIR


def _founded() -> MemoryStore:
    store, keys = MemoryStore(), IDENTITY.keys
    archive = ArchiveInfo(archive_id=IDENTITY.archive_id, cluster_id=None, layout=keys.layout)
    topic = TopicInfo(topic=IDENTITY.topic, topic_id=IDENTITY.topic_id, incarnation=1)
    store.put_if_absent(archive_key(keys.layout), objects.encode(archive), "-")
    store.put_if_absent(topic_home(keys.layout, keys.folder) + TOPIC_OBJECT, objects.encode(topic), "-")
    return store


def _check(store: MemoryStore) -> None:
    check_write_once(store.versions, IDENTITY.keys.home)
    _check_chain(store)


def _check_complete(store: MemoryStore) -> None:
    check_write_once(store.versions, IDENTITY.keys.home)
    _check_chain_complete(store)


def _check_chain(store: MemoryStore) -> None:
    """The chain is a whole beginning of the log."""
    check_markers(store.versions, IDENTITY.keys.home)
    chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
    if chain is None:
        return
    assert chain.start_offset == 0 and not chain.gaps
    expected = [(record.offset, record.value) for record in LOG.records if record.offset < chain.next_offset]
    assert [tuple(line) for line in chain.lines] == expected, "records were lost, doubled or changed"


def _check_chain_complete(store: MemoryStore) -> None:
    _check_chain(store)
    chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
    assert chain is not None and len(chain.lines) == len(LOG.records), "the archive has no end"
