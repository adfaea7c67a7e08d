"""Storing one write-once object under a name that no other writer took, and swapping the marker."""

import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from archiver.commit.operations import CompareAndSwap, Get, Head, NewToken, Protocol, PutIfAbsent, Wait, retrying
from archiver.errors import Fenced, passing
from blockgz.errors import BlockgzError, StoreError, StoreUnfit
from blockgz.store.writer import Body, ContentTag, ObjectHead, StoredObject, in_parts
from index_format import marker as markers
from index_format.keys import Conflict
from index_format.marker import Marker

R = TypeVar("R")
# A store that refuses this many swaps from its own current ETag is broken.
MAX_REFUSALS = 10


class Held(NamedTuple):
    """A marker and its version in the store; the right to replace exactly that."""

    marker: Marker
    etag: ContentTag


KeyOf = Callable[[Conflict | None], str]


def store_once(
    parts: Sequence[tuple[KeyOf, Body]], epoch: int, *, names_are_shared: bool = False
) -> Protocol[Conflict | None]:
    """Store bodies under their plain keys, or all under conflict keys where a dead writer's orphan took one of them.

    Nothing is overwritten, adopted or deleted. `names_are_shared`: the plain keys are another chain's as well, so that
    they are not asked for: garbage collection may have freed them, and its requests may arrive late. Returns what
    distinguishes the keys that were used.
    """
    attempt: str = yield NewToken()
    conflict: Conflict | None = (yield from _new_conflict(epoch)) if names_are_shared else None
    while True:
        for key_of, body in parts:
            if not (yield from store_at(key_of(conflict), body, attempt)):
                break
        else:
            return conflict
        conflict = yield from _new_conflict(epoch)


def _new_conflict(epoch: int) -> Protocol[Conflict]:
    token: str = yield NewToken()
    return Conflict(epoch, token.replace("-", "")[:8])


def store_at(key: str, body: Body, attempt: str) -> Protocol[bool]:
    """Store a body under a key; return False if another writer's body is there."""
    # A body that goes up in parts is sent only if the key is free. Any other one is sent at once: one request.
    tries = 0
    is_asked = in_parts(body)
    while True:
        if is_asked:
            head: ObjectHead | None = yield from retrying(Head(key))
            if head is not None:
                return head.attempt == attempt
        # A name is rarely taken: asking first would cost every small object a request.
        was_asked, is_asked = is_asked, True
        cause, failure = f"the store says both that {key} exists and that it does not", None
        try:
            if (yield PutIfAbsent(key, body, attempt)):
                return True
            if not was_asked:
                continue
        except BlockgzError as error:
            failure = passing(error)
            cause = error.what
        tries += 1
        yield Wait(tries, cause, failure)


def read_marker(key: str) -> Protocol[Held | None]:
    """Return the marker as it is now; None if there is none. Raises FormatError for one that is damaged."""
    found: StoredObject | None = yield from retrying(Get(key))
    return Held(markers.decode_marker(found.body, key), found.etag) if found else None


def swap_marker(key: str, marker: Marker, expected: ContentTag | None) -> Protocol[Held]:
    """Replace version `expected` of the marker: the commit point.

    The marker's nonce must be new: by it a swap whose answer was lost is known from another writer's. Raises Fenced if
    another marker is there, StoreError if an existing marker vanished, StoreUnfit if the store keeps refusing its own
    ETag.
    """
    found = yield from try_swap(key, marker, expected)
    if found.marker.nonce != marker.nonce:
        raise _fenced(key, found.marker)
    return found


def swap_own_marker(key: str, held: Held, change: Callable[[Marker], Protocol[Marker]]) -> Protocol[Held]:
    """Replace a marker that this writer holds by what `change` makes of it, with one new nonce for all tries.

    If maintainers changed their part of it in the meantime, `change` is applied to that version. Raises Fenced if
    another writer claimed the partition, and what `swap_marker` raises.
    """
    mine = held.marker
    while True:
        marker = yield from change(markers.rebased(mine, held.marker))
        found = yield from try_swap(key, marker, held.etag)
        if found.marker.nonce == marker.nonce:
            return found
        if (found.marker.epoch, found.marker.writer) != (mine.epoch, mine.writer):
            raise _fenced(key, found.marker)
        held = found


def _fenced(key: str, found: Marker) -> Fenced:
    return Fenced(
        f"another writer took over {key}",
        why=f"writer {found.writer} of group {found.group_id!r} holds epoch {found.epoch}",
        remedy="run only one deployment per archive; this writer drops its open chunk, and nothing is lost",
    )


def try_swap(key: str, marker: Marker, expected: ContentTag | None) -> Protocol[Held]:
    """Replace version `expected` of the marker; return the marker that is there then: this one, or another writer's.

    The new marker is known by its nonce, even if maintainers changed their part of it since. Raises StoreError and
    StoreUnfit: see `swap_marker`.
    """
    marker = markers.revised(marker)
    body = markers.encode(marker)
    tries = refusals = 0
    while True:
        cause, failure = "the store refused a swap from its own ETag", None
        try:
            etag: ContentTag | None = yield CompareAndSwap(key, body, expected)
            if etag is not None:
                return Held(marker, etag)
            refusals += 1
        except BlockgzError as error:
            failure = passing(error)
            cause = error.what
        # A swap whose answer was lost may have happened: the marker itself tells.
        current = yield from read_marker(key)
        if current is None and expected is not None:
            raise StoreError(
                f"the marker {key} vanished",
                why="it existed when this writer claimed the partition",
                remedy="find out who deleted it, and restore it; it is never created again in an existing archive",
            )
        if current is not None and current.etag != expected:
            return current
        if refusals >= MAX_REFUSALS:
            raise StoreUnfit(
                f"the store refused {refusals} swaps of {key} from the ETag that it reported itself",
                remedy="use a store with working conditional writes",
            )
        tries += 1
        yield Wait(tries, cause, failure)


def until_swapped(attempt: Callable[[], Protocol[R]]) -> Protocol[R]:
    """Repeat an attempt to read and swap a marker as long as another writer swaps it in between."""
    tries = 0
    while True:
        try:
            return (yield from attempt())
        except Fenced as error:
            tries += 1
            yield Wait(tries, error.what)


class RestingMarker(NamedTuple):
    """The stored form of a marker, compressed, with some of its fields: a seventh of the decoded marker's memory."""

    packed: bytes
    etag: ContentTag
    epoch: int
    next_offset: int | None
    newest_timestamp: int | None
    num_gaps: int
    num_retired: int
    retired_bytes: int

    @classmethod
    def of(cls, held: Held) -> "RestingMarker":
        marker = held.marker
        return cls(
            packed=zlib.compress(markers.encode(marker)),
            etag=held.etag,
            epoch=marker.epoch,
            next_offset=marker.next_offset,
            newest_timestamp=marker.newest_timestamp,
            num_gaps=len(marker.gaps),
            num_retired=len(marker.retired),
            retired_bytes=sum(each.num_bytes for each in marker.retired),
        )

    def unpack(self) -> Held:
        """Return the marker itself, for a commit: some tenths of a millisecond of work."""
        return Held(markers.decode_marker(zlib.decompress(self.packed)), self.etag)
