"""Filters of records: pure functions over Arrow columns, and tests by which whole blocks can be skipped."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from blockgz.errors import UsageError
from blockgz.units import timestamp_text
from index_format import arrow_functions as pc
from index_format.key_filter import Hashes, hashes_of, may_hold
from index_format.marker import TimeBounded
from index_format.objects import BlockEntry

MAX_PATTERN = 10_000


class Condition(Protocol):
    """Something that holds of a record or does not; its text says what, for people and for comparing."""

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each record whether it holds; no nulls."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression (RE2's), found in UTF-8 as text, in other bytes as bytes; UsageError if invalid."""

    expression: str
    ignore_case: bool = False

    def __str__(self) -> str:
        return f"/{self.expression}/{'i' if self.ignore_case else ''}"

    def __post_init__(self) -> None:
        if len(self.expression) > MAX_PATTERN:
            raise UsageError(
                f"a pattern has {len(self.expression)} characters", why=f"at most {MAX_PATTERN} are allowed"
            )
        try:
            for kind in (pa.string(), pa.binary()):  # what is right for text may name characters that no byte is
                pc.match_substring_regex(pa.array([""], kind), self.expression)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise UsageError(
                f"{self.expression[:80]!r} is not a regular expression",
                why=" ".join(str(error).split()),
                remedy="use RE2 syntax, which has no look-around or back-references; write characters above \\xff as "
                "they are; replayer grep -F takes the text literally",
            ) from error

    @classmethod
    def literal(cls, text: str, *, ignore_case: bool = False) -> "Pattern":
        special = re.compile(r"[^a-zA-Z0-9\x80-\U0010ffff]")
        return cls(special.sub(lambda found: rf"\x{{{ord(found[0]):x}}}", text), ignore_case)

    def found_in(self, column: pa.Array) -> pa.BooleanArray:
        """Return for each row of a binary column whether it is found; a null holds nothing."""
        try:
            return self._found(column.cast(pa.string()))
        except pa.ArrowInvalid:
            if len(column) == 1:
                return self._found(column)
            texts = pa.array([_text(content) for content in column.to_pylist()], pa.string())
            return pc.if_else(pc.is_valid(texts), self._found(texts), self._found(column))

    def _found(self, column: pa.Array) -> pa.BooleanArray:
        found = pc.match_substring_regex(column, self.expression, ignore_case=self.ignore_case)
        return pc.fill_null(found, False)


@dataclass(frozen=True)
class KeyIn:
    """The key is one of these; None is the null key."""

    keys: Sequence[bytes | None]

    def __str__(self) -> str:
        return f"key in {list(self.keys)}"

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return pc.is_in(batch.column("key"), pa.array(self.keys, pa.binary()))

    def may_be_in(self, block: BlockEntry) -> bool:
        """Return whether the block may hold such a record: false only if its key filter rules all of the keys out."""
        if None in self.keys or not isinstance(block.key_filter, bytes):
            return True
        return may_hold(block.key_filter, self._hashes)

    @cached_property
    def _hashes(self) -> Hashes:
        return hashes_of(key for key in self.keys if key is not None)


@dataclass(frozen=True)
class ValueMatches:
    """The pattern is found in the value."""

    pattern: Pattern

    def __str__(self) -> str:
        return f"{self.pattern} in the value"

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return self.pattern.found_in(batch.column("value"))


@dataclass(frozen=True)
class HeaderIs:
    """One of the headers has this key, and this value if one is given."""

    key: str
    value: bytes | None = None

    def __str__(self) -> str:
        return f"header {self.key!r}" + ("" if self.value is None else f" = {self.value!r}")

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        column = batch.column("headers")
        flat = column.flatten()
        found = pc.equal(flat.field("key"), self.key)
        if self.value is not None:
            value = pa.scalar(self.value, pa.binary())
            found = pc.and_(found, pc.fill_null(pc.equal(flat.field("value"), value), False))
        rows = pc.list_parent_indices(column).filter(found)
        return pc.is_in(pa.array(range(batch.num_rows), rows.type), rows)


@dataclass(frozen=True)
class Not:
    """The other records."""

    condition: Condition

    def __str__(self) -> str:
        return f"not {self.condition}"

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return pc.invert(self.condition.mask(batch))


@dataclass(frozen=True)
class RecordFilter:
    """Records with a timestamp (ms) in [since, until) for which all conditions hold."""

    since: int | None = None
    until: int | None = None
    conditions: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        """Return everything that decides which records are selected; hashes of jobs hold it, so it never changes."""
        return self._text("@{:013d}".format)

    @property
    def described(self) -> str:
        """The text for people, with dates."""
        return self._text(timestamp_text)

    def _text(self, time: Callable[[int], str]) -> str:
        since = [] if self.since is None else [f"timestamp >= {time(self.since)}"]
        until = [] if self.until is None else [f"timestamp < {time(self.until)}"]
        return " and ".join([*since, *until, *map(str, self.conditions)]) or "all"

    @property
    def by_time(self) -> bool:
        return self.since is not None or self.until is not None

    @property
    def passes_all(self) -> bool:
        return not self.by_time and not self.conditions

    def may_match(self, span: TimeBounded) -> bool:
        """Return whether a block, chunk or catalog may hold a selected record; otherwise it need not be read."""
        after = self.since is None or span.max_timestamp >= self.since
        if not after or (self.until is not None and span.min_timestamp >= self.until):
            return False
        if not isinstance(span, BlockEntry):
            return True
        return all(condition.may_be_in(span) for condition in self.conditions if isinstance(condition, KeyIn))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected records of the batch, in order."""
        timestamps = batch.column("timestamp")
        if self.since is not None:
            batch = _filtered(batch, pc.greater_equal(timestamps, self.since))
        if self.until is not None:
            batch = _filtered(batch, pc.less(batch.column("timestamp"), self.until))
        for condition in self.conditions:
            batch = _filtered(batch, condition.mask(batch))
        return batch


def _filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows whose mask is true; all of them without a copy."""
    return batch if mask.true_count == len(mask) else batch.filter(mask)


def header_condition(text: str) -> HeaderIs:
    """Parse `NAME` or `NAME=VALUE`; the name has no `=`. Raises UsageError for a name that is not UTF-8."""
    key, separator, value = text.partition("=")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{key[:80]!r} is not a header name", why="header names are UTF-8") from None
    return HeaderIs(key, value.encode(errors="surrogateescape") if separator else None)


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
