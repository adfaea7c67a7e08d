"""Ending the chain of a topic that was deleted and created again: its markers name the folder that follows."""

from msgspec.structs import replace

from archiver.commit.objects import read_marker, swap_marker
from archiver.commit.operations import NewToken, Protocol, Wait
from archiver.errors import Fenced
from index_format.keys import LAYOUTS, PartitionKeys, TopicFolder
from index_format.marker import claimed


def name_successor(old: PartitionKeys, successor: str, writer: str) -> Protocol[bool]:
    """Give the old incarnation's marker its last swap; whether there was anything left to do.

    The swap raises the epoch, so that a writer that still holds the old chain is fenced. Readers follow the name.
    """
    tries = 0
    while True:
        held = yield from read_marker(old.marker)
        if held is None or held.marker.successor is not None:
            return False
        nonce: str = yield NewToken()
        last = replace(
            claimed(
                held.marker,
                writer=writer,
                nonce=nonce,
                group_id=held.marker.group_id,
                isolation_level=held.marker.isolation_level,
            ),
            successor=successor,
        )
        try:
            yield from swap_marker(old.marker, last, held.etag)
        except Fenced as error:
            tries += 1
            yield Wait(tries, error.what)
            continue
        return True


def name_successors(newest: PartitionKeys, writer: str) -> Protocol[tuple[str, ...]]:
    """The same for every incarnation older than this one; the folders that were newly named as successors."""
    folder, named = newest.folder, list[str]()
    for incarnation in range(1, folder.incarnation):
        old = LAYOUTS[newest.layout](TopicFolder(folder.topic, incarnation), newest.partition)
        successor = str(TopicFolder(folder.topic, incarnation + 1))
        if (yield from name_successor(old, successor, writer)):
            named.append(successor)
    return tuple(named)
