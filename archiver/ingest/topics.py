"""The topics to archive: which ones the cluster has, their ids, folders and configurations.

A topic that is deleted and created again has another id. Ids are requested for all topics at once, every few seconds
and before a commit that the last answers do not cover.
"""

import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.archive import adopt_topic_id, archived_topic_id, find_incarnation
from archiver.errors import TopicGone
from archiver.logs import LogEvent, log
from blockgz.elastic_pool import RegularQuestion
from blockgz.errors import BlockgzError, BrokerUnreachable, NoSuchTopic, PartitionUnavailable, listed
from blockgz.kafka.admin import NOTHING_TOLD, TopicIdAnswers
from blockgz.store.writer import Store
from blockgz.topic_patterns import TopicSelection
from index_format import objects
from index_format.keys import TOPIC_CONFIG_OBJECT, TopicFolder, configs_home, dated_key, topic_home
from index_format.objects import ArchiveInfo, TopicConfig

ASK_SECONDS = 3.0
# Seconds without questions after a cluster answered nothing: commits do not wait for it one by one.
SILENT_SECONDS = 5.0


# Seconds between questions for ids to a cluster that answers other questions and not these.
HEARD_SECONDS = 10.0


def is_same_topic(claimed: str | None, told: str | None) -> bool | None:
    """Return whether the cluster tells the id of the claimed topic; None if it tells none now."""
    # A claim that knew no id has nothing to compare: records are taken as they come.
    if claimed is None or claimed == told:
        return True
    return None if told is None else False


class TopicIds:
    """The ids of topics as the cluster reports them; many threads may ask, and share each question."""

    def __init__(
        self,
        ask: Callable[[Collection[str]], TopicIdAnswers],
        topics: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topics` gives those to ask about, beside the one somebody wants to know of. `ask` raises nothing."""
        self._ask = ask
        self._topics = topics
        self._clock = clock
        self._guard = threading.Lock()
        self._on_its_way = threading.Lock()
        self._next: Future[TopicIdAnswers] | None = None
        self._wanted: set[str] = set()
        self._silent_until: float | None = None
        self._heard_at = -math.inf
        # Topic -> when a question began that was answered with its id, and the newest such id.
        self._told: dict[str, tuple[float, str]] = {}

    def told_since(self, topic: str, since: float) -> str | None:
        """Return the topic's id from the newest answer, if that was requested at this time or later. Ask nobody."""
        asked_at, topic_id = self._told.get(topic, (-math.inf, None))
        return topic_id if asked_at >= since else None

    def heard(self) -> None:
        """Note that the cluster answered another question: it is asked for ids again soon, but not each time.

        Safe to call from any thread.
        """
        now = self._clock()
        if self._silent_until is not None and now - self._heard_at >= HEARD_SECONDS:
            self._heard_at, self._silent_until = now, None

    def now(self, topic: str) -> TopicIdAnswers:
        """Return the answers to a question about all topics, this one among them, that begins after the call."""
        # Where the cluster was silent a moment ago it gets no question, and no id is reported.
        silent_until = self._silent_until
        if silent_until is not None and self._clock() < silent_until:
            return NOTHING_TOLD
        return self.asked({topic})

    def asked(self, topics: Collection[str] = ()) -> TopicIdAnswers:
        """Return the answers as `now` does, even after a silence. Callers that wait share the next question."""
        with self._guard:
            self._wanted.update(topics)
            shared, mine = self._next, None
            if shared is None:
                shared = mine = self._next = Future()
        if mine is not None:
            with self._on_its_way:
                with self._guard:
                    self._next, wanted = None, self._wanted | set(self._topics())
                    self._wanted = set()
                try:
                    mine.set_result(self._answers(wanted))
                except BaseException as error:
                    mine.set_exception(error)
        return shared.result()

    def _answers(self, topics: Collection[str]) -> TopicIdAnswers:
        if not topics:
            return NOTHING_TOLD
        asked_at = self._clock()
        answers = self._ask(topics)
        self._told |= {topic: (asked_at, topic_id) for topic, topic_id in answers.ids.items()}
        is_silent = not (answers.ids or answers.missing or answers.denied)
        self._silent_until = self._clock() + SILENT_SECONDS if is_silent else None
        return answers


def selected_topics(selection: TopicSelection, known: Collection[str]) -> list[str]:
    """Return the selected topics of the cluster. Raises NoSuchTopic if some are named and none is there."""
    topics, missing = selection(known), missing_topics(selection, known)
    if missing and not topics:
        raise no_such_topic(f"topic {', '.join(map(repr, missing))}", known)
    return topics


def missing_topics(selection: TopicSelection, known: Collection[str]) -> list[str]:
    """Return the topics that are named in full and that the cluster does not have."""
    return selection(selection.names.difference(known))


def no_such_topic(wanted: str, known: Collection[str]) -> NoSuchTopic:
    """Return the error that the cluster, with its `known` topics, has nothing `wanted`."""
    names = sorted(name for name in known if not name.startswith("__"))
    return NoSuchTopic(
        f"the cluster has no {wanted}",
        why=f"it has {listed(names, 'no topics')}",
        remedy="check the name, -b and the right to Describe it, or create the topic first",
    )


class MissingTopics:
    """The named topics that the cluster did not have at the last look; each is logged when it goes missing.

    Topics of drills, which patterns leave out, are logged once.
    """

    def __init__(self, selection: TopicSelection) -> None:
        self._selection = selection
        self.names: list[str] = []
        self._drills: list[str] = []

    def look(self, known: Collection[str]) -> None:
        """Compare the named topics with those of the cluster."""
        before, self.names = self.names, missing_topics(self._selection, known)
        for topic in self.names:
            if topic not in before:
                log.warning(LogEvent.TOPIC_MISSING, topic=topic)
        if not self._drills and (drills := self._selection.drills(known)):
            self._drills = drills
            log.warning(LogEvent.DRILLS_LEFT_OUT, topics=listed(drills))


class TopicWatch:
    """Looks for topics that came or went now and then, in a thread.

    A topic is gone if two answers in a row lack it: a broker that has just started may know of none.
    """

    def __init__(
        self,
        selection: TopicSelection,
        ask: Callable[[], Mapping[str, int]],
        executor: Executor,
        *,
        every_seconds: float,
        topics: Sequence[str],
        now: float,
    ) -> None:
        """`ask` gives the cluster's topics; `now` is when they were looked up last, and these were selected."""
        self._selection = selection
        self._topics = list(topics)
        self._missing: set[str] = set()
        self._ask = ask
        self._question = RegularQuestion[list[str]](executor, every_seconds, answered_at=now)

    def topics(self, now: float) -> list[str] | None:
        """Return the selected topics, each answer once; None while there is no new one."""
        answer = self._question.answer(now, lambda: self._selection(self._ask()))
        if answer is None:
            return None
        failure = answer.exception()
        if failure is not None:
            log.warning(LogEvent.TOPICS_UNKNOWN, cause=str(failure))
            return None
        found = answer.result()
        missing = set(self._topics).difference(found)
        self._topics = sorted({*found, *(missing - self._missing)})
        self._missing = missing.intersection(self._topics)
        return self._topics


CONFIG_SECONDS = 300.0
# Seconds between an answer that lacks something and the next question.
AGAIN_SECONDS = 3.0

# A topic's id and folder, as TopicDirectory gives them.
Locate = Callable[[str], tuple[str | None, TopicFolder]]
# Returns topics as the cluster has them now; their ids are left out.
Describe = Callable[[Sequence[str]], Mapping[str, TopicConfig]]


class TopicConfigs:
    """Keeps the configurations of topics up to date; one call at a time."""

    def __init__(
        self,
        store: Store,
        layout: str,
        locate: Locate,
        describe: Describe,
        is_ending: Callable[[], bool] = lambda: False,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`is_ending`: the rest of a call is left to another run. `wait` may return early then."""
        self._is_ending = is_ending
        self._wait = wait
        self._store = store
        self._layout = layout
        self._locate = locate
        self._describe = describe
        self._kept: dict[str, TopicConfig] = {}
        self._kept_at: dict[str, float] = {}
        self._claimed: dict[str, TopicFolder] = {}
        self._keeping: Future[None] | None = None

    def keep_due(
        self, topics: Iterable[str], now: float, executor: Executor, claimed: Iterable[TopicFolder] = ()
    ) -> None:
        """Start to keep the topics that are due in a thread, unless others are still being kept there.

        A topic is due too when it is first `claimed` in another folder, because it was created again.
        """
        for folder in claimed:
            if self._claimed.setdefault(folder.topic, folder) < folder:
                self._claimed[folder.topic] = folder
                self._kept_at.pop(folder.topic, None)
        if self._keeping is not None and not self._keeping.done():
            return
        due = [topic for topic in sorted(topics) if now - self._kept_at.get(topic, -math.inf) >= CONFIG_SECONDS]
        if due:
            self._kept_at |= dict.fromkeys(due, now)
            self._keeping = executor.submit(self.keep, due)

    def keep(self, topics: Sequence[str]) -> None:
        """Ask the cluster about the topics and store what changed; failures are logged and left to the next call."""
        # What is less than was known before is stored once a second answer says the same: a broker that has just
        # started may know of no ACL, setting or partition.
        if doubted := self._ask(topics, is_sure=False):
            self._wait(AGAIN_SECONDS)
            self._ask(doubted, is_sure=True)

    def _ask(self, topics: Sequence[str], *, is_sure: bool) -> list[str]:
        """Return the topics to ask about again."""
        doubted: list[str] = []
        try:
            described = self._describe(topics)
        except BlockgzError as error:
            log.warning(LogEvent.TOPIC_CONFIG_UNKNOWN, topic=",".join(topics), cause=error.what, why=error.why)
            return doubted
        for topic, seen in described.items():
            if self._is_ending():
                break
            try:
                if not self._keep(topic, seen, is_sure=is_sure):
                    doubted.append(topic)
            except BlockgzError as error:
                log.warning(LogEvent.TOPIC_CONFIG_UNKNOWN, topic=topic, cause=error.what, why=error.why)
        return doubted

    def _keep(self, topic: str, seen: TopicConfig, *, is_sure: bool) -> bool:
        """Store what was seen; return False if it is less than before, and only one answer says so."""
        topic_id, folder = self._locate(topic)
        seen = replace(seen, topic_id=topic_id)
        if self._kept.get(topic) == seen:
            return True
        now = round(time.time() * 1000)
        is_kept = keep_topic_config(self._store, self._layout, folder, seen, seen_at=now, is_sure=is_sure)
        if is_kept is None:
            return False
        if is_kept:
            log.info(LogEvent.TOPIC_CONFIG_KEPT, topic=str(folder), partitions=seen.partitions)
        self._kept[topic] = seen
        return True


def keep_topic_config(
    store: Store, layout: str, folder: TopicFolder, seen: TopicConfig, *, seen_at: int, is_sure: bool = True
) -> bool | None:
    """Store what was seen at that time, in ms, and a dated copy of it, unless it is stored already.

    What the cluster does not report now stays as it was. Return False if nothing was swapped: it was stored already, or
    another process wrote at the same time. Return None instead of storing less than before, unless `is_sure`.
    """
    key = topic_home(layout, folder) + TOPIC_CONFIG_OBJECT
    found = store.get(key)
    if found is not None:
        before = objects.decode(found.body, TopicConfig, key)
        if seen.config is None and before.topic_id == seen.topic_id:
            seen = replace(seen, config=before.config, defaults=before.defaults)
        if seen.acls is UNSET and before.topic_id == seen.topic_id:
            seen = replace(seen, acls=before.acls)
        if not is_sure and before.topic_id == seen.topic_id and _is_less(seen, before):
            return None
    body = objects.encode(seen)
    if found is not None and body == found.body:
        return False
    # The copy comes first: a process that dies in between stores it once more, and no version is without one.
    copy = objects.encode(replace(seen, seen_at=seen_at))
    store.put_if_absent(dated_key(configs_home(layout, folder), seen_at), copy, str(uuid.uuid4()))
    return store.compare_and_swap(key, body, found.etag if found is not None else None) is not None


def _is_less(seen: TopicConfig, before: TopicConfig) -> bool:
    """Return whether it has fewer partitions, settings or ACLs."""

    def sizes(config: TopicConfig) -> tuple[int, ...]:
        return (config.partitions, len(config.config or ()), len(config.defaults or ()), len(config.acls or ()))

    return any(now < then for now, then in zip(sizes(seen), sizes(before), strict=True))


# Many partitions of a topic are assigned at once; they share one question to the cluster.
FRESH_SECONDS = 5.0
# Seconds that a missing id counts as unknown: soon after, the cluster may report it.
UNKNOWN_FRESH_SECONDS = 1.0


class TopicDirectory:
    """Answers from cluster and archive, each kept for a few seconds; safe for use by many threads."""

    def __init__(
        self, store: Store, ids: TopicIds, archive: ArchiveInfo, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._ids = ids
        self._archive = archive
        self._clock = clock
        self._asking: dict[str, threading.Lock] = {}
        self._known: dict[str, tuple[float, str | None, TopicFolder]] = {}
        self._archived: dict[TopicFolder, str] = {}

    def locate(self, topic: str) -> tuple[str | None, TopicFolder]:
        """Return the topic's id, None if the cluster does not report it, and its folder.

        A topic that was deleted and created again gets a folder of its own. Raises TopicGone if the cluster does not
        have it, AccessDenied if it may not be described, and the errors of the store.
        """
        with self._asking.setdefault(topic, threading.Lock()):  # one that nobody answers for holds up no other
            known = self._known.get(topic)
            fresh_seconds = FRESH_SECONDS if known and known[1] is not None else UNKNOWN_FRESH_SECONDS
            if known is None or self._clock() - known[0] > fresh_seconds:
                answers = self._ids.now(topic)
                if topic in answers.missing:
                    raise TopicGone(topic)
                if topic in answers.denied:
                    raise answers.denied[topic]
                topic_id = answers.ids.get(topic)
                folder = find_incarnation(self._store, layout=self._archive.layout, topic=topic, topic_id=topic_id)
                known = self._known[topic] = (self._clock(), topic_id, folder)
            return known[1:]

    def confirm(self, topic: str, topic_id: str) -> None:
        """Return once the cluster named this id for the topic, in an answer to a question that began after the call.

        Raises BrokerUnreachable if it names none now, PartitionUnavailable if it names another one.
        """
        told = self._ids.now(topic).ids.get(topic)
        if told == topic_id:
            return
        self._known.pop(topic, None)
        if told is not None:
            raise PartitionUnavailable(
                f"topic {topic!r} was created again", why=f"its id is {told}, the archive's is {topic_id}"
            )
        raise BrokerUnreachable(
            f"the id of topic {topic!r} is unknown",
            why="the archive has the id, and the log may belong to another topic with that name",
            remedy="nothing to do: the partition is claimed once the cluster reports the id",
        )

    def id_of_claimed(self, topic: str, topic_id: str | None, claimed_at: float) -> str | None:
        """Return the topic's current id, or else an id other than the claimed one that was reported since."""
        # An id never comes back; the same one from an earlier answer says nothing of what was fetched since.
        now = self._ids.now(topic).ids.get(topic)
        before = self._ids.told_since(topic, claimed_at)
        return before if now is None and before != topic_id else now

    def archived_id(self, folder: TopicFolder) -> str | None:
        """Return the id of the topic in the folder; None if the cluster has not reported it so far."""
        known = self._archived.get(folder)
        if known is None:
            known = archived_topic_id(self._store, self._archive.layout, folder)
            if known is not None:
                self._archived[folder] = known
        return known

    def adopt(self, folder: TopicFolder, topic_id: str) -> None:
        """Have the archive say which topic lives in a folder that was made before this was known."""
        adopt_topic_id(self._store, self._archive.layout, folder, topic_id)
