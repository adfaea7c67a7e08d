"""Searching values, keys and headers of a range of records: what it reads is known before, what it finds at once."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from blockgz.archive.archive import Archive
from blockgz.archive.request import SKIPS, DamagePolicies, SelectionRequest
from blockgz.archive.selection import Reading, Selection, scan
from blockgz.archive.topics import TopicPartitions
from index_format.records import iter_records
from replayer.replay.plan import describe_source
from replayer.serve.content import preview_of
from replayer.serve.tasks import Task

MOST_FOUND = 1000
"""A search ends there: who wants all of them replays or exports them."""


@dataclass(frozen=True)
class Search:
    """What is sought, in which offsets; it reads so many bytes with so many requests."""

    topic: str
    chosen: Sequence[Selection]
    selection: SelectionRequest
    records: int
    bytes: int
    requests: int
    damage: DamagePolicies = field(default_factory=lambda: DamagePolicies(SKIPS))

    @property
    def document(self) -> dict[str, Any]:
        """What it will cost."""
        return {"topic": self.topic, "records": self.records, "bytes": self.bytes, "requests": self.requests}


async def planned_search(archive: Archive, topic: TopicPartitions, selection: SelectionRequest) -> Search:
    """Looks up what a search has to read; raises UsageError, NotInArchive, or what the archive raises."""
    chosen = await selection.select(archive, topic)
    reading = Reading(on_damage=DamagePolicies(SKIPS).of)
    sources = [await describe_source(each, reading) for each in chosen]
    return Search(
        topic.topic,
        chosen,
        selection,
        sum(each.records for each in sources),
        sum(each.stored_bytes for each in sources),
        sum(each.requests for each in sources),
    )


async def search(task: Task, sought: Search) -> None:
    """Reads partition after partition; the task's result grows with each record that is found."""
    found: list[dict[str, Any]] = []
    task.result = {"found": found, "skipped": [], "has_more": False}
    task.all, task.unit = sought.records, "records"
    for selection in sought.chosen:
        partition = selection.partition
        policy = sought.damage.of(partition)
        try:
            async with aclosing(scan(partition, *selection.offsets, on_damage=policy)) as batches:
                async for batch in batches:
                    await task.may_go_on.wait()
                    hits = await asyncio.to_thread(sought.selection.filter.apply, batch)
                    found += [
                        {
                            "partition": partition.partition,
                            "offset": record.offset,
                            "timestamp_ms": record.timestamp if record.timestamp >= 0 else None,
                            "key": preview_of(record.key),
                            "value": preview_of(record.value),
                        }
                        for record in iter_records(hits.slice(0, MOST_FOUND - len(found)))
                    ]
                    task.advance(batch.num_rows)
                    if len(found) >= MOST_FOUND:
                        task.result["has_more"] = True
                        return
        finally:
            task.result["skipped"] = [
                {"partition": each.partition, "from": lost.start, "to": lost.end, "reason": lost.reason}
                for each, lost in sought.damage.skipped
            ]
