"""What each offset of a partition holds, by plain rules: offset -> record, or why there is none."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from index_format.records import Record

Answer = Record | str
"""A record; or hole, gap, erased, pruned, beforefirst, notyet."""


@dataclass
class Model:
    """One partition as its readers see it."""

    began: int | None = None
    """The first offset that was ever archived."""
    next_offset: int = 0
    floor: int = 0
    """Below it everything is pruned."""
    held: dict[int, Answer] = field(default_factory=dict)
    """A record, hole, gap or erased, for each offset that was archived; below the floor, what was there before."""
    erased: set[int] = field(default_factory=set)
    """The offsets of all records that were ever erased."""
    orphans: dict[int, Record] = field(default_factory=dict)
    """Records in objects of writers that died before they committed them."""
    is_rebuilt: bool = False
    """A marker that is made again does not say what was below its floor."""

    def copy(self) -> "Model":
        return replace(self, held=dict(self.held), erased=set(self.erased), orphans=dict(self.orphans))

    def append(self, records: Iterable[Record], end: int, gaps: Iterable[range] = ()) -> None:
        """Offsets up to `end` are archived: these records, these gaps, and holes."""
        start = self.next_offset
        self.held |= dict.fromkeys(range(start, end), "hole")
        for gap in gaps:
            self.held |= dict.fromkeys(gap, "gap")
        self.held |= {record.offset: record for record in records}
        self.next_offset = end

    def begin(self, offset: int) -> None:
        self.began = self.next_offset = offset

    def erase(self, offsets: Collection[int]) -> None:
        self.held |= dict.fromkeys(offsets, "erased")
        self.erased |= set(offsets)

    def cut(self, offset: int) -> None:
        """The log was truncated: the partition continues from here."""
        self.held = {at: what for at, what in self.held.items() if at < offset}
        self.began, self.floor = min(self.began or 0, offset), min(self.floor, offset)
        self.next_offset = offset

    @property
    def living(self) -> dict[int, Record]:
        return {at: what for at, what in self.held.items() if isinstance(what, Record) and at >= self.floor}

    def answers(self, offset: int) -> set[Answer]:
        """What a look-up may answer."""
        if self.began is None or offset >= self.next_offset:
            return {"notyet"}
        if offset < self.began:
            return {"beforefirst"}
        if offset < self.floor:
            return {"pruned", "beforefirst"} if self.is_rebuilt else {"pruned"}
        return self._at(offset)

    def answers_rebuilt(self, offset: int, floor: int) -> set[Answer]:
        """The same after the marker was lost and made again, and `floor` was stored before.

        What was pruned and never collected may be there again. Where indexes do not tell what a writer passed over, it
        is a gap. What an object holds that nobody committed may have come in.
        """
        if offset < floor:
            return {"pruned", "beforefirst"}
        if offset not in self.held:
            return {"notyet", "hole", *({self.orphans[offset]} if offset in self.orphans else ())}
        found = self._at(offset)
        if offset < self.floor:  # a chunk that a prune cut is not there as a whole again
            found |= {"gap", "erased"} if offset in self.erased else {"gap"}
        if found & {"hole", "gap"}:
            found |= {"gap", self.orphans.get(offset, "hole")} if self.orphans else {"gap"}
        if "gap" in found and self._is_beside_erased(offset):
            found |= {"hole"}  # where the chunk is gone, the lost marker may have been all that told of the gap
        is_told = offset in self.erased or self._is_beside_erased(offset) or "gap" in found
        if is_told and found & {"erased", "hole", "gap"} and not self._has_records_below(offset):
            found |= {"beforefirst"}  # or all that told of the partition's first chunk
        return found

    def answers_salvaged(self, offset: int) -> set[Answer]:
        """The same after records in gaps were recovered."""
        found = self.answers(offset)
        if found == {"gap"} and self.orphans:
            return {"gap", self.orphans.get(offset, "hole")}
        return found

    def observe(self, said: Mapping[int, Answer]) -> None:
        """Takes over what was answered, where several answers were right."""
        for at, what in said.items():
            is_hole = what == "erased" and at not in self.erased
            if at >= self.floor and what != "notyet":
                self.held[at] = "hole" if is_hole else what

    def _at(self, offset: int) -> set[Answer]:
        what = self.held[offset]
        if what == "hole" and self._is_beside_erased(offset):
            # Of a chunk without a record left, holes are not told from erased records.
            return {"hole", "erased"}
        return {what}

    def _has_records_below(self, offset: int) -> bool:
        return any(at < offset for at in self.living)

    def _is_beside_erased(self, offset: int) -> bool:
        """Whether an erased record lies between the living ones around it."""
        for step in (-1, 1):
            at = offset + step
            while at in self.held and not isinstance(self.held[at], Record):
                if at in self.erased:
                    return True
                at += step
            if at in self.erased:
                return True
        return False
