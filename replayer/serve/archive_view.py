"""The page's view of an archive: its topics as of the last look, and their coverage.

Pages are answered from memory. If that is older than a few seconds, it is refreshed in the background: all markers, and
the catalogs of partitions whose marker changed. An archive that nobody views costs nothing.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from blockgz.archive.archive import ArchiveReader, SurveyedTopic
from blockgz.archive.inventory import MissingPartition, compare, topic_document
from blockgz.archive.partition import ArchivedPartition, prefetched, streamed
from blockgz.errors import NotInArchive
from index_format.keys import parse_topic_folder
from replayer.coverage import PartitionCoverage, partition_coverage

# Seconds for which a view of the archive counts as fresh.
FRESH_SECONDS = 10.0
SHARE_OF_TIME = 0.1
# Chunks remembered in all coverages together, 48 bytes each.
REMEMBERED_CHUNKS = 2_000_000
PARTITIONS_AT_ONCE = 8
TOPICS_AT_ONCE = 16


@dataclass(frozen=True)
class ArchiveSurvey:
    """All topics as they were at `taken_at` (seconds since the epoch)."""

    topics: dict[str, SurveyedTopic]
    documents: dict[str, dict[str, Any]]
    """The listing's document of each topic."""
    missing: tuple[MissingPartition, ...]
    incarnations: dict[str, list[str]]
    """The incarnations of each topic that was created again, oldest first."""
    taken_at: float


class Look:
    """A look that may still be running; `done` of `all` partitions, None while that is unknown."""

    def __init__(self, fresh_seconds: float, share_of_time: float) -> None:
        """A look that took long makes the next one wait, so that looks take at most this share of the time."""
        self.fresh_seconds, self.share_of_time = fresh_seconds, share_of_time
        self.task: asyncio.Task[Any] | None = None
        self.done = 0
        self.all: int | None = None
        self.error: Exception | None = None
        self.ended_at = -math.inf
        self.seconds = 0.0

    @property
    def is_due(self) -> bool:
        if self.task is not None and not self.task.done():
            return False
        return time.monotonic() - self.ended_at >= max(self.fresh_seconds, self.seconds / self.share_of_time)

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work behind the pages; an error is kept for the next page."""

        async def watched() -> None:
            began = time.monotonic()
            try:
                await work()
                self.error = None
            except Exception as error:  # also a bug: otherwise the page would say forever that it reads the archive
                self.error = error
            finally:
                self.ended_at = time.monotonic()
                self.seconds = self.ended_at - began

        self.done, self.all = 0, None
        self.task = asyncio.create_task(watched())

    async def wait(self, seconds: float | None) -> None:
        """Wait for the running look, at most `seconds`."""
        if self.task is not None:
            await asyncio.wait({self.task}, timeout=seconds)

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})


class _CoveredTopic:
    """The coverage of a topic's partitions, each with the partition as it was."""

    def __init__(self) -> None:
        self.look = Look(FRESH_SECONDS, SHARE_OF_TIME)
        self.partitions: dict[int, tuple[ArchivedPartition, PartitionCoverage]] = {}
        # The survey that the coverage belongs to; None before the coverage is complete.
        self.survey: SurveyedTopic | None = None

    @property
    def num_chunks(self) -> int:
        return sum(len(coverage.chunks.records) for _, coverage in self.partitions.values())


class ArchiveView:
    """One archive behind all pages."""

    def __init__(self, archive: ArchiveReader) -> None:
        self.archive = archive
        self.look = Look(FRESH_SECONDS, SHARE_OF_TIME)
        self._survey: ArchiveSurvey | None = None
        self._topics: OrderedDict[str, _CoveredTopic] = OrderedDict()

    async def survey(self, seconds: float | None = None) -> ArchiveSurvey | None:
        """Return all topics, from the last look; wait at most `seconds` for the first, then return None."""
        if self.look.is_due:
            self.look.begin(self._take_survey)
        if self._survey is None:
            await self.look.wait(seconds)
        if self._survey is None and self.look.error is not None:
            raise self.look.error
        return self._survey

    @property
    def archive_id(self) -> str | None:
        """The archive's id, as its partitions give it; None before the first look."""
        topics = self._survey.topics.values() if self._survey else ()
        return next((each.marker.archive_id for topic in topics for each in topic.partitions), None)

    @property
    def taken_at_ms(self) -> int | None:
        """Time of the last look in ms; None before the first."""
        return int(self._survey.taken_at * 1000) if self._survey else None

    async def topic(self, name: str, seconds: float | None = None) -> SurveyedTopic | None:
        """Return a topic as of the last look, or its incarnation (`orders~1`) read now; raise as
        `ArchiveReader.survey_topic`.

        None if the first look takes longer than `seconds`.
        """
        survey = await self.survey(seconds)
        if survey is None:
            return None
        found = survey.topics.get(name)
        return found if found is not None else await self.archive.survey_topic(name)

    def incarnations(self, topic: str) -> list[str]:
        """Return the incarnations of a topic as of the last look, oldest first; empty if there was only one."""
        return self._survey.incarnations.get(topic, []) if self._survey else []

    def holds(self, folder: str) -> bool:
        """Return whether the archive holds a topic's incarnation, or lost it, as of the last look; True for none."""
        if self._survey is None or not folder:
            return True
        named, missing = parse_topic_folder(folder), {each.topic for each in self._survey.missing}
        found = self._survey.topics.get(named.topic, SurveyedTopic((), {}))
        held = {each.keys.folder for each in found.partitions} | {
            parse_topic_folder(name) for name in self._survey.incarnations.get(named.topic, ())
        }
        return bool(named in held or found.damaged or missing & {named.topic, folder})

    async def coverage(self, name: str, seconds: float | None = None) -> tuple[list[PartitionCoverage], Look] | Look:
        """Return the coverage of a topic's partitions in order, or the running look if that takes longer than
        `seconds`.

        What is known is given while a newer one is made. Raise as `topic`.
        """
        survey = await self.topic(name, seconds)
        if survey is None:
            return self.look
        known = self._topics.setdefault(name, _CoveredTopic())
        self._topics.move_to_end(name)
        if known.survey is not survey and known.look.is_due:
            known.look.begin(lambda: self._take_coverage(name, known, survey))
        if known.survey is None:
            await known.look.wait(seconds)
        if known.survey is None:
            if known.look.error is not None:
                raise known.look.error
            return known.look
        numbers = sorted(each.partition for each in known.survey.partitions)
        return [known.partitions[number][1] for number in numbers], known.look

    async def close(self) -> None:
        for look in (self.look, *(known.look for known in self._topics.values())):
            await look.close()

    async def _take_survey(self) -> None:
        archive = await self.archive.pin()
        names = await archive.topics()
        missing = (await compare(archive)).missing
        self.look.all = len(names)
        before = self._survey.topics if self._survey else {}

        async def take(name: str) -> SurveyedTopic | None:
            try:
                return _reused(await archive.survey_topic(name), before.get(name))
            except NotInArchive:  # it has been removed since
                return None
            finally:
                self.look.done += 1

        taken = prefetched(streamed(names), take, cost=lambda _: 1, budget=TOPICS_AT_ONCE)
        found = zip(names, [survey async for survey in taken], strict=True)
        topics = {name: survey for name, survey in found if survey is not None}
        documents = {name: topic_document(name, survey) for name, survey in topics.items()}
        self._survey = ArchiveSurvey(topics, documents, missing, await _incarnations(archive, topics), time.time())

    async def _take_coverage(self, name: str, known: _CoveredTopic, survey: SurveyedTopic) -> None:
        known.look.all = len(survey.partitions)
        limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def take(partition: ArchivedPartition) -> tuple[int, tuple[ArchivedPartition, PartitionCoverage]]:
            number = partition.partition
            held = known.partitions.get(number)
            async with limit:
                if held is None or held[0] is not partition:
                    held = partition, await partition_coverage(partition, name)
                    partition.forget()
            known.look.done += 1
            return number, held

        known.partitions = dict(await asyncio.gather(*map(take, survey.partitions)))
        known.survey = survey
        self._forget()

    def _forget(self) -> None:
        """Drop the coverages that were unused longest, until few enough chunks are held."""
        held = sum(known.num_chunks for known in self._topics.values())
        while held > REMEMBERED_CHUNKS and len(self._topics) > 1:
            _, dropped = self._topics.popitem(last=False)
            held -= dropped.num_chunks


async def _incarnations(archive: ArchiveReader, topics: Iterable[str]) -> dict[str, list[str]]:
    """Return the incarnations of topics that have several, by plain name; a pinned archive makes no requests for it."""
    names = {parse_topic_folder(topic).topic for topic in topics}
    found = {name: await archive.incarnations(name) for name in names}
    return {name: [f"{name}~{each.incarnation}" for each in several] for name, several in found.items() if several[1:]}


def _reused(found: SurveyedTopic, before: SurveyedTopic | None) -> SurveyedTopic:
    """Return the survey with the former objects, whose coverage may be known, where the marker is the same."""
    former = {each.partition: each for each in before.partitions} if before is not None else {}
    partitions = []
    for each in found.partitions:
        same = former.get(each.partition)
        partitions.append(same if same is not None and same.is_unchanged(each) else each)
    unchanged = before is not None and found.damaged == before.damaged and len(partitions) == len(before.partitions)
    if before is not None and unchanged and all(a is b for a, b in zip(partitions, before.partitions, strict=True)):
        return before
    return SurveyedTopic(tuple(partitions), found.damaged)
