"""Which cluster and topics a job reads, as the broker tells the client that Spark's Kafka source brings along."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from archiver.errors import Diverged
from blockgz_runtime.topic_patterns import TopicSelection

DEADLINES = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}
"""Of the client that is asked for identities alone."""


class Identities(NamedTuple):
    """What the broker does not tell, or not to this client, stays unknown, as in `archiver run`."""

    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = {}

    def options(self) -> dict[str, str]:
        """Of the format `blockgz-archive`."""
        options = {"topicIds": json.dumps(self.topic_ids)} if self.topic_ids else {}
        return options | ({"clusterId": self.cluster_id} if self.cluster_id else {})

    def joined(self, now: "Identities", checkpoint: str) -> "Identities":
        """These and what is new in `now`; raises Diverged for a topic that was created again.

        The checkpoint's offsets are those of the topic before, so that a query must not go on with them.
        """
        for topic, topic_id in self.topic_ids.items():
            if now.topic_ids.get(topic, topic_id) != topic_id:
                raise Diverged(
                    f"topic {topic} was created again while the job ran",
                    why=f"its id was {topic_id}, and is {now.topic_ids[topic]}; the checkpoint is of the old one",
                    remedy=f"remove the checkpoint {checkpoint}, or give another one, and start again: the new topic "
                    "is archived from its start, beside the old one",
                )
        return Identities(now.cluster_id or self.cluster_id, {**self.topic_ids, **now.topic_ids})


def asked_for(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, kafka: Mapping[str, str]
) -> Identities:
    """The identities of the topics that are there by now."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**kafka, "bootstrap.servers": bootstrap_servers, **DEADLINES}.items():
        settings.setProperty(name, value)
    selected = TopicSelection(topics)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            cluster_id = admin.describeCluster().clusterId().get()
            listings = admin.listTopics().namesToListings().get()
            ids = {topic: listing.topicId().toString() for topic, listing in listings.items()}
        finally:
            admin.close()
    except Py4JError:
        return Identities()
    return Identities(cluster_id, {topic: ids[topic] for topic in selected(ids)})
