"""Whose a consumer group is: the metadata of its committed offsets names the archive."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from archiver.errors import GroupOfAnother
from archiver.ingest.kafka_source import Partition, name_of
from archiver.logs import LogEvent, log
from blockgz.regular_question import RegularQuestion
from index_format.errors import BlockgzError

ASK_SECONDS = 30.0

AskOwners = Callable[[Sequence[str]], Mapping[Partition, str]]
"""What the group's committed offsets of these topics say in their metadata, where they say anything."""


class GroupOffsets:
    """Refuses a group in which another archive commits; all methods belong to the consumer thread.

    Two archives of one group would share the partitions of a topic, and neither would hold all of it.
    """

    def __init__(self, group_id: str, archive_id: str, ask: AskOwners, executor: Executor) -> None:
        """`ask` raises a BlockgzError where nobody answers; `executor` runs it while the process archives."""
        self._group_id = group_id
        self._archive_id = archive_id
        self._ask = ask
        self._question = RegularQuestion[Mapping[Partition, str]](executor, ASK_SECONDS)

    def check(self, topics: Sequence[str]) -> None:
        """Ask and wait for the answer; raises GroupOfAnother. Without an answer `check_again` asks soon."""
        self._take(lambda: self._ask(topics))

    def check_again(self, topics: Sequence[str], now: float) -> None:
        """Ask now and then, and wait for nothing; raises GroupOfAnother once the answer is there."""
        answer = self._question.answer(now, lambda: self._ask(topics))
        if answer is not None:
            self._take(answer.result)

    def _take(self, owners: Callable[[], Mapping[Partition, str]]) -> None:
        try:
            refuse_other_archive(self._group_id, self._archive_id, owners())
        except GroupOfAnother:
            raise
        except BlockgzError as error:
            log.warning(LogEvent.GROUP_UNKNOWN, group=self._group_id, cause=error.what, why=error.why)


def refuse_other_archive(group_id: str, archive_id: str | None, owners: Mapping[Partition, str]) -> None:
    """Raises GroupOfAnother where an offset was committed by another archive; `owners` holds archive ids.

    `archive_id` is None before the archive is made.
    """
    for partition, owner in sorted(owners.items()):
        if owner != archive_id:
            raise GroupOfAnother(
                f"another archive uses consumer group {group_id!r}",
                why=f"the group's offset of {name_of(partition)} was committed by archive {owner}, this one is "
                f"{archive_id or 'new'}: in one group, each would get only some of the partitions",
                remedy="give this archive its own --group-id, with --takeover the first time if it holds these topics "
                "already; or stop the other archive's processes and start with --takeover",
            )
