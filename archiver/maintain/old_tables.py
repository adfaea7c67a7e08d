"""Which tables of consumer groups garbage collection thins out: a pure decision over their slots."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blockgz_runtime.store.writer import ListedObject
from index_format.keys import TopicFolder, parse_groups_key

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_MS = 30 * DAY_MS


class GroupTableObject(NamedTuple):
    """A table in a listing."""

    folder: TopicFolder
    slot: int
    listed: ListedObject


def group_table(layout: str, listed: ListedObject) -> GroupTableObject | None:
    """The table that an object of a listing is; None for all others."""
    parsed = parse_groups_key(layout, listed.key)
    return None if parsed is None else GroupTableObject(*parsed, listed)


def find_superfluous(tables: Iterable[GroupTableObject], *, now: float, grace: float) -> list[GroupTableObject]:
    """The tables that may go, in order; `now` in seconds of the store's clock, `grace` in seconds.

    Of each topic there stay all of the last day, the newest of each hour up to a month, and of each day before that.
    The newest of all always stays, and what is younger than the grace.
    """
    by_folder: dict[TopicFolder, list[GroupTableObject]] = {}
    for table in tables:
        by_folder.setdefault(table.folder, []).append(table)
    return [
        table
        for _, of_folder in sorted(by_folder.items())
        for table in _superfluous(of_folder, round(now * 1000))
        if now - table.listed.modified >= grace
    ]


def _superfluous(tables: Sequence[GroupTableObject], now_ms: int) -> list[GroupTableObject]:
    newest: dict[tuple[int, int], GroupTableObject] = {}
    ordered = sorted(tables, key=lambda table: table.slot)
    for table in ordered:
        newest[_bucket(table.slot, now_ms)] = table
    kept = {table.slot for table in newest.values()}
    return [table for table in ordered if table.slot not in kept]


def _bucket(slot: int, now_ms: int) -> tuple[int, int]:
    """Of the tables in one, the newest stays."""
    age = now_ms - slot
    width = 1 if age < DAY_MS else HOUR_MS if age < MONTH_MS else DAY_MS
    return width, slot // width
