"""A partition of fourteen chunks of one record, for tests of what maintainers do."""

import random
from typing import Any

from archiver.commit.commit import Held, commit_chunk
from archiver.commit.recovery import take_over
from index_format import keys, objects
from index_format.objects import ArchiveInfo, TopicInfo
from tests.support.archives import records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Run, result_of

IDENTITY = identity_of()
KEYS = IDENTITY.keys
ROWS = records(range(40), value_bytes=0)
LOG = MemoryLog(ROWS)
TOKENS = random.Random(1)


def run(store: MemoryStore, protocol: Run) -> Any:
    """Run a protocol on the log to its end; return its result, or raise its failure."""
    return result_of(protocol, store, LOG, TOKENS)


def filled(store: MemoryStore) -> MemoryStore:
    """Archive fourteen chunks of one record; with a fan-out of two, twelve of them are in catalogs."""
    archive = ArchiveInfo(archive_id=IDENTITY.archive_id, cluster_id=None, layout="topic")
    topic = TopicInfo(topic=IDENTITY.topic, topic_id=IDENTITY.topic_id, incarnation=1)
    store.put_if_absent(keys.archive_key("topic"), objects.encode(archive), "-")
    store.put_if_absent(keys.topic_home("topic", KEYS.folder) + keys.TOPIC_OBJECT, objects.encode(topic), "-")
    held: Held = run(store, take_over(IDENTITY, "writer", POLICY)).held
    for offset in range(14):
        held = run(store, commit_chunk(IDENTITY, held, finished_chunk("json", (ROWS[offset],), offset, offset + 1)))
    return store
