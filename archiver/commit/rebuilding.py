"""Storing the marker of a chain anew, once it is known which chunks the chain has."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.commit import store_catalog
from archiver.commit.objects import Held, swap_marker
from archiver.commit.operations import NewToken, Protocol
from index_format import marker as markers
from index_format.keys import PartitionKeys
from index_format.marker import Marker
from index_format.rebuild import Link


class MarkerFacts(NamedTuple):
    """What a marker says beside its chain."""

    group_id: str
    epoch: int
    """Above that of every object of the partition, so that whoever wrote them is fenced."""
    tail_hash: str | None
    successor: str | None


def store_marker(
    keys: PartitionKeys, links: Sequence[Link], facts: MarkerFacts, writer: str, expected: str | None
) -> Protocol[Held]:
    """Store the marker of that chain in the place of version `expected`, and the catalogs that it needs before it.

    Nothing but the marker is replaced. Raises Fenced where another writer's marker stands there by now.
    """
    first = links[0].chunk.index
    nonce: str = yield NewToken()
    marker = Marker(
        archive_id=first.archive_id,
        topic=first.topic,
        topic_id=links[-1].chunk.index.topic_id,
        partition=first.partition,
        group_id=facts.group_id,
        isolation_level=links[-1].chunk.index.isolation_level,
        epoch=facts.epoch,
        writer=writer,
        nonce=nonce,
    )
    for chunk, gaps_before in links:
        index = chunk.index
        if marker.next_offset is None or marker.next_offset < index.start_offset:
            marker = markers.advanced(marker, index.start_offset, nonce=nonce, leader_epoch=None, gaps=gaps_before)
        marker, pending = markers.folded(marker)
        for catalog in pending:
            marker = yield from store_catalog(keys, marker, catalog)
        marker = markers.appended(
            marker,
            markers.entry_of(index, chunk.name, chunk.body),
            [gap for gap in index.gaps if gap.start >= index.start_offset],
            nonce=nonce,
            leader_epoch=None,
            tail_hash=facts.tail_hash or "",
        )
    marker = replace(marker, tail_hash=facts.tail_hash, successor=facts.successor)
    return (yield from swap_marker(keys.marker, marker, expected))
