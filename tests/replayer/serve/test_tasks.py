"""Work that the page's own process does."""

import asyncio

import pytest

from blockgz.errors import NotInArchive, UsageError
from replayer.serve import tasks
from replayer.serve.tasks import MOST_RUNNING, Task, Tasks, events, steer


async def endless(task: Task) -> None:
    task.all = 10
    while True:
        await task.may_go_on.wait()
        task.advance(1)
        await asyncio.sleep(0)


async def failing(_: Task) -> None:
    raise UsageError("it fails", why="so it is", remedy="nothing")


async def broken(_: Task) -> None:
    raise RuntimeError(" ".join(["secret", "content"]))


async def over(task: Task) -> Task:
    assert task.work is not None
    await asyncio.wait({task.work})
    return task


def test_a_task_is_watched_paused_resumed_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EVENT_SECONDS", 0.0)

    async def run() -> None:
        task = Tasks().begin("search", "a search", "ada", endless, can_pause=True)
        seen = []
        async for document in events(task):
            seen.append(document)
            if len(seen) == 2:
                assert set(document["actions"]) == {"pause", "cancel"}
                steer(task, "pause")
                done = task.done
                for _ in range(5):
                    await asyncio.sleep(0)
                assert task.done <= done + 1
                assert set(task.document["actions"]) == {"resume", "cancel"}
                steer(task, "resume")
            if len(seen) == 4:
                steer(task, "cancel")
        assert [document["state"] for document in seen][-1] == "cancelled"
        assert seen[1]["progress"] == {"done": seen[1]["progress"]["done"], "all": 10, "unit": "bytes"}
        with pytest.raises(UsageError, match="cannot be cancelled"):
            steer(task, "cancel")

    asyncio.run(run())


def test_failures_are_told_bugs_without_content(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        begun = Tasks()
        failed = await over(begun.begin("verify", "t", "ada", failing))
        assert failed.document["failure"] == {"error": "it fails", "why": "so it is", "do": "nothing"}
        bug = await over(begun.begin("verify", "t", "ada", broken))
        assert bug.document["failure"]["why"] == "this is a bug"
        assert "secret" not in str(bug.document)

    asyncio.run(run())
    logged = capsys.readouterr().err
    assert "RuntimeError" in logged and "test_tasks.py" in logged and "secret content" not in logged


def test_tasks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_REMEMBERED", 3)

    async def run() -> None:
        begun = Tasks()
        for _ in range(MOST_RUNNING):
            begun.begin("search", "t", "ada", endless)
        with pytest.raises(UsageError, match="tasks are running"):
            begun.begin("search", "t", "ada", endless)
        await begun.close()
        for _ in range(5):
            await over(begun.begin("verify", "t", "ada", failing))
        assert len(list(begun)) <= 4
        with pytest.raises(NotInArchive):
            begun.get("search-1")

    asyncio.run(run())


def test_everybody_who_watches_sees_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EVENT_SECONDS", 0.0)

    async def run() -> None:
        task = Tasks().begin("search", "a search", "ada", endless)
        slow = events(task)
        await anext(slow)
        quick = events(task)
        await anext(quick)
        steer(task, "cancel")
        assert (await asyncio.wait_for(anext(quick), 5))["state"] == "cancelled"
        assert (await asyncio.wait_for(anext(slow), 5))["state"] == "cancelled"

    asyncio.run(run())
