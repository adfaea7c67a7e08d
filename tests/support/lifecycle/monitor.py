"""Watches every change of a simulated store, and knows nothing of the code that makes it.

It reads JSON with the standard library alone, and judges by the log that was archived: every offset below a marker's
next_offset has its record, or a reason that holds. What a writer may change, what a maintainer may, what garbage
collection may delete: the rules of docs/lifecycle.md, as consequences for readers, and, where `strict`, as such.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

Json = dict[str, Any]
Reach = Mapping[str, str]
"""Key -> SHA-256 of what must stand there."""
HEAD_FIELDS = (
    *("epoch", "writer", "nonce", "start_offset", "next_offset", "leader_epoch", "tail_hash", "last_chunk_index"),
    *("last_offset", "tail", "gaps", "successor", "continues", "topic_id", "group_id", "isolation_level"),
)
BODY_FIELDS = ("pruned_before", "rewriting", "retired", "fold_before")
MAX_RETIRED = 64
SAID = {"erased": "erased", "empty": "hole", "lost": "lost"}


class Harm(Exception):
    """The archive is not what it must be."""


class Truth:
    """What the log held, and what became of it beside the archive."""

    def __init__(self, values: Mapping[int, bytes], secrets: frozenset[int]) -> None:
        self.values = values
        """By offset; what is missing here is a hole of the log."""
        self.secrets = secrets
        """Offsets of the records that an erasure is about."""
        self.lost: set[int] = set()
        """Offsets that a claim recorded as a gap."""
        self.erased: set[int] = set()
        """Offsets that a committed chain called erased once."""
        self.damaged: set[int] = set()
        """Offsets whose records no object holds any longer, so that an operator may accept their loss."""

        self.forgotten: set[int] = set()
        """Offsets of erased records of which only an index said so, that was lost, and its loss accepted."""

    def fits(self, offset: int, what: bytes | str) -> bool:
        """Whether a committed chain may say that of the offset."""
        if what == "erased":  # a whole chunk's range with its holes, where nothing is left of it
            return offset in self.secrets or offset not in self.values
        if what == "gap":
            return offset in self.lost or offset not in self.values
        if what == "lost":
            return offset in self.damaged or offset not in self.values
        if what == "hole":
            return offset not in self.values or offset in self.forgotten
        return self.values.get(offset) == what and offset not in self.erased


class Flat(NamedTuple):
    """A part of a chain: its spans in order, its gaps, and what its chunks hold."""

    spans: tuple[tuple[int, int], ...]
    gaps: tuple[tuple[int, int, str], ...]
    records: Mapping[int, bytes | str]


class Past(NamedTuple):
    """A marker that was replaced at `end`."""

    end: float
    reach: Reach


class Monitor:
    """One partition of a simulated store."""

    def __init__(self, truth: Truth, marker_key: str, home: str, chunks: str, *, fan_out: int, promise: float) -> None:
        """`promise`: seconds for which a reader may rely on a marker that it read."""
        self.truth = truth
        self.marker_key = marker_key
        self.strict = True
        """Whether the rules themselves are checked, and not only what readers see."""
        self.marker: Json | None = None
        self._reach: Reach = {}
        """All that the marker leads to."""
        self.past: list[Past] = []
        self.digests: dict[str, str] = {}
        """What stands there now."""
        self.damaged: set[str] = set()
        """Keys of objects that were lost or damaged by nobody's fault."""
        self.counts: dict[str, int] = {}
        self._home, self._chunks = home, chunks
        self._fan_out, self._promise = fan_out, promise
        self._bodies: dict[str, bytes] = {}
        """Whatever stood in the store, by its SHA-256."""
        self._reach_of: dict[str, Reach] = {}
        self._flat_of: dict[tuple[str, int], Flat] = {}
        self._nonces: set[str] = set()
        self._tokens: set[str] = set()

    def copy(self) -> "Monitor":
        truth = Truth(self.truth.values, self.truth.secrets)
        truth.lost, truth.erased = set(self.truth.lost), set(self.truth.erased)
        truth.forgotten = set(self.truth.forgotten)
        twin = Monitor(truth, self.marker_key, self._home, self._chunks, fan_out=self._fan_out, promise=self._promise)
        twin.strict = self.strict
        twin.marker, twin.past, twin.digests = self.marker, list(self.past), dict(self.digests)
        twin._reach = self._reach
        twin._bodies, twin._reach_of, twin._flat_of = dict(self._bodies), dict(self._reach_of), dict(self._flat_of)
        twin._nonces, twin._tokens = set(self._nonces), set(self._tokens)
        return twin

    @property
    def floor(self) -> int:
        """Below it the archive is pruned."""
        return _floor(self.marker or {})

    @property
    def next_offset(self) -> int:
        return (self.marker or {}).get("next_offset") or 0

    @property
    def lists_losses(self) -> bool:
        """Whether the marker itself has gaps that records might fill."""
        return any(gap["reason"] == "retention" for gap in (self.marker or {}).get("gaps", ()))

    @property
    def tail(self) -> list[Json]:
        found: list[Json] = (self.marker or {}).get("tail", [])
        return found

    def catalogs_of(self, level: int) -> list[Json]:
        levels: list[list[Json]] = (self.marker or {}).get("catalogs", [])
        return levels[level - 1] if len(levels) >= level else []

    def level_1(self, marker: Json) -> list[Json]:
        """All references to catalogs of level 1 that a marker leads to, in order."""
        found: list[Json] = []
        for level, references in reversed([*enumerate(marker["catalogs"], 1)]):
            found += (each for reference in references for each in self._level_1_below(reference, level))
        return found

    def starts_in(self, reference: Json) -> list[int]:
        """Where the chunks and blocks of a catalog of level 1 begin."""
        entries = parsed(self._bodies[reference["sha256"]])["entries"]
        blocks = [block for entry in entries for block in parsed(self._bodies[entry["sha256"]])["chunks"]]
        return [*(entry["start_offset"] for entry in entries), *(block["first_record_offset"] for block in blocks)]

    def _level_1_below(self, reference: Json, level: int) -> list[Json]:
        if level == 1:
            return [reference]
        entries = parsed(self._bodies[reference["sha256"]])["entries"]
        return [each for entry in entries for each in self._level_1_below(entry, level - 1)]

    def secrets_left(self) -> set[int]:
        """Offsets whose records were to be erased, and still are in the chain."""
        said = self.said(self.marker) if self.marker is not None else {}
        return {offset for offset, what in said.items() if isinstance(what, bytes) and offset in self.truth.secrets}

    def garbage(self) -> list[str]:
        """What stands there and nothing is said to need: neither the chain, nor a gap, nor the next fold."""
        if self.marker is None:
            return []
        reach, end = self._reach, self._next_start()
        gaps = [gap for gap in self._all_gaps() if gap["reason"] not in SAID]
        return [key for key in self.digests if key not in reach and not self._is_needed(key, end, gaps)]

    def orphans(self) -> list[str]:
        """Chunks that stand there and are not in the chain."""
        reach = self._reach
        return [key for key in self.digests if key.endswith(".index.json") and key not in reach]

    def _is_needed(self, key: str, end: int, gaps: Sequence[Json]) -> bool:
        folder, _, name = key.removeprefix(self._home).rpartition("/")
        if folder == "_pruned":
            return int(name) == self.floor
        if "~r" in name:
            return False
        if folder == "_catalog":
            level, _, position = name[:-5].partition("~")[0].partition("-")
            return int(position) >= cover(self.marker or {}, int(level))
        position = name[:20]
        return int(position) >= end or any(gap["to"] > int(position) for gap in gaps)

    def _next_start(self) -> int:
        assert self.marker is not None
        gaps = self.marker["gaps"]
        if gaps and gaps[-1]["reason"] == "empty":
            return int(gaps[-1]["from"])
        ends = [gap["to"] for gap in gaps[-1:]] + [each["next_offset"] for each in self.tail[-1:]]
        return max([cover(self.marker, 1), *ends])

    def _all_gaps(self) -> list[Json]:
        assert self.marker is not None
        catalogs = [parsed(self._bodies[each["sha256"]]) for each in self.level_1(self.marker)]
        return [*self.marker["gaps"], *(gap for catalog in catalogs for gap in catalog.get("gaps", ()))]

    def indexes(self) -> list[tuple[Json, Mapping[int, bytes | str]]]:
        """What each index that stands there says, whether it is committed or not."""
        found = []
        for key, digest in self.digests.items():
            if not key.endswith(".index.json"):
                continue
            body = self._bodies[digest]
            data = parsed(body)["data"]
            if self.digests.get(self._chunks + data["name"]) == data["sha256"]:
                found.append((parsed(body), records_of(body, self._bodies[data["sha256"]])))
        return found

    def stored(self, key: str, body: bytes) -> None:
        """An object that is not the marker came into being."""
        digest = sha256_of(body)
        self.digests[key] = digest
        self._bodies[digest] = body

    def is_sound(self, key: str) -> bool:
        """Whether what the marker leads to stands under that key."""
        return self.digests.get(key) == self._reach.get(key)

    def damage(self, key: str, body: bytes | None, offsets: set[int]) -> None:
        """An object was lost or changed behind everybody's back; only it held the records at these offsets."""
        self.damaged.add(key)
        self.truth.damaged |= offsets
        if body is None:
            del self.digests[key]
        else:
            self.stored(key, body)

    def deleted(self, key: str, now: float) -> None:
        """An object is about to go; raises Harm where somebody relies on it."""
        if self.marker is not None and key in self.digests:
            if key in self._reach:
                raise Harm(f"{key} was deleted, and the marker in force reaches it")
            protected = takewhile(lambda past: past.end >= now - self._promise, reversed(self.past))
            if any(key in past.reach for past in protected):
                raise Harm(f"{key} was deleted, and a grace protects it")
            intent = body_of(self.marker).get("rewriting")
            if self.strict and intent and f"~r{intent['token']}-" in key:
                raise Harm(f"{key} was deleted, and an intent in force protects it")
        self.digests.pop(key, None)

    def swapped(self, body: bytes, role: str, now: float) -> None:
        """The marker was replaced by somebody with that role; raises Harm where it must not be so."""
        new, old = parsed(body), self.marker
        if role == "command":  # it claims the partition as a writer does, then rewrites it
            role = "maintainer" if old is not None and old["nonce"] == new["nonce"] else "writer"
        if old is not None:
            self.past.append(Past(now, self._reach))
        self.marker, self._reach = new, self._reach_from(new)
        self._check_owner(old or {}, new, role)
        if self.strict:
            self._check_parts(old or {}, new, role)
            self._check_sizes(old or {}, new)
        wrong = [key for key, digest in self._reach.items() if self.digests.get(key) != digest]
        missing = [key for key in wrong if key not in self.damaged]
        if missing:
            raise Harm(f"the chain names {missing[0]}, which is not there or another object")
        self._check_chain(new)

    def _reach_from(self, marker: Json) -> Reach:
        found: dict[str, str] = {}
        for level, references in enumerate(marker["catalogs"], 1):
            for reference in references:
                found[self._home + reference["name"]] = reference["sha256"]
                found |= self._below(reference["sha256"], level)
        for entry in marker["tail"]:
            found[self._chunks + entry["name"]] = entry["sha256"]
            found |= self._below(entry["sha256"], 0)
        return found

    def said(self, marker: Json) -> dict[int, bytes | str]:
        """Offset -> record, or why there is none; raises Harm unless that is one answer for each offset."""
        floor, end = _floor(marker), marker.get("next_offset") or 0
        parts = [
            self.flat(reference["sha256"], level, reference)
            for level, references in reversed([*enumerate(marker["catalogs"], 1)])
            for reference in references
        ]
        parts += [self.flat(entry["sha256"], 0, entry) for entry in marker["tail"]]
        gaps = [*(gap for part in parts for gap in part.gaps), *(_gap(gap) for gap in marker["gaps"])]
        said = self._said_by_gaps(gaps, floor)
        expected = floor
        for start, stop, records in ((*span, part.records) for part in parts for span in part.spans):
            if start < expected:
                raise Harm(f"two entries over offset {start}, or one below the floor {floor}")
            expected = stop
            for offset in range(start, stop):
                what = records.get(offset, "hole")
                if (said.get(offset) == "lost") != (what == "lost") or (offset in said and what != "lost"):
                    raise Harm(f"an entry over a gap, or a loss in index or catalog alone, at offset {offset}")
                said[offset] = what
        for offset in range(max(said, default=floor - 1) + 1, end):
            said[offset] = "hole"  # progress behind a gap, where no entry can be raised
        if len(said) != end - floor or (said and (min(said), max(said)) != (floor, end - 1)):
            raise Harm(f"nothing explains the offsets {sorted({*range(floor, end)} - set(said))} of [{floor}, {end})")
        if any(offset not in said for part in parts for offset in part.records):
            raise Harm("a record outside of its entry")
        return said

    def _said_by_gaps(self, gaps: Sequence[tuple[int, int, str]], floor: int) -> dict[int, bytes | str]:
        said: dict[int, bytes | str] = {}
        for start, stop, what in gaps:
            for offset in range(max(start, floor), stop):
                if offset in said and self.strict:
                    raise Harm(f"two gaps hold offset {offset}")
                said[offset] = what
        return said

    def flat(self, digest: str, level: int, span: Json) -> Flat:
        """What lies below a reference or an entry."""
        at = (digest, span["next_offset"])
        if at not in self._flat_of:
            self._flat_of[at] = self._flattened(digest, level, span)
        return self._flat_of[at]

    def _flattened(self, digest: str, level: int, span: Json) -> Flat:
        content = parsed(self._bodies[digest])
        if level == 0:
            data = self._bodies[content["data"]["sha256"]]
            return Flat(((span["start_offset"], span["next_offset"]),), (), records_of(self._bodies[digest], data))
        if content["level"] != level or len(content["entries"]) > self._fan_out:
            raise Harm(f"catalog {span['name']} has level {content['level']} and {len(content['entries'])} entries")
        parts = [self.flat(entry["sha256"], level - 1, entry) for entry in content["entries"]]
        own = tuple(_gap(gap) for gap in content.get("gaps", ()))
        spans = tuple(each for part in parts for each in part.spans)
        gaps = tuple(each for part in parts for each in part.gaps) + own
        both = (*spans, *(gap[:2] for gap in gaps))
        if max(end for _, end in both) > span["next_offset"] or min(start for start, _ in both) < span["start_offset"]:
            raise Harm(f"catalog {span['name']} reaches beyond its reference")
        records = {offset: what for part in parts for offset, what in part.records.items()}
        return Flat(spans, gaps, records)

    def _below(self, digest: str, level: int) -> Reach:
        """What a catalog, or an index (level 0), leads to. By content, so that it never changes."""
        if digest not in self._bodies:
            return {}
        found = self._reach_of.get(digest)
        if found is None:
            content = parsed(self._bodies[digest])
            reach: dict[str, str] = {}
            if level == 0:
                reach[self._chunks + content["data"]["name"]] = content["data"]["sha256"]
            for entry in content.get("entries", ()):
                reach[(self._home if level > 1 else self._chunks) + entry["name"]] = entry["sha256"]
                reach |= self._below(entry["sha256"], level - 1)
            found = self._reach_of[digest] = reach
        return found

    def _check_owner(self, old: Json, new: Json, role: str) -> None:
        was, now = old.get("epoch", 0), new["epoch"]
        if now != was and (now != was + 1 or role != "writer"):
            raise Harm(f"epoch {now} follows {was}")
        if now == was and old["writer"] != new["writer"]:
            raise Harm("a fenced writer changed the marker")
        if (new.get("next_offset") or 0) < (old.get("next_offset") or 0) or _floor(new) < _floor(old):
            raise Harm("next_offset or the floor fell")
        if now != was:
            self.truth.lost.update(range(old.get("next_offset") or 0, new.get("next_offset") or 0))
            self._count("claim")

    def _check_parts(self, old: Json, new: Json, role: str) -> None:
        if role == "writer":
            changed = [name for name in BODY_FIELDS if body_of(old).get(name) != body_of(new).get(name)]
            if new["nonce"] in self._nonces:
                raise Harm("a claim or an append was applied twice")
            self._nonces.add(new["nonce"])
        else:
            changed = [name for name in HEAD_FIELDS if old.get(name) != new.get(name)]
            self._check_maintainer(old, new)
        if changed:
            raise Harm(f"a {role} changed {', '.join(changed)}")
        before, after = body_of(old).get("revision", 0), body_of(new).get("revision", 0)
        if after != before + 1 and (before or after):
            raise Harm(f"revision {after} follows {before}")

    def _check_maintainer(self, old: Json, new: Json) -> None:
        known = {each["token"] for each in body_of(old).get("retired", ())}
        tokens = [each["token"] for each in body_of(new)["retired"] if each["token"] not in known]
        if old.get("catalogs") == new["catalogs"] and not tokens:
            return
        self._count("commit")
        intent = body_of(old).get("rewriting")
        if not intent or tokens != [intent["token"]] or body_of(new)["rewriting"]:
            raise Harm("a maintainer committed what is not in force")
        if intent["token"] in self._tokens:
            raise Harm("a rewrite was committed twice")
        self._tokens.add(intent["token"])
        self._count(f"commit {intent['kind']}")
        if intent["kind"] == "accept-loss":
            self.truth.forgotten |= self.truth.erased & self.truth.damaged

    def _check_sizes(self, old: Json, new: Json) -> None:
        lists = [*new["catalogs"], new["tail"]]
        if any(len(each) > self._fan_out for each in lists) or len(body_of(new).get("retired", ())) > MAX_RETIRED:
            raise Harm("the marker grows")
        for level in range(1, 6):
            if cover(new, level) < cover(old, level):
                raise Harm(f"the frontier of level {level} fell")

    def _check_chain(self, marker: Json) -> None:
        start = marker.get("start_offset") or 0
        if any(offset < start and offset not in self.truth.lost for offset in self.truth.values):
            raise Harm(f"start_offset {start} lies above a record of the log")
        for offset, what in self.said(marker).items():
            if not self.truth.fits(offset, what):
                back = "an erased record came back" if offset in self.truth.erased else "not what the log held"
                raise Harm(f"offset {offset}: {what!r}, {back}")
            if what == "erased" and offset in self.truth.values:
                self.truth.erased.add(offset)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _gap(gap: Json) -> tuple[int, int, str]:
    """A gap's offsets, and what a look-up there says."""
    return gap["from"], gap["to"], SAID.get(gap["reason"], "gap")


def body_of(marker: Json) -> Json:
    """The maintainers' part of a marker, but for the catalogs."""
    found: Json = marker.get("maintenance") or {}
    return found


def cover(marker: Json, level: int) -> int:
    """Where the next fold into that level begins."""
    for references in marker.get("catalogs", ())[level - 1 :]:
        if references:
            return int(references[-1]["next_offset"])
    return _floor(marker)


def _floor(marker: Json) -> int:
    return max(body_of(marker).get("pruned_before") or 0, marker.get("start_offset") or 0)


@lru_cache(maxsize=20_000)
def parsed(body: bytes) -> Json:
    """Nobody changes it: simulations meet the same objects again and again."""
    found: Json = json.loads(body)
    return found


@lru_cache(maxsize=20_000)
def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@lru_cache(maxsize=20_000)
def records_of(index_body: bytes, data: bytes) -> Mapping[int, bytes | str]:
    """Offset -> record, "erased" or "lost", as an index and its data say; raises Harm where they do not fit."""
    index = parsed(index_body)
    if sha256_of(data) != index["data"]["sha256"] or len(data) != index["data"]["bytes"]:
        raise Harm(f"the data {index['data']['name']} is not the indexed one")
    found: dict[int, bytes | str] = {}
    for gap in index.get("erased") or ():
        found |= dict.fromkeys(range(gap["from"], gap["to"]), "erased")
    for gap in index["gaps"]:
        found |= dict.fromkeys(range(gap["from"], gap["to"]), "lost") if gap["reason"] == "lost" else {}
    position = 0
    for block in index["chunks"]:
        position = block["byte_offset"] + block["byte_length"]
        raw = zlib.decompress(data[block["byte_offset"] : position], 31)
        lines = [json.loads(line) for line in raw.splitlines()]
        if len(lines) != block["num_records"] or lines[0]["offset"] != block["first_record_offset"]:
            raise Harm(f"a block of {index['data']['name']} is not what its index says")
        for line in lines:
            if line["offset"] in found:
                raise Harm(f"offset {line['offset']} twice in {index['data']['name']}")
            found[line["offset"]] = _value(line)
    if position != len(data):
        raise Harm(f"{index['data']['name']} has bytes behind its blocks")
    return found


def _value(line: Json) -> bytes:
    if "value_base64" in line:
        return base64.b64decode(line["value_base64"])
    return str(line.get("value")).encode()


def recovered(bodies: Sequence[tuple[Json, Mapping[int, bytes | str]]], floor: int) -> dict[int, bytes | str]:
    """What a listing of all indexes tells without a marker: offset by offset, erased wins over the record."""
    found: dict[int, bytes | str] = {}
    for _, records in bodies:
        for offset, what in records.items():
            if offset >= floor and (what == "erased" or offset not in found):
                found[offset] = what
    return found
