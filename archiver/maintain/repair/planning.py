"""Planning a repair of an archive, whatever is to be made again: of an old one, or of partitions of a current one."""

from collections.abc import Callable, Sequence

from archiver.commit.archive import layout_of
from archiver.maintain.repair.plan import RepairPlan, RepairTarget, later_folders, targets
from archiver.old_archives.old_archive import OldReader
from blockgz.errors import NoArchiveThere, UsageError
from blockgz.store.writer import ToolStore
from index_format.ancestor.keys import has_current_objects

PlanOld = Callable[[OldReader, Sequence[str]], RepairPlan]
PlanOne = Callable[[ToolStore, RepairTarget, int], RepairPlan]
"""Plans one partition, given the bytes of a block at most."""


def plan_repair(
    reader: OldReader, places: Sequence[str], plan_old: PlanOld, plan_one: PlanOne, *, follows: bool = False
) -> RepairPlan:
    """Plans by `plan_old` where there is an old archive, else by `plan_one` each partition that the places name.

    `follows`: the plan of a partition is for the folder that it is in now. Raises NoArchiveThere, or UsageError.
    """
    store = reader.store
    layout = _layout(store)
    if layout is None:
        return plan_old(reader, places)
    named = targets(store, layout, places)
    plans = (plan_one(store, target, reader.max_block_bytes) for target in named)
    return sum(plans, RepairPlan() if follows else later_folders(store, named))


def not_for_old(reader: OldReader, places: Sequence[str]) -> RepairPlan:  # noqa: ARG001
    """Refuses an old archive."""
    raise UsageError(
        "this is an archive of kafka-connect-s3",
        why="it records no gaps and has no writer",
        remedy="set -a to an archive of this program",
    )


def _layout(store: ToolStore) -> str | None:
    """That of a current archive; None where there is an old one at most. Raises NoArchiveThere."""
    try:
        return layout_of(store)
    except NoArchiveThere as error:
        if has_current_objects(f"{folder}/" for folder in store.folders("")):
            raise NoArchiveThere(
                error.what,
                why="it has the folders of an archive, but no _archive.json",
                remedy="restore _archive.json: the archive_id in it is the one in every index",
            ) from error
        return None
