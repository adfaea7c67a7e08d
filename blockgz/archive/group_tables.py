"""A topic at a past time: the positions of its consumer groups, and its configuration."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from blockgz.archive.partition import Damaged
from blockgz.errors import FormatError, MalformedObject, ObjectMissing
from blockgz.store.reader import ObjectReader
from blockgz.units import time_text
from index_format import groups, objects
from index_format.groups import ConsumerGroups
from index_format.keys import (
    TOPIC_CONFIG_OBJECT,
    TopicFolder,
    configs_home,
    dated_key,
    groups_home,
    parse_dated_key,
    topic_home,
)
from index_format.objects import TopicConfig

# A following archiver writes a table every hour: if it ran in these two days, one request finds the newest.
WINDOW_MS = 2 * 24 * 3600 * 1000


class GroupTable(NamedTuple):
    """The consumer groups of a topic as of a time."""

    slot: int
    """The time, in ms, that names the table: none of its answers is younger."""
    age_ms: int
    """Milliseconds between the table and the requested time."""
    key: str
    content: ConsumerGroups


async def groups_at(
    reader: ObjectReader, layout: str, folder: TopicFolder, at_ms: int | None = None
) -> GroupTable | None:
    """Return the newest table with groups up to a time in ms, or of now; raises a FormatError if damaged."""
    asked = round(time.time() * 1000) if at_ms is None else at_ms
    home = groups_home(layout, folder)
    # A table's name may lie ahead of the clock: without a bound it still is the newest one.
    slot = await _newest(reader, home, asked - WINDOW_MS, at_ms)
    while slot is not None:
        key = dated_key(home, slot)
        content = groups.decode(await reader.get(key, objects.MAX_OBJECT_BYTES), key, slot)
        if content.topic != folder.topic:
            raise MalformedObject(f"{key} is of another topic", why=f"it names {content.topic}")
        if content.has_groups:
            return GroupTable(slot, max(0, asked - slot), key, content)
        # It names the newest table with groups before it; `gc` may have removed that one and kept an older one.
        until = content.groups_slot
        slot = None if until is UNSET else await _newest(reader, home, until - WINDOW_MS, until)
    return None


async def vanished_groups(reader: ObjectReader, layout: str, folder: TopicFolder, table: GroupTable) -> list[str]:
    """Return the groups of the table before, up to two days older, that are not known to have left since."""
    home = groups_home(layout, folder)
    oldest = dated_key(home, max(0, table.slot - WINDOW_MS))
    if await _last_listed(reader, home, oldest, table.slot - 1) is None:
        return []
    older = None
    with suppress(*Damaged):
        older = await groups_at(reader, layout, folder, table.slot - 1)
    if older is None or older.slot < table.slot - WINDOW_MS:
        return []
    content = table.content
    known = {group.group_id for group in content.groups} | {gone.group_id for gone in content.gone or ()}
    return [group.group_id for group in older.content.groups if group.group_id not in known]


async def config_at(
    reader: ObjectReader, layout: str, folder: TopicFolder, at_ms: int | None = None
) -> TopicConfig | None:
    """Return the topic's configuration at a time, in ms, or as last seen; None if that was not kept."""
    home = configs_home(layout, folder)
    # Only a dated version has `seen_at`. Without one from that time or before, it is the topic as last seen.
    seen_at = None if at_ms is None else await _newest(reader, home, None, at_ms)
    key = topic_home(layout, folder) + TOPIC_CONFIG_OBJECT if seen_at is None else dated_key(home, seen_at)
    try:
        body = await reader.get(key, objects.MAX_OBJECT_BYTES)
    except ObjectMissing:
        if seen_at is not None:
            raise
        return None
    return objects.decode(body, TopicConfig, key)


async def _newest(reader: ObjectReader, home: str, likely_after: int | None, until: int | None) -> int | None:
    """Return the greatest time, up to `until`, that names an object of `home`; the likely ones come first."""
    if likely_after is not None and likely_after > 0:
        found = await _last_listed(reader, home, dated_key(home, likely_after), until)
        if found is not None:
            return found
    return await _last_listed(reader, home, "", until)


async def _last_listed(reader: ObjectReader, home: str, after: str, until: int | None) -> int | None:
    last = None
    async for key in reader.list(home, after):
        at_ms = parse_dated_key(home, key)
        if at_ms is not None:
            if until is not None and at_ms > until:
                break
            last = at_ms
    return last


# Times of a table may be wrong by this much: S3 reports its clock in seconds.
CLOCK_MS = 1000
# Tables that are read on each side of a time, to learn where partitions ended.
TABLES_A_SIDE = 32


class EndsAround(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ends of a partition's log shortly before and after a time, as tables have them."""

    lower: int | None = None
    """Its records had come by the time; None if no table says so."""
    lower_at: int | None = None
    """Time of that answer, ms since the epoch."""
    upper: int | None = None
    """Records from here on came after the time; None if no table says so."""
    upper_at: int | None = None
    """Time of that question, ms since the epoch."""

    @property
    def span_ms(self) -> int | None:
        """Milliseconds between both times; None unless both are known."""
        return None if self.lower_at is None or self.upper_at is None else self.upper_at - self.lower_at

    def and_in(self, newer: "EndsAround", limit: int) -> "EndsAround":
        """Return what both folders of a truncated log say; the newer one is read up to `limit`."""
        both = (self, 2**63), (newer, limit)
        below = [(min(each.lower, most), each.lower_at) for each, most in both if each.lower is not None]
        above = [(min(each.upper, most), each.upper_at) for each, most in both if each.upper is not None]
        nothing = (None, None)
        return EndsAround(*max(below, default=nothing), *min(above, default=nothing))

    def text(self) -> str | None:
        """Say when the log's end was seen; None if it was not."""
        seen = [(self.lower_at, self.lower), (self.upper_at, self.upper)]
        told = [f"{time_text(at)} ({offset})" for at, offset in seen if at is not None]
        return f"The log's end was seen at {' and '.join(told)}." if told else None


async def ends_around(
    reader: ObjectReader, layout: str, folder: TopicFolder, topic_id: str | None, numbers: Collection[int], at_ms: int
) -> dict[int, EndsAround]:
    """Return where partitions of the topic with that id ended around a time, in ms, by their numbers."""
    # A damaged table is passed over: then less is known.
    home = groups_home(layout, folder)
    slots = await _slots_around(reader, home, at_ms)
    behind = [slot for slot in slots if slot > at_ms]
    older = [slot for slot in reversed(slots) if slot <= at_ms]

    async def seen(slots: Sequence[int], *, is_before: bool) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for slot in slots[:TABLES_A_SIDE]:
            ends = await _ends(reader, dated_key(home, slot), slot, folder, topic_id)
            if ends is None:
                continue
            at = ends.answered_at if is_before else ends.asked_at
            if at + CLOCK_MS <= at_ms if is_before else at - CLOCK_MS >= at_ms:
                for end in ends.partitions:
                    found.setdefault(end.partition, (end.offset, at))
            if found.keys() >= set(numbers):
                break
        return found

    # A table is named after its last answer: the first ones behind the time may have been answered before it.
    before = await seen([*reversed(behind[:2]), *older], is_before=True)
    after = await seen(behind, is_before=False)
    nothing = (None, None)
    return {
        number: EndsAround(*before.get(number, nothing), *after.get(number, nothing))
        for number in numbers
        if number in before or number in after
    }


async def _slots_around(reader: ObjectReader, home: str, at_ms: int) -> list[int]:
    for after in ([dated_key(home, at_ms - WINDOW_MS)] if at_ms > WINDOW_MS else []) + [""]:
        slots = list[int]()
        num_behind = 0
        async for key in reader.list(home, after):
            slot = parse_dated_key(home, key)
            if slot is None:
                continue
            slots.append(slot)
            num_behind += slot > at_ms
            if num_behind > TABLES_A_SIDE:
                break
        if slots and slots[0] <= at_ms:
            return slots
    return slots


async def _ends(
    reader: ObjectReader, key: str, slot: int, folder: TopicFolder, topic_id: str | None
) -> groups.LogEnds | None:
    try:
        table = groups.decode(await reader.get(key, objects.MAX_OBJECT_BYTES), key, slot)
    except (FormatError, ObjectMissing):
        return None
    return table.ends or None if (table.topic, table.topic_id) == (folder.topic, topic_id) else None
