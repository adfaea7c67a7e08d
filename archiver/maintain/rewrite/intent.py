"""Take the intent of a rewrite by a swap of the marker, before anything is stored."""

from collections.abc import Callable
from enum import StrEnum
from itertools import count
from typing import Protocol as Interface
from typing import TypeVar

from msgspec.structs import replace

from archiver.commit.commit import Held, read_marker, store_at, try_swap
from archiver.commit.operations import NewToken, Now, Protocol, Wait
from archiver.commit.recovery import claim_and_fold
from archiver.errors import Fenced, RewriteOvertaken, RewriteRefused
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.errors import BlockgzError, FormatError, ObjectMissing, StoreError
from blockgz.store.writer import Body
from index_format.keys import PartitionKeys, Rewritten
from index_format.marker import MAX_RETIRED, Maintenance, Marker, Rewriting

# Milliseconds in which nobody replaces an intent, after it was renewed.
LEASE_MS = 3_600_000
# Renewals of an intent in the time of a lease.
RENEWALS = 4


class RewriteOutcome(StrEnum):
    COMMITTED = "committed"
    OVERTAKEN = "overtaken"
    """Another maintainer took over; the objects that this one stored are garbage."""
    BUSY = "busy"
    """Another maintainer is running."""
    FULL = "full"
    """The marker has as many retired references as it may: garbage collection has to run first."""
    NOTHING = "nothing"
    """There is nothing to rewrite, or no longer."""


def not_done(where: str, what: str, outcome: RewriteOutcome) -> RewriteRefused:
    """Return the error about a partition that was not `what`, such as `pruned`."""
    why, remedy = {
        RewriteOutcome.BUSY: (
            "another maintainer is running on it, or was stopped less than an hour ago",
            "run the command again when that is done, or an hour later",
        ),
        RewriteOutcome.OVERTAKEN: ("another maintainer took over", "run the command again"),
        RewriteOutcome.FULL: (
            "its marker lists as many retired references as it may",
            "run archiver gc now, and again once its grace period is over",
        ),
    }.get(outcome, ("its chunks were rewritten since the plan was made", "run the command again to make a new plan"))
    return RewriteRefused(f"{where} was not {what}", why=why, remedy=remedy)


class Chosen(Interface):
    """Offsets [start, stop) to rewrite."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


C = TypeVar("C", bound=Chosen)
# Return the offsets to rewrite under a marker, or None; may read catalogs.
Choose = Callable[[Marker], Protocol[C | None]]


class RewriteAttempt:
    """A rewrite in progress: its token, and the names of its objects."""

    def __init__(self, keys: PartitionKeys, intent: Rewriting, lease_ms: int, successor: str | None = None) -> None:
        """`successor`: the folder in which the partition continues, from the marker when the rewrite began."""
        self.keys = keys
        self.successor = successor
        # The intent as it was last renewed.
        self.intent = intent
        # The floor that this rewrite raises the marker's to; None if it is not a prune.
        self.floor: int | None = None
        self._lease_ms = lease_ms
        self._numbers = count()

    @property
    def token(self) -> str:
        return self.intent.token

    def mark(self) -> Rewritten:
        """Return what follows the position in a new name; no two are equal."""
        return Rewritten(self.token, next(self._numbers))

    def is_in_force(self, marker: Marker) -> bool:
        """Return whether the marker has the intent of this rewrite."""
        rewriting = maintenance_of(marker).rewriting
        return rewriting is not None and rewriting.token == self.token

    def is_committed(self, marker: Marker) -> bool:
        """Return whether the marker lists what this rewrite retired; garbage collection removes that later."""
        return any(retired.token == self.token for retired in maintenance_of(marker).retired)

    def outcome(self, marker: Marker) -> RewriteOutcome:
        """Return how a rewrite ended whose intent the marker does not have."""
        return RewriteOutcome.COMMITTED if self.is_committed(marker) else RewriteOutcome.OVERTAKEN

    def keep(self) -> Protocol[None]:
        """Renew the intent if that is due; raises RewriteOvertaken if it is no longer in force."""
        now: int = yield Now()
        if now < self.intent.since + self._lease_ms // RENEWALS:
            return
        while True:
            held = yield from self.read_own()
            self.intent = replace(self.intent, since=now)
            body = replace(maintenance_of(held.marker), rewriting=self.intent)
            found = yield from try_swap(self.keys.marker, maintained(held.marker, body), held.etag)
            if maintenance_of(found.marker).rewriting == self.intent:
                return

    def read_own(self) -> Protocol[Held]:
        """Return the current marker; raises RewriteOvertaken if the intent is no longer in force."""
        held = yield from read_existing(self.keys)
        if not self.is_in_force(held.marker):
            raise self.overtaken()
        return held

    def overtaken(self) -> RewriteOvertaken:
        """Return the error about an intent that is no longer in force."""
        return RewriteOvertaken(
            f"another maintainer took over {self.keys.marker}",
            why=f"its {self.intent.kind} replaced this one, which had not renewed its claim, or garbage collection did",
            remedy="run the command again; what this one stored goes with the next archiver gc",
        )

    def store(self, name: str, body: Body) -> Protocol[None]:
        """Store an object under a name of this rewrite."""
        yield from self.keep()
        attempt: str = yield NewToken()
        if not (yield from store_at(name, body, attempt)):
            raise StoreError(
                f"{name} exists already",
                why="its name holds a token that was drawn for this rewrite alone",
                remedy="run the command again; tell the authors of blockgz if it happens again",
            )

    def give_up(self) -> Protocol[RewriteOutcome | None]:
        """Remove the intent; return how the rewrite ended if the intent was no longer in force."""
        is_mine = False
        while True:
            held = yield from read_existing(self.keys)
            if not self.is_in_force(held.marker):
                return None if is_mine else self.outcome(held.marker)
            is_mine = True
            body = replace(maintenance_of(held.marker), rewriting=None)
            yield from try_swap(self.keys.marker, maintained(held.marker, body), held.etag)


def begin(
    keys: PartitionKeys, kind: str, choose: Choose[C], *, lease_ms: int = LEASE_MS
) -> Protocol[tuple[RewriteAttempt, C] | RewriteOutcome]:
    """Take an intent for the offsets that `choose` returns under the current marker, or return why not.

    An intent in force is replaced only if nobody renewed it for `lease_ms`. `choose` may raise ObjectMissing or a
    FormatError, which count if the marker has not changed. Raises RewriteRefused in layout seed.
    """
    if keys.layout == "seed":
        raise RewriteRefused(
            f"{keys.marker} cannot be rewritten",
            why="it is in layout seed, which other tools read as well",
            remedy="nothing to do; only archives of layout topic are pruned and compacted",
        )
    while True:
        held = yield from read_marker(keys.marker)
        if held is None or held.marker.next_offset is None:
            return RewriteOutcome.NOTHING
        before = maintenance_of(held.marker)
        if len(before.retired) >= MAX_RETIRED:
            return RewriteOutcome.FULL
        now: int = yield Now()
        # One from far in the future was written by a clock that was wrong: nobody would renew it.
        if before.rewriting is not None and abs(now - before.rewriting.since) < lease_ms:
            return RewriteOutcome.BUSY
        try:
            chosen = yield from choose(held.marker)
        except (ObjectMissing, FormatError):
            again = yield from read_marker(keys.marker)
            if again is not None and again.etag == held.etag:
                raise
            continue
        if chosen is None:
            return RewriteOutcome.NOTHING
        token: str = yield NewToken()
        since: int = yield Now()
        intent = Rewriting(
            token=token.replace("-", ""), kind=kind, level=1, start=chosen.start, end=chosen.stop, since=since
        )
        body = replace(before, rewriting=intent)
        attempt = RewriteAttempt(keys, intent, lease_ms, held.marker.successor)
        try:
            found = yield from try_swap(keys.marker, maintained(held.marker, body), held.etag)
        except KeyboardInterrupt:
            yield from attempt.give_up()
            raise
        if attempt.is_in_force(found.marker):
            return attempt, chosen


def given_up_on_failure(attempt: RewriteAttempt, work: Protocol[RewriteOutcome]) -> Protocol[RewriteOutcome]:
    """Do the work; if it fails or is interrupted, give up the intent, or others would wait for the end of its lease."""
    try:
        return (yield from work)
    except BlockgzError:
        ended = yield from attempt.give_up()
        # Without an intent in force, others may have deleted what the work reads.
        if ended is None:
            raise
        return ended
    except KeyboardInterrupt:
        yield from attempt.give_up()
        raise


def read_existing(keys: PartitionKeys) -> Protocol[Held]:
    """Return the current marker of a partition that had one."""
    held = yield from read_marker(keys.marker)
    if held is None:
        raise StoreError(
            f"the marker {keys.marker} vanished",
            why="it existed when the rewrite began",
            remedy=f"rebuild the marker: archiver repair marker {keys}",
        )
    return held


def maintenance_of(marker: Marker) -> Maintenance:
    """Return the maintainers' part of a marker; it is empty in version 1."""
    return marker.maintenance or Maintenance()


def maintained(marker: Marker, body: Maintenance) -> Marker:
    """Return the marker with this maintainers' part, of version 2."""
    return replace(marker, version=2, maintenance=body)


def request_fold(keys: PartitionKeys, before: int) -> Protocol[None]:
    """Request that the writer folds the entries of the tail that end at or below this offset, with its next swap."""
    while True:
        held = yield from read_existing(keys)
        body = maintenance_of(held.marker)
        if body.fold_before >= before:
            return
        yield from try_swap(keys.marker, maintained(held.marker, replace(body, fold_before=before)), held.etag)


def fold_tail(keys: PartitionKeys, offsets: OffsetRanges, writer: str) -> Protocol[None]:
    """Fold the tail up to the last entry that spans one of these offsets, by claiming the partition for that."""
    tries = 0
    while True:
        held = yield from read_existing(keys)
        meant = [each for each in held.marker.tail if offsets.meets(each.start_offset, each.next_offset)]
        if not meant:
            return
        yield from request_fold(keys, meant[-1].next_offset)
        try:
            yield from claim_and_fold(keys, writer)
        except Fenced as error:
            tries += 1
            yield Wait(tries, error.what)
