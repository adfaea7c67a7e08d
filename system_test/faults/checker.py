"""The verdict over a round, from raw objects, the producers' ledgers, and the topics as a foreign client reads them.

    python -m system_test.faults.checker HOME ARCHIVE BOOTSTRAP_SERVER

HOME holds `truth.json`, the ledgers, what archivers reported to hold, what a reader found, and the store's faults.
ARCHIVE is the folder that the S3 server keeps the archive in. It prints one JSON object: figures, and under
`violations` every promise that is broken.
"""

import gzip
import hashlib
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from system_test.checker import (
    CheckedPartition,
    CheckFailedError,
    Fetch,
    Gap,
    check_partition,
    decompressed,
    partition_home,
    records_of_content,
)
from system_test.faults.asked import Asked
from system_test.faults.cluster import GROUPS, TRANSACTIONAL
from system_test.faults.fingerprint import fingerprint, key_hash
from system_test.faults.positions import Holding, Outages, Process, Where, holdings
from system_test.support.topics import Record, read, watermarks

STORE_FAULTS = "store-faults.jsonl"
ANSWERS = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as its producer sent it."""

    where: Where
    transaction: str | None
    mark: str
    key: str | None
    timestamp: int


@dataclass
class Ledgers:
    """What all producers wrote down; sequences are named `ledger:number`, transactions likewise."""

    sent: dict[str, Sent] = field(default_factory=dict)
    offsets: dict[Where, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Acknowledged offset -> sequence."""
    offset_of: dict[str, int] = field(default_factory=dict)
    unplaced: dict[Where, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Sequences acknowledged without an offset: they were sent again, and the broker had them already."""
    endings: dict[str, str] = field(default_factory=dict)

    def outcome(self, sequence: str) -> str:
        """`committed`, `aborted` or `unknown`; records outside transactions are committed."""
        transaction = self.sent[sequence].transaction
        return "committed" if transaction is None else self.endings.get(transaction, "unknown")


def load(home: Path) -> Ledgers:
    """All ledgers of a round."""
    ledgers = Ledgers()
    for path in sorted(home.glob("*.ledger")):
        for line in path.read_text().splitlines():
            _take(ledgers, path.stem, json.loads(line))
    return ledgers


def _take(ledgers: Ledgers, name: str, entry: list[Any]) -> None:
    match entry:
        case ["s", topic_id, partition, number, transaction, mark, key, timestamp]:
            whole = f"{name}:{transaction}" if transaction else None
            ledgers.sent[f"{name}:{number}"] = Sent((topic_id, partition), whole, mark, key, timestamp)
        case ["a", topic_id, partition, number, None]:
            ledgers.unplaced[topic_id, partition].append(f"{name}:{number}")
        case ["a", topic_id, partition, number, offset]:
            ledgers.offsets[topic_id, partition][offset] = f"{name}:{number}"
            ledgers.offset_of[f"{name}:{number}"] = offset
        case ["e", transaction, outcome, *_]:
            ledgers.endings[f"{name}:{transaction}"] = outcome


@dataclass
class Verdict:
    """Figures and broken promises."""

    violations: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lost_in_hand_of: Counter[str] = field(default_factory=Counter)
    """Records that retention or their topic's end took, by what became of the writers that had them."""

    def broken(self, what: str) -> None:
        self.violations.append(what)


@dataclass(frozen=True)
class Life:
    """One incarnation of a topic, as the campaign knows it."""

    topic: str
    topic_id: str
    partitions: int
    compacted: bool
    deleted: bool
    truncated_to: dict[int, set[int]]

    @classmethod
    def of(cls, topic: str, facts: dict[str, Any]) -> Self:
        truncated_to: dict[int, set[int]] = defaultdict(set)
        for partition, low in facts["truncations"]:
            truncated_to[partition].add(low)
        return cls(
            topic, facts["topic_id"], facts["partitions"], facts["compacted"], facts["deleted"], dict(truncated_to)
        )


@dataclass(frozen=True)
class Seen:
    """What the watcher saw in a partition's folder while it was written and maintained."""

    offsets: frozenset[int] = frozenset()
    """Of records that a marker led to at some time."""
    gaps: tuple[Gap, ...] = ()


@dataclass
class Part:
    """A partition of one incarnation, as it was and as it is in the end."""

    life: Life
    home: str
    partition: int
    seen: Seen
    checked: CheckedPartition

    @property
    def where(self) -> Where:
        """Topic id and partition."""
        return (self.life.topic_id, self.partition)

    @property
    def name(self) -> str:
        """As the programs have it."""
        return self.home.removeprefix("topic=").replace("/partition=", ":").removesuffix("/")

    @cached_property
    def gaps(self) -> list[Gap]:
        """Where records were lost before they could be archived; what lies below the floor is in no marker any more."""
        below = [gap for gap in self.seen.gaps if gap.start < self.checked.floor]
        return [gap for gap in (*self.checked.gaps, *below) if gap.reason not in ("empty", "erased", "lost")]

    @cached_property
    def lost(self) -> list[Gap]:
        """Gaps where objects were lost, and their records given up."""
        return [gap for gap in self.checked.gaps if gap.reason == "lost"]

    def in_gap(self, offset: int) -> bool:
        """Whether it lies in one of them."""
        return any(gap.start <= offset < gap.end for gap in self.gaps)


class Checker:
    """Judges an archive against ledgers, truth and topics."""

    def __init__(
        self,
        archive: Path,
        bootstrap: str,
        ledgers: Ledgers,
        held: Mapping[Where, Sequence[Holding]],
        asked: Asked | None = None,
        seen: Mapping[str, Seen] | None = None,
    ) -> None:
        self._archive = archive
        self._held = held
        self._bootstrap = bootstrap
        self._ledgers = ledgers
        self._asked = asked or Asked()
        self._seen = seen or {}
        self._parts: dict[str, Part] = {}
        self._read: dict[str, dict[int, Record]] = {}
        self.verdict = Verdict()

    def check_topic(self, topic: str, lives: list[Life]) -> None:
        folders = dict(self._folders(topic))
        unknown = folders.keys() - {life.topic_id for life in lives}
        if unknown:
            self.verdict.broken(f"{topic}: the archive holds incarnations that never were: {unknown}")
        for life in lives:
            folder = folders.get(life.topic_id)
            self.verdict.figures["incarnations"] += 1
            for partition in range(life.partitions):
                self._check_partition(life, folder, partition)

    def check_hashes(self, hashes: dict[str, str]) -> None:
        """No committed object changed since it was first seen."""
        for key, sha256 in hashes.items():
            path = self._archive / key
            if not path.exists():
                self.verdict.broken(f"{key} was committed and is gone")
            elif hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                self.verdict.broken(f"{key} changed after it was committed")

    def _folders(self, topic: str) -> Iterator[tuple[str, str]]:
        """Topic id -> folder, `orders~2` as it stands in keys."""
        for path in self._archive.glob(f"topic={topic}*/_topic.json"):
            info = json.loads(path.read_bytes())
            if info["topic"] == topic:
                yield info["topic_id"], path.parent.name.removeprefix("topic=")

    def _check_partition(self, life: Life, folder: str | None, partition: int) -> None:
        name = f"{folder or life.topic}:{partition}"
        where = (life.topic_id, partition)
        marker = self._archive / f"topic={folder}" / f"partition={partition:05d}" / "last_chunk_index.json"
        if folder is None or not marker.exists():
            self._check_nothing(life, name, where)
            return
        home = partition_home(folder, partition)
        try:
            checked = check_partition(_fetch(self._archive, life.topic, folder), life.topic, partition)
        except (CheckFailedError, OSError, ValueError, KeyError) as error:
            self.verdict.broken(f"{name}: {error!r}")
            return
        part = self._parts[home] = Part(life, home, partition, self._seen.get(home, Seen()), checked)
        figures = self.verdict.figures
        figures["archived_records"] += len(checked.records)
        figures["chunks"] += len(checked.entries)
        figures["catalogs"] += sum(len(level) for level in checked.marker["catalogs"])
        archived = {record.offset: record for record in checked.records}
        if checked.marker["topic_id"] != life.topic_id:
            self.verdict.broken(f"{name}: the marker's topic id is {checked.marker['topic_id']}, not {life.topic_id}")
        self._check_gaps(part)
        sequences = self._check_records(part, archived)
        self._check_complete(part, archived)
        self._check_unplaced(part, sequences)
        if life.deleted:
            if checked.marker["successor"] is None:
                self.verdict.broken(f"{name}: deleted and created again, but its marker names no successor")
        else:
            self._check_topic_itself(part, archived)

    def _check_nothing(self, life: Life, name: str, where: Where) -> None:
        acknowledged = self._ledgers.offsets.get(where, {})
        if not life.deleted and acknowledged:
            self.verdict.broken(f"{name}: nothing is archived of {len(acknowledged)} acknowledged records")
        self.verdict.figures["records_of_deleted_topics"] += len(acknowledged)
        self._excuse(name, where, [offset for offset, sequence in acknowledged.items() if self._is_due(sequence)])

    def _is_due(self, sequence: str) -> bool:
        return self._ledgers.outcome(sequence) == "committed"

    def _excuse(self, name: str, where: Where, lost: Sequence[int]) -> None:
        """Records that retention or their topic's end took: only if none was in the hand of a writer that owes it."""
        held = self._held.get(where, ())
        owed = []
        for offset in lost:
            holders = [each for each in held if each.start <= offset < each.fetched]
            owed += [(offset, each) for each in holders if offset < each.owed][:1]
            fates = sorted({each.fate.value for each in holders}) or ["nobody"]
            self.verdict.lost_in_hand_of[" and ".join(fates)] += 1
        if owed:
            writers = sorted({str(each) for _, each in owed})
            self.verdict.broken(
                f"{name}: {len(owed)} records are lost that were in the hand of writers that were neither killed nor "
                f"fenced, first {owed[0][0]} last {owed[-1][0]}: {'; '.join(writers[:5])}"
            )

    def _check_gaps(self, part: Part) -> None:
        """Every recorded gap ends where a truncation put the low watermark.

        It need not be there any more: a broker notes low watermarks once a minute, and forgets newer ones when killed.
        """
        lows = part.life.truncated_to.get(part.partition, set())
        for gap in part.gaps:
            self.verdict.figures["gaps"] += 1
            self.verdict.figures["gap_offsets"] += gap.end - gap.start
            if gap.reason != "retention" or gap.end not in lows:
                self.verdict.broken(f"{part.name}: {gap} matches none of the truncations to {sorted(lows)}")
        chunks = [range(*each.chunk) for each in self._asked.losses if each.home == part.home]
        for gap in part.lost:
            self.verdict.figures["gaps_of_lost_objects"] += 1
            if not all(any(at in chunk for chunk in chunks) for at in range(gap.start, gap.end)):
                self.verdict.broken(f"{part.name}: {gap} lies outside of the chunks that were lost, {chunks}")
        start = part.checked.marker["start_offset"]
        if start not in (None, 0) and start not in lows and not part.life.compacted:
            self.verdict.broken(f"{part.name}: the archive starts at {start}, the log did not")

    def _check_records(self, part: Part, archived: dict[int, Record]) -> set[str]:
        """Every archived record was sent to this partition as it stands here, stands here once, and was not erased.

        Gives the sequences of all of them.
        """
        topic, home = part.life.topic, part.home
        seen: set[str] = set()
        for offset, record in archived.items():
            sequence = _sequence(record)
            sent = self._ledgers.sent.get(sequence)
            problem = None
            if sent is None or sent.where != part.where:
                problem = f"is {sequence}, which was never sent there"
            elif sent.mark != fingerprint(record.key, record.value, record.headers, record.timestamp):
                problem = f"is not {sequence} as it was sent"
            elif sequence in seen:
                problem = f"is {sequence} once more"
            elif self._ledgers.offset_of.get(sequence, offset) != offset:
                problem = f"is {sequence}, which was acknowledged at {self._ledgers.offset_of[sequence]}"
            elif self._ledgers.outcome(sequence) == "aborted":
                problem = f"is {sequence} of an aborted transaction"
            elif self._asked.must_be_erased(topic, home, sent.key, offset, math.inf):
                problem = f"is {sequence}, which was erased"
            if problem:
                self.verdict.broken(f"{part.name}: the archived record at {offset} {problem}")
            seen.add(sequence)
        return seen

    def _check_complete(self, part: Part, archived: dict[int, Record]) -> None:
        """Every acknowledged record is archived, unless the truth explains why not."""
        life, checked, figures = part.life, part.checked, self.verdict.figures
        acknowledged = self._ledgers.offsets.get(part.where, {})
        unplaced = self._ledgers.unplaced.get(part.where, ())
        newest_of_key: dict[str | None, float] = {self._ledgers.sent[each].key: math.inf for each in unplaced}
        for offset, sequence in acknowledged.items():
            key = self._ledgers.sent[sequence].key
            newest_of_key[key] = max(offset, newest_of_key.get(key, -1))
        start = checked.marker["start_offset"] or 0
        end = checked.marker["next_offset"] or 0
        lost: list[int] = []
        excused: list[int] = []
        for offset, sequence in acknowledged.items():
            outcome, sent = self._ledgers.outcome(sequence), self._ledgers.sent[sequence]
            figures[f"acknowledged_{outcome}"] += 1
            if offset in archived or outcome != "committed":
                continue
            if taken := self._taken_out(part, offset, sent.key, sent.timestamp):
                figures[taken] += 1
            elif self._is_given_up(part, offset):
                figures["given_up"] += 1
            elif offset in part.seen.offsets:
                lost.append(offset)
            elif part.in_gap(offset) or offset < start:
                figures["lost_to_truncation"] += 1
                excused.append(offset)
            elif life.deleted and offset >= end:
                figures["lost_to_deletion"] += 1
                excused.append(offset)
            elif life.compacted and newest_of_key[sent.key] > offset:
                figures["compacted_before_archived"] += 1
            else:
                lost.append(offset)
        self._excuse(part.name, part.where, sorted(excused))
        if lost:
            lost.sort()
            self.verdict.broken(
                f"{part.name}: {len(lost)} acknowledged records are not archived, first {lost[:5]} last {lost[-1]}, "
                f"of [{start}, {end}) above {checked.floor}"
            )

    def _check_unplaced(self, part: Part, archived: set[str]) -> None:
        """Every record acknowledged without an offset is archived, where nothing took records of its partition."""
        due = {each for each in self._ledgers.unplaced.get(part.where, ()) if self._is_due(each)}
        missing = due - archived
        self.verdict.figures["acknowledged_without_offset"] += len(due)
        checked, life = part.checked, part.life
        is_whole = not (part.gaps or part.lost or checked.marker["start_offset"] or checked.floor or checked.erased)
        if missing and is_whole and not (life.deleted or life.compacted):
            self.verdict.broken(f"{part.name}: acknowledged without an offset and not archived: {sorted(missing)}")

    def _taken_out(self, part: Part, offset: int, key: str | None, timestamp: int) -> str | None:
        """By what maintainers were asked for, a record that was archived is missing; None where that explains nothing.

        The archive's own word, that it was erased or pruned, is needed and does not suffice.
        """
        topic = part.life.topic
        is_called_erased = any(offset in each for each in part.checked.erased)
        if is_called_erased and self._asked.may_be_erased(topic, part.home, key, offset):
            return "erased"
        is_below = offset < part.checked.floor and offset in part.seen.offsets
        return "pruned" if is_below and self._asked.may_be_pruned(topic, timestamp) else None

    def _is_given_up(self, part: Part, offset: int) -> bool:
        """Whether the archive calls a record lost, and its block was, and Kafka does not have all of that block.

        In the end, that is: a log only loses records.
        """
        is_said = offset < part.checked.floor or any(gap.start <= offset < gap.end for gap in part.lost)
        lost = [(each, block) for each in self._asked.losses if each.home == part.home for block in each.blocks]
        return is_said and any(
            start <= offset < end and not (loss.comes_back and self._has_all(part, start, end))
            for loss, (start, end) in lost
        )

    def _has_all(self, part: Part, start: int, end: int) -> bool:
        """Whether the topic still has all records at these offsets that were archived once."""
        if part.life.deleted:
            return False
        live = self._live(part)
        return all(offset in live for offset in part.seen.offsets if start <= offset < end)

    def _live(self, part: Part) -> dict[int, Record]:
        """The records that a foreign client reads from the topic."""
        if part.home not in self._read:
            records = read(self._bootstrap, part.life.topic, part.partition)
            self._read[part.home] = {record.offset: record for record in records}
        return self._read[part.home]

    def _check_topic_itself(self, part: Part, archived: dict[int, Record]) -> None:
        """What a foreign client reads from the topic is archived, and what is archived and not read is explained."""
        name, life = part.name, part.life
        low, _ = watermarks(self._bootstrap, life.topic, part.partition)
        live = self._live(part)
        self.verdict.figures["compared_with_topic"] += len(live)
        start, end = part.checked.marker["start_offset"] or 0, part.checked.marker["next_offset"] or 0
        for offset, record in live.items():
            if offset in archived:
                if archived[offset] != record:
                    self.verdict.broken(
                        f"{name}: {offset} is {record!r:.300} in the topic, {archived[offset]!r:.300} archived"
                    )
            elif not (
                # A killed broker may forget the truncation with which the archive began: `_check_gaps` judges that.
                (offset < start and not life.compacted)
                or part.in_gap(offset)
                or self._taken_out(part, offset, key_hash(record.key), record.timestamp)
                or self._is_given_up(part, offset)
            ):
                self.verdict.broken(f"{name}: the topic's record at {offset} is not archived (up to {end})")
        newest: dict[bytes | None, int] = {}
        for offset, record in live.items():
            newest[record.key] = max(offset, newest.get(record.key, -1))
        for offset, record in archived.items():
            superseded = life.compacted and newest.get(record.key, -1) > offset
            if offset >= low and offset not in live and not superseded:
                self.verdict.broken(f"{name}: the archived record at {offset} is not in the topic")

    def check_answers(self, answers: Iterable[Sequence[Any]]) -> None:
        """What a reader found while maintainers were at work: what was sent, or why it is not there."""
        for at, home, offset, kind, words in answers:
            self.verdict.figures[f"read_{kind}"] += 1
            part = self._parts.get(home)
            if kind == "Damage" and not self._asked.is_excused_damage(home, words, at):
                self.verdict.broken(f"{home}: the reader met damage at {offset}: {words}")
            elif part is not None and kind not in ("Unavailable", "Damage"):
                problem = self._wrong(part, at, offset, kind, words)
                if problem:
                    self.verdict.broken(f"{part.name}: the reader was given {kind} at {offset}, {problem}")

    def _wrong(self, part: Part, at: float, offset: int, kind: str, mark: str) -> str | None:
        """Why an answer cannot be right; None where it can, or where nobody knows what was sent there."""
        topic, home = part.life.topic, part.home
        sequence = self._ledgers.offsets.get(part.where, {}).get(offset)
        if sequence is None:
            return None
        sent = self._ledgers.sent[sequence]
        match kind:
            case "Found":
                if mark != sent.mark:
                    return f"which is not {sequence} as it was sent"
                is_wrong = self._asked.must_be_erased(topic, home, sent.key, offset, at)
            case "Erased":
                is_wrong = not self._asked.may_be_erased(topic, home, sent.key, offset)
            case "Pruned":
                is_wrong = not self._asked.may_be_pruned(topic, sent.timestamp)
            case _:
                is_wrong = offset in part.seen.offsets and not (kind == "Gap" and self._is_given_up(part, offset))
        return f"where {sequence} was archived and what was asked for until {at} explains nothing" if is_wrong else None

    def check_objects(self) -> None:
        """Nothing in the archive, led to or not, holds what was erased completely."""
        for home, part in self._parts.items():
            gone = {
                sequence
                for offset, sequence in self._ledgers.offsets.get(part.where, {}).items()
                if self._asked.is_gone_for_good(part.life.topic, home, self._ledgers.sent[sequence].key, offset)
            }
            self.verdict.figures["gone_for_good"] += len(gone)
            for path in sorted((self._archive / home).glob("*")) if gone else ():
                if path.suffix in (".gz", ".zst") and (left := gone & set(_sequences(path))):
                    self.verdict.broken(f"{path.name} of {part.name} holds records that are erased: {sorted(left)}")

    def check_groups(self, topic: str, groups: frozenset[str]) -> None:
        """No table lacks a group after one had all: a broker that is down or just starting answers with fewer."""
        had_all = False
        for path in sorted(self._archive.glob(f"topic={topic}/_groups/*.json")):
            table = json.loads(gzip.decompress(path.read_bytes()))
            if table.get("groups_asked") is False:
                continue
            self.verdict.figures["group_tables"] += 1
            missing = groups - {group["group_id"] for group in table["groups"]}
            if missing and had_all:
                self.verdict.broken(f"{path.name} of {topic} lacks groups that nobody deleted: {sorted(missing)}")
            had_all = had_all or not missing
        if not had_all:
            self.verdict.broken(f"no table of {topic} has all groups")


def _sequences(path: Path) -> Iterator[str]:
    """Those of all records in a chunk's data."""
    content = decompressed(path.read_bytes(), "gzip" if path.suffix == ".gz" else "zstd")
    return map(_sequence, records_of_content(content, "arrow" if ".arrows." in path.name else "json"))


def _sequence(record: Record) -> str:
    """`ledger:number`, as the record's value begins."""
    assert record.value is not None
    return b":".join(record.value.split(b":", 2)[:2]).decode()


def _fetch(archive: Path, topic: str, folder: str) -> Fetch:
    """The objects of one incarnation under the names of the first."""

    def fetch(key: str) -> bytes:
        first = f"topic={topic}/"
        return (archive / (f"topic={folder}/{key.removeprefix(first)}" if key.startswith(first) else key)).read_bytes()

    return fetch


def _epochs(archive: Path) -> dict[Where, int]:
    markers = [json.loads(path.read_bytes()) for path in archive.glob("topic=*/partition=*/last_chunk_index.json")]
    return {(marker["topic_id"], marker["partition"]): marker["epoch"] for marker in markers}


def main() -> None:
    home, archive, bootstrap = sys.argv[1:]
    truth = json.loads((Path(home) / "truth.json").read_text())
    outages = Outages.load(Path(home) / STORE_FAULTS, truth["store_down"])
    processes = {name: Process(*facts) for name, facts in truth["processes"].items()}
    held = holdings(Path(home) / "logs", processes, outages, _epochs(Path(archive)))
    gaps = {home: tuple(Gap(*gap) for gap in found) for home, found in truth["gaps"].items()}
    seen = {home: Seen(frozenset(offsets), gaps.get(home, ())) for home, offsets in truth["offsets"].items()}
    checker = Checker(Path(archive), bootstrap, load(Path(home)), held, Asked.of(truth["asked"]), seen)
    for topic, lives in truth["topics"].items():
        checker.check_topic(topic, [Life.of(topic, facts) for facts in lives])
    checker.check_hashes(truth["hashes"])
    checker.check_objects()
    checker.check_groups(TRANSACTIONAL, GROUPS)
    lines = (Path(home) / ANSWERS).read_text().splitlines(keepends=True)
    checker.check_answers(json.loads(line) for line in lines if line.endswith("\n"))
    verdict = checker.verdict
    figures = {**dict(sorted(verdict.figures.items())), "lost_in_hand_of": verdict.lost_in_hand_of}
    print(json.dumps({**figures, "violations": verdict.violations[:200]}))


if __name__ == "__main__":
    main()
