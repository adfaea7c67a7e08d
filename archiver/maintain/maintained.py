"""What garbage collection may delete of a partition that is rewritten (marker version 2); book-keeping in its marker.

docs/lifecycle.md says what readers are promised. What the code below rests on:

- Objects are listed before the marker is read, and all is spared that the marker leads to, or the references that it
  lists as retired. These are dropped a grace after a collector first saw them: the commit itself does not say when it
  happened, since a swap may arrive late. A retired catalog shares chunks and catalogs with others, so nothing is
  deleted because it lists them, only because nothing leads to them.
- What a rewrite stores has its token in the name. No token is drawn twice, and who lost the intent never commits. So
  what nothing leads to goes, unless its token is that of the intent in force.
- A writer's chunk is dead below the chain's end, as under version 1. One that was begun under version 1 may start where
  the last gap does, if that one is `empty`.
- A writer's catalog starts where the catalogs of its level or of higher ones end, which never falls.
- Records that a gap lists as lost may be in an orphan. It is spared as long as the gap lies behind all catalogs, where
  it can be filled, and for a grace after it was recorded; for ever where it does not say when that was.

Each of these is final: what one marker calls dead, no later one leads to. So a plan may be carried out late.
"""

from collections.abc import Collection, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.objects import read_marker, try_swap
from archiver.commit.operations import Now, Protocol
from archiver.maintain.garbage import Chain, Found, in_order
from index_format.chunk_index import EMPTY, ERASED, Gap
from index_format.keys import ObjectKind, PartitionKeys
from index_format.marker import Maintenance, Marker


def keep_books(keys: PartitionKeys, grace: float) -> Protocol[None]:
    """Bring what the marker says of retired references and of an intent up to date; `grace` in seconds."""
    while True:
        held = yield from read_marker(keys.marker)
        if held is None or not held.marker.maintenance:
            return
        now: int = yield Now()
        body = booked(held.marker.maintenance, now=now, grace_ms=round(grace * 1000))
        if body == held.marker.maintenance:
            return
        yield from try_swap(keys.marker, replace(held.marker, maintenance=body), held.etag)


def booked(body: Maintenance, *, now: int, grace_ms: int) -> Maintenance:
    """References that were just retired get the time; those whose grace is over go, and so does an abandoned intent.

    What is further in the future than a grace, a clock wrote that was wrong.
    """
    stamped = [
        each if each.at is not None and each.at <= now + grace_ms else replace(each, at=now) for each in body.retired
    ]
    kept = tuple(each for each in stamped if each.at is not None and now <= each.at + grace_ms)
    is_abandoned = body.rewriting is not None and abs(now - body.rewriting.since) > grace_ms
    return replace(body, retired=kept, rewriting=None if is_abandoned else body.rewriting)


def find_dead_maintained(
    chain: Chain, objects: Collection[Found], data_stems: Mapping[str, str], *, now: float, grace: float
) -> list[Found]:
    """As `garbage.find_dead` for a partition of version 2, whose `chain` holds what its marker retired, too."""
    old = [found for found in objects if now - found.listed.modified >= grace]
    return in_order(found for found in old if not is_reached(chain, found, data_stems) and _is_final(chain, found))


def is_reached(chain: Chain, found: Found, data_stems: Mapping[str, str]) -> bool:
    """Whether the marker leads to the object, or references that it retired."""
    if found.name.kind is ObjectKind.CATALOG:
        return found.name.key in chain.catalogs
    if found.name.kind is ObjectKind.INDEX:
        return found.name.key in chain.indexes
    indexes = [chain.index_key(entry) for entry in chain.by_number.get(found.name.number, ())]
    return any(data_stems.get(index, found.name.stem) == found.name.stem for index in indexes)


def _is_final(chain: Chain, found: Found) -> bool:
    """Whether no later marker leads to an object that this one does not lead to."""
    marker, name = chain.marker, found.name
    if name.token is not None:
        rewriting = marker.maintenance.rewriting if marker.maintenance else None
        return rewriting is None or rewriting.token != name.token
    if name.kind is ObjectKind.CATALOG:
        cover = marker.cover(name.level)
        return cover is not None and name.number < cover
    end = next_start(marker)
    return marker.start_offset is not None and end is not None and marker.start_offset <= name.number < end


def next_start(marker: Marker) -> int | None:
    """The lowest offset at which the next chunk may start."""
    last = marker.gaps[-1] if marker.gaps else None
    if last is not None and last.reason == EMPTY and last.end == marker.chain_end:
        return last.start
    return marker.chain_end


def guarded_gaps(chain: Chain, *, now: float, grace: float) -> list[Gap]:
    """The gaps whose lost records may be in objects that nothing leads to; see above."""
    cover = chain.marker.cover(1) or 0
    return [
        gap
        for gap in chain.gaps
        if gap.reason not in (EMPTY, ERASED)
        and gap.end > chain.marker.pruned_before
        and (gap.start >= cover or gap.at is UNSET or now < gap.at / 1000 + grace)
    ]
