"""Which tables of consumer groups and versions of configurations garbage collection deletes."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from blockgz.store.writer import ListedObject, Store
from index_format import groups
from index_format.errors import FormatError
from index_format.keys import TopicFolder, dated_key, groups_home, parse_configs_key, parse_groups_key
from index_format.marker import Marker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_MS = 30 * DAY_MS


class DatedObject(NamedTuple):
    """A table of consumer groups, or a version of a topic's configuration, in a listing."""

    folder: TopicFolder
    at: int
    """The time that names it, in ms."""
    listed: ListedObject


Oldest = Mapping[TopicFolder, int]
"""By topic, the time of the oldest record that can be read, in ms, where a prune has made that later than it was."""


def group_table(layout: str, listed: ListedObject) -> DatedObject | None:
    """The table of consumer groups that an object of a listing is; None for all others."""
    parsed = parse_groups_key(layout, listed.key)
    return None if parsed is None else DatedObject(*parsed, listed)


def dated_config(layout: str, listed: ListedObject) -> DatedObject | None:
    """The version of a configuration that an object of a listing is; None for all others."""
    parsed = parse_configs_key(layout, listed.key)
    return None if parsed is None else DatedObject(*parsed, listed)


def oldest_record(markers: Iterable[Marker]) -> int | None:
    """The time of the oldest record in the partitions of these markers, in ms; None where none was pruned.

    None, too, where a record has no timestamp. What a marker retired can be read until its grace is over.
    """
    oldest, is_pruned = list[int](), False
    for marker in markers:
        is_pruned |= marker.pruned_before > 0
        references = [each for level in marker.catalogs for each in level]
        references += [each for retired in marker.retired for each in retired.references]
        oldest += [each.min_timestamp for each in references if each.num_records]
        oldest += [entry.min_timestamp for entry in marker.tail]
    return min(oldest) if is_pruned and oldest and min(oldest) >= 0 else None


def find_superfluous(tables: Iterable[DatedObject], oldest: Oldest, *, now: float, grace: float) -> list[DatedObject]:
    """The tables that may go, in order; `now` in seconds of the store's clock, `grace` in seconds.

    Of each topic there stay all of the last day, the newest of each hour up to a month, and of each day before that.
    The newest of all always stays, and what is younger than the grace. What is below the oldest record goes as well.
    """
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(tables):
        going = {*_thinned(of_folder, round(now * 1000)), *_below(of_folder, oldest.get(folder))}
        found += [table for table in of_folder if table in going and now - table.listed.modified >= grace]
    return found


def spared_for_groups(
    store: Store, layout: str, tables: Iterable[DatedObject], going: Sequence[DatedObject]
) -> list[DatedObject]:
    """Return those of `going` but for the newest table with groups of each topic, which its newest table of all names.

    Nothing goes of a topic whose newest table cannot be read. Raises the errors of the store.
    """
    folders = {table.folder for table in going}
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(table for table in tables if table.folder in folders):
        newest = of_folder[-1]
        key = dated_key(groups_home(layout, folder), newest.at)
        stored = store.get(key)
        with suppress(FormatError):
            table = None if stored is None else groups.decode(stored.body, key, newest.at)
            if table is None or table.has_groups:
                needed = None
            else:
                until = table.groups_slot or 0
                needed = max((each.at for each in of_folder if each.at <= until), default=None)
            found += [each for each in going if each.folder == folder and each.at != needed]
    return found


def find_pruned(configs: Iterable[DatedObject], oldest: Oldest, *, now: float, grace: float) -> list[DatedObject]:
    """The versions of configurations that were replaced before the oldest record, in order, and the grace is over."""
    return [
        each
        for folder, of_folder in _by_folder(configs)
        for each in _below(of_folder, oldest.get(folder))
        if now - each.listed.modified >= grace
    ]


def _by_folder(objects: Iterable[DatedObject]) -> list[tuple[TopicFolder, list[DatedObject]]]:
    by_folder: dict[TopicFolder, list[DatedObject]] = {}
    for each in sorted(objects, key=lambda each: (each.folder, each.at)):
        by_folder.setdefault(each.folder, []).append(each)
    return list(by_folder.items())


def _thinned(tables: Sequence[DatedObject], now_ms: int) -> list[DatedObject]:
    newest = {_bucket(table.at, now_ms): table for table in tables}
    kept = {table.at for table in newest.values()}
    return [table for table in tables if table.at not in kept]


def _below(objects: Sequence[DatedObject], oldest_ms: int | None) -> list[DatedObject]:
    """Those that say nothing of that time or later: another one was newer by then."""
    before = [each for each in objects if oldest_ms is not None and each.at <= oldest_ms]
    return before[:-1]


def _bucket(at: int, now_ms: int) -> tuple[int, int]:
    """Of the tables in one, the newest stays."""
    age = now_ms - at
    width = 1 if age < DAY_MS else HOUR_MS if age < MONTH_MS else DAY_MS
    return width, at // width
