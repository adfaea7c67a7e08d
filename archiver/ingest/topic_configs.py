"""What topics are like, kept beside their chunks: partition count and configuration as last seen (FORMAT.md).

A courtesy to whoever restores a topic. No failure here stops or delays archiving.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future

from msgspec.structs import replace

from archiver.ingest.kafka_cluster import TopicDescription
from archiver.logs import LogEvent, log
from blockgz_runtime.store.writer import Store
from index_format import objects
from index_format.errors import BlockgzError
from index_format.identity import TopicConfig
from index_format.keys import TOPIC_CONFIG_OBJECT, TopicFolder, topic_home

INTERVAL_SECONDS = 300.0

Locate = Callable[[str], tuple[str | None, TopicFolder]]
"""A topic's id and folder, as TopicDirectory gives them."""
Describe = Callable[[Sequence[str]], Mapping[str, TopicDescription]]


class TopicConfigs:
    """Keeps the configurations of topics up to date; one call at a time."""

    def __init__(self, store: Store, layout: str, locate: Locate, describe: Describe) -> None:
        self._store = store
        self._layout = layout
        self._locate = locate
        self._describe = describe
        self._kept: dict[str, TopicConfig] = {}

    def keep(self, topics: Sequence[str]) -> None:
        """Ask the cluster about the topics and store what changed; failures are logged and left to the next call."""
        try:
            described = self._describe(topics)
        except BlockgzError as error:
            log.warning(LogEvent.TOPIC_CONFIG_UNKNOWN, topic=",".join(topics), cause=error.what, why=error.why)
            return
        for topic, description in described.items():
            try:
                self._keep(topic, description)
            except BlockgzError as error:
                log.warning(LogEvent.TOPIC_CONFIG_UNKNOWN, topic=topic, cause=error.what, why=error.why)

    def _keep(self, topic: str, description: TopicDescription) -> None:
        topic_id, folder = self._locate(topic)
        seen = TopicConfig(topic=topic, topic_id=topic_id, **description._asdict())
        if self._kept.get(topic) == seen:
            return
        if keep_topic_config(self._store, topic_home(self._layout, folder) + TOPIC_CONFIG_OBJECT, seen):
            log.info(LogEvent.TOPIC_CONFIG_KEPT, topic=str(folder), partitions=description.partitions)
        self._kept[topic] = seen


class TopicConfigSchedule:
    """Has configurations kept in a thread, each topic's not too often; all calls belong to one thread."""

    def __init__(self, configs: TopicConfigs, executor: Executor) -> None:
        self._configs = configs
        self._executor = executor
        self._kept_at: dict[str, float] = {}
        self._keeping: Future[None] | None = None

    def keep_due(self, topics: Iterable[str], now: float) -> None:
        """Start to keep those whose turn it is, unless others are being kept still."""
        if self._keeping is not None and not self._keeping.done():
            return
        due = [topic for topic in sorted(topics) if now - self._kept_at.get(topic, -math.inf) >= INTERVAL_SECONDS]
        if due:
            self._kept_at |= dict.fromkeys(due, now)
            self._keeping = self._executor.submit(self._configs.keep, due)


def keep_topic_config(store: Store, key: str, seen: TopicConfig) -> bool:
    """Store what was seen unless it is stored already; what is not told now stays as it was told before.

    False where nothing was written: it stood there, or another process wrote at the same time what it saw.
    """
    found = store.get(key)
    if found is None:
        return store.compare_and_swap(key, objects.encode(seen), None) is not None
    before = objects.decode(found.body, TopicConfig, key)
    if seen.config is None and before.topic_id == seen.topic_id:
        seen = replace(seen, config=before.config, defaults=before.defaults)
    body = objects.encode(seen)
    return body != found.body and store.compare_and_swap(key, body, found.etag) is not None
