"""Which incarnation of a topic there was at a time, and what restores and their jobs are called. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from blockgz.errors import NotInArchive, UsageError
from blockgz.topic_patterns import is_pattern, matching
from blockgz.units import time_text
from index_format.inventory import Inventory
from index_format.keys import TopicFolder, parse_topic_folder
from replayer.replay.job import NAME_DIGITS, check_job_name
from replayer.restore.document import TopicLeftOut

MOST_NAME = 100
HASH_DIGITS = 16


class ChosenIncarnation(NamedTuple):
    """The incarnation that existed at a time; `note` says what is not certain about it."""

    folder: TopicFolder
    note: str | None = None
    in_doubt: bool = False
    """It was first seen later: it existed only if it holds records from before."""


def incarnation_at(
    topic: str, held: Collection[TopicFolder], inventory: Inventory | None, at_ms: int
) -> ChosenIncarnation | TopicLeftOut:
    """The incarnation of a topic at a time, or why there was none; `held` are the folders that the archive has."""
    listed = [each for each in inventory.incarnations if each.topic == topic] if inventory else []
    if not listed:
        newest = max(each for each in held if each.topic == topic)
        return ChosenIncarnation(newest, f"{newest}: the inventory does not tell when it existed: the newest is taken")
    began = [each for each in listed if each.seen_from <= at_ms]
    if not began:
        # Nothing was there before the first one that anybody knows of: it may be older than the archive.
        first = listed[0]
        seen = f"{first.folder} was first seen at {time_text(first.seen_from)}, after the time"
        return ChosenIncarnation(first.folder, seen, in_doubt=True)
    newest_then = began[-1]
    if newest_then.seen_until is not None and newest_then.seen_until <= at_ms:
        return TopicLeftOut(topic, f"it was gone at the time: deleted before {time_text(newest_then.seen_until)}")
    return ChosenIncarnation(newest_then.folder)


def same_topic(folder: TopicFolder, inventory: Inventory | None) -> tuple[TopicFolder, ...]:
    """The folder and those right before it that hold the same topic, whose log was truncated; oldest first."""
    known = inventory.incarnations if inventory else ()
    listed = {each.folder: each for each in known if each.topic == folder.topic}
    found = [folder]
    while (this := listed.get(found[0])) is not None and this.topic_id is not None:
        before = listed.get(folder._replace(incarnation=found[0].incarnation - 1))
        if before is None or before.topic_id != this.topic_id:
            break
        found.insert(0, before.folder)
    return tuple(found)


def wanted_topics(wanted: Sequence[str], known: Iterable[str]) -> list[str]:
    """The topics that names, globs and `~regex`es mean, each once, all without any; raises NotInArchive, UsageError."""
    known = sorted(set(known))
    found = list[str]()
    for each in wanted:
        if not each.startswith("~") and "~" in each:
            raise UsageError(
                f"{each!r} names an incarnation",
                why="--at says which one is restored",
                remedy=f"write {parse_topic_folder(each).topic}",
            )
        if not is_pattern(each) and each not in known:
            raise NotInArchive(
                f"topic {each} is not in the archive",
                why="neither a folder nor the inventory names it",
                remedy="see replayer ls",
            )
        found += matching(each, known) if is_pattern(each) else [each]
    return list(dict.fromkeys(found)) if wanted else [each for each in known if not each.startswith("__")]


def restore_name(archive_id: str, at_ms: int, topics: Collection[tuple[str, str]], cluster: str) -> str:
    """What a restore is called without a name: any other archive, time, cluster, source or target changes it."""
    parts = [archive_id, at_ms, sorted(topics), cluster]
    return f"restore-{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:NAME_DIGITS]}"


def topic_job(restore: str, source: str) -> str:
    """The name of the replay job of one topic; raises UsageError for a restore that cannot be called that."""
    check_job_name(restore)
    topic, incarnation = parse_topic_folder(source)
    name = f"{restore}.{topic}-{incarnation}"
    if len(name) <= MOST_NAME:
        return name
    digest = hashlib.sha256(f"{topic}~{incarnation}".encode()).hexdigest()[:HASH_DIGITS]
    name = f"{restore}.{digest}"
    check_job_name(name)
    return name
