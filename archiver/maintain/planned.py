"""Commands that change an archive: they plan, show the plan, and carry it out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from typing import Protocol as Interface

from archiver.commit.archive import claimed_partitions, layout_of
from archiver.maintain.rewrite.intent import RewriteOutcome, not_done
from blockgz.errors import BlockgzError, NotInArchive, UsageError, listed
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection, nothing_matches
from index_format.keys import (
    LAYOUTS,
    PartitionKeys,
    TopicFolder,
    archive_home,
    partition_folders,
    topic_folders,
    topic_home,
)

REQUESTS_AT_ONCE = 8
FREED = "; archiver gc frees the space"
Cell = str | int | None


class Problem(NamedTuple):
    """An error about one partition or object; the rest is done without it."""

    where: str
    error: BlockgzError

    @property
    def as_json(self) -> dict[str, str]:
        """The error as commands print it with --json."""
        return {"where": self.where, "error": self.error.what, "why": self.error.why, "do": self.error.remedy}


def try_each(where: Sequence[str], actions: Iterable[Callable[[], object]]) -> list[Problem]:
    """Carry out actions, several at once, and return the errors; `where` names what each is about."""

    def outcome(action: Callable[[], object]) -> BlockgzError | None:
        try:
            action()
        except BlockgzError as error:
            return error
        return None

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="try") as pool:
        outcomes = pool.map(outcome, actions)
        return [Problem(name, error) for name, error in zip(where, outcomes, strict=True) if error is not None]


class PlannedCommand(ABC):
    """A change of an archive that is shown, agreed to, carried out and reported, in this order."""

    nothing: str
    """The sentence for a plan without rows."""
    undone = "nothing was changed"
    """The sentence for a user who does not agree."""
    typed: str | None = None
    """The only word that means yes."""
    columns: tuple[str, ...]
    """The headings of the table; without any, rows are lines of their own."""
    droppable: tuple[str, ...] = ()
    """Columns that may be left out of a narrow table, the first of them first."""
    problems: list[Problem]
    """Errors of the plan, and of carrying it out."""
    notes: Sequence[str] = ()
    """Facts that a user should know in addition to the table."""

    @property
    @abstractmethod
    def question(self) -> str | None:
        """The question that a user has to agree to; None if there is nothing to do."""

    @abstractmethod
    def rows(self) -> list[tuple[Cell, ...]]:
        """Return the table of the plan."""

    untouched = 0
    """Partitions in which nothing is to be done."""

    @abstractmethod
    def carry_out(self) -> None:
        """Do what was planned; what fails becomes a problem, and the rest is done without it."""

    @abstractmethod
    def summary(self) -> str | None:
        """Return a sentence about what was done."""

    @abstractmethod
    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        """Return the JSON contract of the command, without archive and problems."""

    def num_tried(self, *, dry_run: bool) -> int | None:  # noqa: ARG002
        """Return how many parts were tried; if all of them failed, the first failure gives the exit code."""
        return None


class PartitionPlan(Interface):
    @property
    def keys(self) -> PartitionKeys: ...
    @property
    def cells(self) -> tuple[Cell, ...]: ...
    @property
    def as_json(self) -> dict[str, Any]: ...


P = TypeVar("P")
K = TypeVar("K", bound=PartitionPlan)


@dataclass(frozen=True)
class RewriteResult(Generic[K]):
    """How the rewrite of one partition ended."""

    plan: K
    outcome: RewriteOutcome
    error: BlockgzError | None = None
    done: tuple[Any, ...] = ()
    """The parts of the plan that were committed, if there are several."""

    @property
    def is_whole(self) -> bool:
        """True if all that was planned is committed."""
        return self.error is None and self.outcome is RewriteOutcome.COMMITTED


class PlannedRewrite(PlannedCommand, Generic[K]):
    """A command that rewrites partitions of an archive, one after another."""

    participle: str
    """The past participle for a partition, such as `pruned`, and its name in the JSON contract."""
    whole = ""
    """The participle for a partition that may have been rewritten in part."""
    after = ""
    """The end of the summary, after the number of partitions."""

    def __init__(
        self,
        partitions: Iterable[PartitionKeys],
        plan_of: Callable[[PartitionKeys], K | None],
        rewrite: Callable[[Sequence[K]], Iterable[RewriteResult[K]]],
    ) -> None:
        """Plan each partition; `plan_of` returns None if nothing is to be done in it.

        `rewrite` carries the plans out. A BlockgzError of one partition is a problem, and does not stop the others.
        """
        self._rewrite = rewrite
        partitions = list(partitions)
        self.partitions, self.problems = plan_each(partitions, plan_of)
        self._num_tried = len(self.partitions) + len(self.problems)
        self.untouched = len(partitions) - self._num_tried
        self.ended = dict[str, RewriteResult[K]]()

    def carry_out(self) -> None:
        for ended in self._rewrite(self.partitions):
            name = str(ended.plan.keys)
            self.ended[name] = ended
            if not ended.is_whole:
                what = self.whole or (f"{self.participle} as a whole" if ended.done else self.participle)
                self.problems.append(Problem(name, ended.error or not_done(name, what, ended.outcome)))

    def is_whole(self, plan: K) -> bool:
        """Return whether a partition was rewritten as planned."""
        name = str(plan.keys)
        return name in self.ended and self.ended[name].is_whole

    @abstractmethod
    def totals(self) -> dict[str, Any]:
        """Return the part of the JSON contract about all partitions."""

    def rows(self) -> list[tuple[Cell, ...]]:
        return [(str(plan.keys.folder), plan.keys.partition, *plan.cells) for plan in self.partitions]

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        partitions = []
        for plan in self.partitions:
            where = {"topic": str(plan.keys.folder), "partition": plan.keys.partition}
            partitions.append(where | plan.as_json | {self.participle: self.is_whole(plan)})
        return {"dry_run": dry_run, **self.totals(), "untouched": self.untouched, "partitions": partitions}

    def summary(self) -> str | None:
        if not self.partitions:
            return None
        whole = sum(each.is_whole for each in self.ended.values())
        return f"{self.participle} {whole:,} of {len(self.partitions):,} partitions{self.after if whole else ''}"


def one_by_one(rewrite: Callable[[K], RewriteOutcome]) -> Callable[[Sequence[K]], Iterator[RewriteResult[K]]]:
    """Return a function that rewrites one partition after another; a failure does not stop the others."""

    def rewrite_all(plans: Sequence[K]) -> Iterator[RewriteResult[K]]:
        for plan in plans:
            try:
                yield RewriteResult(plan, rewrite(plan))
            except BlockgzError as error:
                yield RewriteResult(plan, RewriteOutcome.NOTHING, error)

    return rewrite_all


def plan_each(
    partitions: Iterable[PartitionKeys], plan_of: Callable[[PartitionKeys], P | None]
) -> tuple[list[P], list[Problem]]:
    """Return the plans of the partitions in which there is something to do, and the errors of the others."""
    plans, problems = list[P](), list[Problem]()
    for keys in partitions:
        try:
            plan = plan_of(keys)
        except BlockgzError as error:
            problems.append(Problem(str(keys), error))
        else:
            plans += [] if plan is None else [plan]
    return plans, problems


def archived_partitions(store: ToolStore, selection: TopicSelection | None) -> list[PartitionKeys]:
    """Return the selected topics' partitions, or all, in order, former incarnations included.

    They have a folder, or the inventory names them. Raises NoArchiveThere, NotInArchive for a topic that is named in
    full and missing, and the store's errors.
    """
    layout = layout_of(store)
    claimed = claimed_partitions(store, layout)
    listed_folders = topic_folders(store.folders(archive_home(layout)))
    folders = sorted({*listed_folders, *claimed})
    if selection is not None:
        topics = {folder.topic for folder in folders}
        check_names(selection, topics, store.url)
        selected = set(selection(topics))
        folders = [folder for folder in folders if folder.topic in selected]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="list") as pool:
        found = pool.map(lambda folder: partitions_of(store, layout, folder, claimed.get(folder, ())), folders)
        return [keys for of_folder in found for keys in of_folder]


def partitions_of(store: ToolStore, layout: str, folder: TopicFolder, claimed: Sequence[int]) -> list[PartitionKeys]:
    """Return the partitions in a topic's folder, and those that were claimed there, in order."""
    stored = {keys.partition for keys in partition_folders(layout, folder, store.folders(topic_home(layout, folder)))}
    return [LAYOUTS[layout](folder, number) for number in sorted({*stored, *claimed})]


def rewritable_partitions(
    store: ToolStore, selection: TopicSelection | None, what: str, other: str
) -> list[PartitionKeys]:
    """Return the partitions of an archive that can be rewritten; raises UsageError for one in layout seed.

    `what` is to be done with them, such as `pruned`, and `other` is what can be done in layout seed.
    """
    partitions = archived_partitions(store, selection)
    if any(keys.layout == "seed" for keys in partitions):
        raise UsageError(
            f"the archive at {store.url} cannot be {what}",
            why="it is in layout seed, which other tools read as well",
            remedy=f"archive into layout topic, or {other}",
        )
    return partitions


def check_names(selection: TopicSelection, topics: set[str], url: str) -> None:
    """Raise NotInArchive if a topic named in full is not among the topics, or no topic matches the patterns."""
    missing = sorted(selection.names - topics)
    if missing:
        raise NotInArchive(
            f"topic {missing[0]!r} is not in the archive",
            why=f"{url} holds {listed(sorted(topics), 'no topics')}",
            remedy="choose one of these, or archive the topic first",
        )
    if not selection(topics):
        raise nothing_matches(selection.patterns, sorted(topics))
