"""Consumer groups continue in a copy: positions translated, applied, read on by real consumers, and set back."""

import json
from pathlib import Path

from system_test.support.archiving import Site
from system_test.support.consumer_groups import commit, committed, consuming, read_on
from system_test.support.topics import NewRecord, Transactions, create_topic, delete_records, read

PARTITIONS = 3
GZIP = ("-X", "compression.type=gzip")
"""kafka-python reads no lz4 here."""


def unread(site: Site, topic: str, partition: int, offset: int) -> list[bytes | None]:
    return [record.value for record in read(site.bootstrap, topic, partition) if record.offset >= offset]


def fill(site: Site, topic: str) -> None:
    """Two partitions of transactions, every third aborted, below which records were deleted."""
    create_topic(site.bootstrap, topic, PARTITIONS)
    with Transactions(site.bootstrap, f"{topic}-writer") as writer:
        for number in range(30):
            records = [
                NewRecord(f"{number}.{each}".encode(), key=b"k%d" % (each % 5), partition=(number + each) % 2)
                for each in range(10)
            ]
            if number % 3:
                writer.commit(topic, records)
            else:
                writer.abort(topic, records)
    delete_records(site.bootstrap, topic, 7, partition=1)


def positions_file(path: Path, topic: str, positions: dict[str, dict[int, int]]) -> Path:
    lines = [
        f"{group},{topic},{partition},{at}" for group, found in positions.items() for partition, at in found.items()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_groups_read_on_in_the_copy_exactly_where_they_were(site: Site, topic_name: str, tmp_path: Path) -> None:
    topic, copy, job = topic_name, f"{topic_name}-copy", ("--job", topic_name, "--jobs", str(tmp_path / "jobs"))
    fill(site, topic)
    site.once(topic)
    ends = {partition: site.marker(topic, partition)["next_offset"] for partition in range(2)}
    replay = ("replay", topic, "--to-topic", copy, "--create-topic", "--transactional", "--yes", *job, *GZIP)
    site.replayer(*replay, "--json", *site.kafka)
    # In front, on each offset of an aborted transaction and of a marker in the first fifty, behind, and above the end.
    positions = {f"{topic}-{at}": {0: at, 1: ends[1] - at} for at in range(0, 50, 3)}
    positions |= {f"{topic}-end": dict(ends), f"{topic}-above": {0: ends[0] + 10}}
    file = positions_file(tmp_path / "positions.csv", topic, positions)
    asked = (*job, "--positions", file, *site.kafka)
    printed = site.replayer("groups", "plan", *asked, "--format", "csv").stdout.splitlines()
    assert len(printed) == sum(map(len, positions.values()))
    told = site.replayer_json("groups", "apply", *asked, "--yes")
    assert told["applied"]
    assert all(group["exact"] for group in told["groups"])
    for group, found in positions.items():
        for partition, at in found.items():
            assert read_on(site.bootstrap, group, copy, partition) == unread(site, topic, partition, at), (
                group,
                partition,
            )


def test_a_group_with_consumers_is_refused_and_all_can_be_set_back(site: Site, topic_name: str, tmp_path: Path) -> None:
    topic, copy, job = topic_name, f"{topic_name}-copy", ("--job", topic_name, "--jobs", str(tmp_path / "jobs"))
    fill(site, topic)
    site.once(topic)
    site.replayer("replay", topic, "--to-topic", copy, "--create-topic", "--yes", "--json", *job, *GZIP, *site.kafka)
    old, new = f"{topic}-old", f"{topic}-new"
    commit(site.bootstrap, old, copy, {0: 5, 1: 5, 2: 0})
    file = positions_file(tmp_path / "positions.csv", topic, {old: {0: 40}, new: {0: 40, 1: 50}})
    asked = (*job, "--positions", file, *site.kafka)
    with consuming(site.bootstrap, old) as consumer:
        consumer.subscribe([copy])
        consumer.poll(timeout_ms=10_000)
        refused = site.replayer("groups", "apply", *asked, "--yes", check=2)
        assert f"consumers are at work in group {old}" in refused.stderr
    assert committed(site.bootstrap, new, copy, range(2)) == {0: None, 1: None}
    elsewhere = positions_file(tmp_path / "elsewhere.csv", topic, {old: {9: 40}})
    nothing = site.replayer("groups", "apply", *job, "--positions", elsewhere, *site.kafka, "--yes", check=4)
    assert f"{old} stood in other partitions of {topic}" in nothing.stderr
    site.replayer("groups", "apply", *asked, "--yes")
    assert committed(site.bootstrap, old, copy, [0]) != {0: 5}
    assert None not in committed(site.bootstrap, new, copy, range(2)).values()
    site.replayer("groups", "rollback", *job, "--yes", *site.kafka)
    assert committed(site.bootstrap, old, copy, [0]) == {0: 5}
    assert committed(site.bootstrap, new, copy, range(2)) == {0: None, 1: None}
    again = site.replayer("groups", "rollback", *job, "--yes", *site.kafka, check=2)
    assert "has no group positions to set back" in again.stderr


def test_folded_partitions_are_refused_where_no_position_is_exact(site: Site, topic_name: str, tmp_path: Path) -> None:
    """The positions are those that the archiver stored."""
    topic, copy, job = topic_name, f"{topic_name}-copy", ("--job", topic_name, "--jobs", str(tmp_path / "jobs"))
    group = f"{topic}-group"
    fill(site, topic)
    commit(site.bootstrap, group, topic, {0: 60, 1: 90})
    site.once(topic, "--groups", group)
    shown = site.replayer_json("groups", "show", topic)
    assert [(each["group"], each["partition"], each["offset"], each["metadata"]) for each in shown["positions"]] == [
        (group, 0, 60, "m"),
        (group, 1, 90, "m"),
    ]
    replay = ("replay", topic, "--to-topic", copy, "--create-topic", "--partitions", "1", "--yes", *job, *GZIP)
    site.replayer(*replay, "--json", *site.kafka)
    asked = (*job, *site.kafka)
    refused = site.replayer("groups", "apply", *asked, "--yes", check=2)
    assert "1 of 1 groups have no exact position" in refused.stderr
    told = json.loads(site.replayer("groups", "apply", *asked, "--yes", "--json", "--approximate").stdout)
    (found,) = told["groups"]
    wanted = {value for partition, at in ((0, 60), (1, 90)) for value in unread(site, topic, partition, at)}
    got = read_on(site.bootstrap, group, copy, 0)
    assert wanted <= set(got)
    assert len(got) - len(wanted) == sum(each["read_again"] for each in found["partitions"])
