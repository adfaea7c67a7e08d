"""Work that the page's own process does, such as a search: begun, watched and cancelled; forgotten with the process."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.selection import SKIPS, DamagePolicies, Reading, Selection, SelectionRequest, scan
from blockgz.errors import BlockgzError, NotInArchive, UsageError
from index_format.records import iter_records
from replayer.replay.plan import describe_source
from replayer.serve.content import preview_of
from replayer.serve.errors import Failure, failure_of, told

MOST_RUNNING = 4
MOST_REMEMBERED = 200
OVER = frozenset({"complete", "failed", "cancelled"})
# Least seconds between two events of one task.
EVENT_SECONDS = 0.5
# An event comes at least so often, so that a connection that is gone is noticed.
SILENCE_SECONDS = 15.0


@dataclass
class Task:
    """One piece of work; `done` of `all` in `unit`, all of it None while that is unknown."""

    id: str
    kind: str
    title: str
    user: str
    created_at: float = field(default_factory=time.time)
    state: str = "running"
    done: int = 0
    all: int | None = None
    unit: str = "bytes"
    result: dict[str, Any] | None = None
    """The result so far."""
    failure: Failure | None = None
    can_pause: bool = False

    def __post_init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.work: asyncio.Task[None] | None = None
        self.next_change = asyncio.Event()

    def changed(self) -> None:
        """Notify the watchers, each of which waits for the first change after the one that it has seen."""
        told, self.next_change = self.next_change, asyncio.Event()
        told.set()

    def advance(self, count: int) -> None:
        """Count more work as done."""
        self.done += count
        self.changed()

    def ended(self) -> None:
        """Mark the task as ended. Work that was cancelled before its first step could not do this itself."""
        if self.state not in OVER:
            self.state = "cancelled"
            self.changed()

    @property
    def document(self) -> dict[str, Any]:
        actions = [] if self.state in OVER else ["cancel"]
        if self.can_pause and self.state in ("running", "paused"):
            actions.append("resume" if self.state == "paused" else "pause")
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "user": self.user,
            "created_at_ms": int(self.created_at * 1000),
            "state": self.state,
            "progress": {"done": self.done, "all": self.all, "unit": self.unit},
            "result": self.result,
            "failure": self.failure,
            "actions": actions,
        }


Work = Callable[[Task], Coroutine[Any, Any, None]]


class Tasks:
    """All tasks of this process, newest last."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __iter__(self) -> Any:
        return iter(self._tasks.values())

    def begin(self, kind: str, title: str, user: str, work: Work, *, can_pause: bool = False) -> Task:
        """Do the work behind the pages; raise UsageError if too much is running."""
        running = [task for task in self._tasks.values() if task.state not in OVER]
        if len(running) >= MOST_RUNNING:
            raise UsageError(
                f"{len(running)} tasks are running",
                why="this server does no more at once",
                remedy="wait for one of them, or cancel it",
            )
        task = Task(f"{kind}-{uuid.uuid4().hex[:12]}", kind, title, user, can_pause=can_pause)
        task.work = asyncio.create_task(_watched(task, work))
        task.work.add_done_callback(lambda _: task.ended())
        self._tasks[task.id] = task
        for old in [each.id for each in self._tasks.values() if each.state in OVER][: -MOST_REMEMBERED or None]:
            del self._tasks[old]
        return task

    def get(self, name: str) -> Task:
        """Return a task; raise NotInArchive."""
        if name not in self._tasks:
            raise NotInArchive(
                f"there is no task {name[:80]}", why="it has another name, or ended with an earlier server"
            )
        return self._tasks[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    async def close(self) -> None:
        works = [task.work for task in self._tasks.values() if task.work is not None and not task.work.done()]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)


def steer(task: Task, action: str) -> None:
    """Pause, resume or cancel a task; raise UsageError if that is not possible."""
    if action not in task.document["actions"]:
        raise UsageError(f"{task.title} cannot be {_PAST.get(action, action)}", why=f"it is {task.state}")
    if action == "cancel":
        assert task.work is not None
        task.work.cancel()
    elif action == "pause":
        task.may_go_on.clear()
        task.state = "paused"
    else:
        task.may_go_on.set()
        task.state = "running"
    task.changed()


_PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


async def events(task: Task) -> AsyncIterator[dict[str, Any]]:
    """Yield the task's document, at once and after each change, until the task is over."""
    while True:
        change, document = task.next_change, task.document
        yield document
        if document["state"] in OVER:
            return
        await asyncio.sleep(EVENT_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), SILENCE_SECONDS)


async def _watched(task: Task, work: Work) -> None:
    try:
        await work(task)
        task.state = "complete"
    except BlockgzError as error:
        task.state, task.failure = "failed", failure_of(error)
    except Exception as error:  # a bug: told and logged, as in a request
        task.state, (_, task.failure) = "failed", told(error)
    finally:
        task.changed()


# A search ends there: who wants all of them replays or exports them.
MOST_FOUND = 1000


@dataclass(frozen=True)
class Search:
    """A planned search: its conditions, its offsets, and the bytes and requests that it costs."""

    topic: str
    chosen: Sequence[Selection]
    selection: SelectionRequest
    records: int
    bytes: int
    requests: int
    damage: DamagePolicies = field(default_factory=lambda: DamagePolicies(SKIPS))

    @property
    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "records": self.records, "bytes": self.bytes, "requests": self.requests}


async def planned_search(archive: ArchiveReader, topic: TopicPartitions, selection: SelectionRequest) -> Search:
    """Look up what a search has to read; raise UsageError, NotInArchive, or what the archive raises."""
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
    """Read partition after partition; the task's result grows with each record that is found."""
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
