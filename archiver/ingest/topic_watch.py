"""Which of the cluster's topics are archived: looked up at the start, and again now and then."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future

from archiver.logs import LogEvent, log
from blockgz_runtime.errors import NoSuchTopic
from blockgz_runtime.topic_patterns import TopicSelection


def selected_topics(selection: TopicSelection, known: Collection[str]) -> list[str]:
    """The selected ones of the cluster's topics; raises NoSuchTopic for a named one that is missing."""
    missing = sorted(selection.names - set(known))
    if missing:
        raise no_such_topic(f"topic {missing[0]!r}", known)
    return selection(known)


def no_such_topic(wanted: str, known: Collection[str]) -> NoSuchTopic:
    """The cluster has `known` topics, and nothing `wanted`."""
    names = sorted(name for name in known if not name.startswith("__"))
    return NoSuchTopic(
        f"the cluster has no {wanted}",
        why=f"it has {', '.join(names[:10]) or 'no topics'}{' …' if len(names) > 10 else ''}",
        remedy="check the name and -b, or create the topic first",
    )


class TopicWatch:
    """Looks for topics that came or went, in a thread; one look at a time."""

    def __init__(
        self,
        selection: TopicSelection,
        ask: Callable[[], Mapping[str, int]],
        executor: Executor,
        *,
        every_seconds: float,
        now: float,
    ) -> None:
        """`ask` gives the cluster's topics; `now` is when they were looked up last."""
        self._selection = selection
        self._ask = ask
        self._executor = executor
        self._every_seconds = every_seconds
        self._looked_at = now
        self._look: Future[list[str]] | None = None

    def topics(self, now: float) -> list[str] | None:
        """The selected topics, each answer once; None while there is no new one."""
        if self._look is None:
            if now - self._looked_at >= self._every_seconds:
                self._look = self._executor.submit(lambda: self._selection(self._ask()))
            return None
        if not self._look.done():
            return None
        self._looked_at = now
        look, self._look = self._look, None
        failure = look.exception()
        if failure is not None:
            log.warning(LogEvent.TOPICS_UNKNOWN, cause=str(failure))
            return None
        return look.result()
