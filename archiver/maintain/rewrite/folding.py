"""Folding the tail for a rewrite, which only takes chunks that are in catalogs: by claiming the partition for that."""

from msgspec.structs import replace

from archiver.commit.objects import try_swap
from archiver.commit.operations import Protocol, Wait
from archiver.commit.recovery import claim_and_fold
from archiver.errors import Fenced
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.rewrite.intent import maintained, maintenance_of, read_existing
from index_format.keys import PartitionKeys


def fold_tail(keys: PartitionKeys, offsets: OffsetRanges, writer: str) -> Protocol[None]:
    """Fold the entries of the tail up to the last that spans such an offset: by claiming the partition for that."""
    tries = 0
    while True:
        held = yield from read_existing(keys)
        meant = [each for each in held.marker.tail if offsets.meets(each.start_offset, each.next_offset)]
        if not meant:
            return
        before = meant[-1].next_offset
        body = maintenance_of(held.marker)
        if body.fold_before < before:
            asked = maintained(held.marker, replace(body, fold_before=before))
            yield from try_swap(keys.marker, asked, held.etag)
            continue
        try:
            yield from claim_and_fold(keys, writer)
        except Fenced as error:
            tries += 1
            yield Wait(tries, error.what)
