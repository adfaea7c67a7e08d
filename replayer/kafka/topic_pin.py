"""The topic that a replay began to write to: whether it is the same one still, and holds what was written to it."""

import time
from collections.abc import Mapping

from blockgz.errors import listed
from replayer.errors import TargetChanged
from replayer.kafka.admin import KafkaAdmin

ASK_AGAIN_SECONDS = 1.0
TIMES_MISSING = 3
"""So often a broker must say that there is no such topic."""


class TopicPin:
    """Asks the cluster; any thread may do so."""

    def __init__(self, admin: KafkaAdmin, topic: str, topic_id: str | None) -> None:
        """`topic_id` is that of the topic at the beginning, None where the cluster tells none."""
        self._admin = admin
        self._topic = topic
        self._topic_id = topic_id

    def check(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Where these partitions end now, as the cluster tells it: at `ends` at least, or TargetChanged is raised.

        Raises BrokerUnreachable, PartitionUnavailable or AccessDenied where it cannot be asked.
        """
        if self._topic_id is not None:
            self._refuse_another(ends)
        bounds = self._admin.watermarks(self._topic, ends, "read_uncommitted", patience=0.0)
        found = {lane: each.end for lane, each in bounds.items()}
        for lane, least in sorted(ends.items()):
            if found[lane] < least:
                raise TargetChanged(
                    f"{self._topic}:{lane} lacks records that this job wrote to it",
                    why=f"it ends at offset {found[lane]}, but the job's records reach to {least}",
                    remedy="start another job with --job NAME and a new topic; this one cannot be completed",
                )
        return found

    def _refuse_another(self, ends: Mapping[int, int]) -> None:
        """Raises TargetChanged where the topic is gone, or was made again; a broker may not know of a new topic yet."""
        for again in range(TIMES_MISSING):
            answers = self._admin.topic_ids([self._topic])
            if self._topic not in answers.missing:
                break
            if again:
                time.sleep(ASK_AGAIN_SECONDS)
        found = answers.ids.get(self._topic)
        gone = self._topic in answers.missing
        if not gone and found in (None, self._topic_id):
            return
        written = [f"partition {lane} up to offset {end}" for lane, end in sorted(ends.items()) if end]
        now = "the topic no longer exists" if gone else f"the topic with that name now has id {found}"
        raise TargetChanged(
            f"topic {self._topic} was deleted while the job wrote to it" + ("" if gone else ", and created again"),
            why=f"its id was {self._topic_id}, {now}; what the job wrote is gone with it"
            + (f": {listed(written)}" if written else ""),
            remedy="start another job with --job NAME; records that this one has sent since may be in the new topic",
        )
