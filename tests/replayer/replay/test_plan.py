"""Before records are replayed: requests, jobs, plans, checks and the target."""

import asyncio
import re
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from archiver.cli import main as archiver
from blockgz.archive.archive import parse_topic
from blockgz.archive.positions import Budget, OffsetRange
from blockgz.archive.selection import SKIPS, DamagePolicies, Reading, Selection, SelectionRequest
from blockgz.errors import NoSuchTopic, UsageError
from blockgz.kafka import LogBounds, connection
from blockgz.record_filter import HeaderIs, KeyIn, Not, Pattern, RecordFilter, ValueMatches
from index_format.errors import BlockgzError, CorruptBlock
from index_format.objects import Gap
from replayer.cli import main as replayer
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import ConfigChange, EffectiveConfig, TopicFacts, parse_config
from replayer.replay.job import (
    MAX_METADATA_BYTES,
    Job,
    LanePosition,
    SourceProgress,
    decode_position,
    first_positions,
    make_job,
    refuse_long_metadata,
    refuse_other_job,
    rewritten_since,
)
from replayer.replay.pipeline import AddHeader, LeftOut, Pipeline, Router, Routing, parse_routing, parse_timestamps
from replayer.replay.plan import RecordPlace, ReplayPlan, SourcePartition, TimeBounds, describe_source, make_plan
from replayer.replay.request import ReplayRequest, asked_of, kept_request, parse_topic_config
from replayer.replay.target_topic import (
    RetentionFile,
    make_stages,
    plan_hold,
    plan_undo,
    raised_limit,
    still_means,
    while_held,
)
from replayer.transforms.chain import build_chain
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import seeded_random
from tests.support.selections import selections_of


@pytest.mark.slow
def test_records_and_times_are_those_of_the_selection(tmp_path: Path) -> None:
    chance = seeded_random()
    for number in range(12):
        writer = ArchiveWriter(tmp_path).partition(
            f"chosen-{number}", 0, record_format=chance.choice(["json", "arrow"])
        )
        skew = chance.choice([0, 3, 40])
        for first in range(0, 120, 40):
            times = [1000 + each + chance.randint(-skew, skew) for each in range(first, first + 40)]
            times = [-1 if skew and chance.random() < 0.1 else time for time in times]
            writer.commit(records(range(first, first + 40), timestamps=times), block_bytes=chance.choice([300, 900]))
        for _ in range(8):
            start, end = sorted(chance.choices(range(121), k=2))
            since, until = sorted(chance.choices(range(960, 1160), k=2))
            asked = RecordFilter(chance.choice([None, since]), chance.choice([None, until]))
            (selection,) = selections_of(tmp_path, f"chosen-{number}", start, end)
            source = asyncio.run(describe_source(selection, Reading(asked)))
            kept = [
                record.timestamp
                for record in writer.records[start:end]
                if (asked.since is None or record.timestamp >= asked.since)
                and (asked.until is None or record.timestamp < asked.until)
            ]
            assert (source.records, source.is_exact) == (len(kept), True)
            assert source.timestamps == (TimeBounds(min(kept), max(kept)) if kept else None)
            keyed = RecordFilter(since, until, (KeyIn([b"1"]),))
            assert not asyncio.run(describe_source(selection, Reading(keyed))).is_exact


def test_blocks_beyond_the_budget_count_whole(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("budget", 0)
    index = writer.commit(records(range(100), timestamps=[1000, 2000] * 50), block_bytes=900)
    (selection,) = selections_of(tmp_path, "budget", 0, 99)
    later = Reading(RecordFilter(since=1500))
    source = asyncio.run(describe_source(selection, later, Budget()))
    assert (source.records, source.timestamps, source.is_exact) == (49, TimeBounds(2000, 2000), True)
    one = Budget(index.blocks[0].byte_length)
    source = asyncio.run(describe_source(selection, later, one))
    first, last = index.blocks[0].num_records // 2, (index.blocks[-1].num_records - 1) // 2
    between = sum(block.num_records for block in index.blocks[1:-1])
    assert (source.records, source.timestamps, source.is_exact) == (
        first + between + last,
        TimeBounds(1500, 2000),
        False,
    )


def test_a_damaged_block_at_the_edge_is_skipped_or_ends_the_plan(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("edge", 0)
    index = writer.commit(records(range(60)), block_bytes=500)
    data = tmp_path / (writer.keys.chunks + index.data.name)
    stored = bytearray(data.read_bytes())
    stored[index.blocks[1].byte_offset + 20] ^= 1
    data.write_bytes(stored)
    (selection,) = selections_of(tmp_path, "edge", index.blocks[1].first_record_offset + 1)
    with pytest.raises(CorruptBlock):
        asyncio.run(describe_source(selection))
    skipping = DamagePolicies(SKIPS)
    source = asyncio.run(describe_source(selection, Reading(on_damage=skipping.of)))
    assert source.records == 60 - index.blocks[2].first_record_offset
    assert [lost[:2] for _, lost in skipping.skipped] == [
        (selection.offsets.start, index.blocks[2].first_record_offset)
    ]


HASH = "0123456789abcdef"
JOB = Job("nightly", "copy", HASH)
CHOSEN: Any = [Selection(SimpleNamespace(partition=0), OffsetRange(0, 9))]  # type: ignore[arg-type]
ends = st.lists(st.integers(0, 2**62), min_size=3, max_size=3).map(sorted)
positions = st.builds(
    LanePosition,
    st.just(HASH),
    st.just(HASH),
    st.integers(0, 2**62),
    st.dictionaries(st.integers(0, 9999), ends.map(lambda three: SourceProgress(*three)), max_size=4),
)


def position(written: int = 3, done: int = 5, **changes: str) -> LanePosition:
    fields = {"selection": HASH, "history": HASH, **changes}
    return LanePosition(written=written, sources={0: SourceProgress(0, done, 9)}, **fields)


@given(positions)
def test_a_position_comes_back_as_it_was(made: LanePosition) -> None:
    assert decode_position(made.written, made.encoded()) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "somebody else's",
        position().encoded().replace('"v":1', '"v":2'),
        position().encoded().replace("[0,5,9]", "[0,10,9]"),
        position().encoded().replace("[0,5,9]", "[0,5]"),
        position().encoded().replace("[0,5,9]", "[-1,5,9]"),
        position().encoded().replace(HASH, "x", 1),
    ],
)
def test_what_another_program_wrote_is_refused(text: str) -> None:
    with pytest.raises(ReplayRefused, match="cannot be read"):
        decode_position(1, text)


def test_metadata_that_kafka_would_not_store_is_refused() -> None:
    def lane(sources: int) -> dict[int, LanePosition]:
        progress = {number: SourceProgress(0, 0, 10**10) for number in range(sources)}
        return {7: LanePosition(HASH, HASH, 0, progress)}

    refuse_long_metadata(lane(90))
    with pytest.raises(ReplayRefused, match="partition 7 has too many") as caught:
        refuse_long_metadata(lane(200))
    assert str(MAX_METADATA_BYTES) in caught.value.why


def test_every_part_of_a_request_makes_another_job() -> None:
    class Other(Pipeline):
        fingerprint = "other"

    def name(
        archive: str = "a", folder: str = "orders", target: str = "copy", asked: str = "0", **rest: Pipeline
    ) -> str:
        return make_job(None, archive, folder, target, [asked, "latest"], rest.get("pipeline", Pipeline())).name

    names = [
        name(),
        name(archive="b"),
        name(folder="orders~2"),
        name(target="other"),
        name(asked="1"),
        make_job(None, "a", "orders", "copy", ["0", "latest"], Pipeline(router=Other())).name,
    ]
    assert len(set(names)) == len(names)
    assert name() == name()


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 101, "a b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="is not a job name"):
        Job(name, "copy", HASH)


def test_the_positions_of_another_job_are_refused() -> None:
    def at_start(job: Job = JOB, history: str = "chunks") -> dict[int, LanePosition]:
        return first_positions(job, CHOSEN, {0: history}, Pipeline())

    first = at_start()
    begun = {0: first[0].advanced(2, {0: 4})}
    refuse_other_job(begun, first)
    refuse_other_job({}, first)
    with pytest.raises(ReplayRefused, match="not the replay that the job started with"):
        refuse_other_job({1: begun[0]}, first)
    with pytest.raises(ReplayRefused, match="not the replay that the job started with"):
        refuse_other_job(begun, at_start(job=Job("nightly", "copy", "f" * 16)))
    with pytest.raises(ReplayRefused, match="archive is not the one"):
        refuse_other_job(begun, at_start(history="others"))


def test_where_chunks_were_rewritten_the_recorded_history_holds() -> None:
    """Positions are source offsets, which a rewrite leaves alone."""
    first = first_positions(JOB, CHOSEN, {0: "chunks"}, Pipeline())
    begun = {0: first[0].advanced(2, {0: 4})}
    now = first_positions(JOB, CHOSEN, {0: "merged chunks"}, Pipeline())
    refuse_other_job(begun, rewritten_since(now, begun, {0}))
    assert rewritten_since(now, {}, {0}) == now
    with pytest.raises(ReplayRefused, match="archive is not the one"):
        refuse_other_job(begun, rewritten_since(now, begun, {1}))


CHAIN = {"transforms": "b,a", "transforms.b.type": "HoistField$Value", "transforms.b.field": "x"}
CHAIN |= {"transforms.a.type": "InsertHeader", "transforms.a.header": "h", "transforms.a.value.literal": "v"}
CONDITIONS = (
    KeyIn((b"\xff", None)),
    ValueMatches(Pattern("a+", ignore_case=True)),
    Not(HeaderIs("x")),
    HeaderIs("y", b"\x00"),
)


def request(**fields: Any) -> ReplayRequest:
    return ReplayRequest(parse_topic("orders"), "copy", **fields)


REQUESTS = [
    request(),
    request(routing=parse_routing("by-key"), timestamps=parse_timestamps("shift=-90m"), tombstones="drop"),
    request(routing=parse_routing("0:2,1-3:0"), timestamps=parse_timestamps("now"), provenance=True),
    request(
        routing=parse_routing("3"),
        strip_headers=("a",),
        add_headers=(AddHeader("k", b"\xfe"),),
        chain=build_chain(CHAIN),
        on_transform_error="skip",
    ),
]


def pipeline_of(asked: ReplayRequest) -> Pipeline:
    return Pipeline(tuple(make_stages(asked, LeftOut())), asked.routing.for_target("copy", 4))


@pytest.mark.parametrize("asked", REQUESTS)
def test_what_is_kept_makes_the_same_pipeline_and_filter(asked: ReplayRequest) -> None:
    wanted = RecordFilter(1, 2, CONDITIONS)
    asked = replace(asked, selection=SelectionRequest(filter=wanted))
    kept = msgspec.json.decode(msgspec.json.encode(asked_of(asked, pipeline_of(asked), 4)))
    again = kept_request(kept, "j", "orders~1", "copy")
    assert pipeline_of(again).fingerprint == pipeline_of(asked).fingerprint == kept["pipeline"]
    assert again.selection.filter == wanted


@pytest.mark.parametrize("kept", [{}, {"pipeline": "keep"}])
def test_a_folder_that_does_not_tell_is_refused(kept: dict[str, str]) -> None:
    with pytest.raises(ReplayRefused, match="what job j did to records is not known"):
        kept_request(kept, "j", "orders", "copy")


NOW = 1_763_000_000_000
DAY = 86_400_000
KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def source(partition: int = 0, **changes: Any) -> SourcePartition:
    fields = {
        "partition": partition,
        "start": 0,
        "end": 100,
        "records": 100,
        "bytes": 5000,
        "timestamps": TimeBounds(NOW - 30 * DAY, NOW - 10 * DAY),
        **changes,
    }
    return SourcePartition(**fields)


def facts(partitions: int = 4, **config: str) -> TopicFacts:
    properties = KEEPS_ALL | {name.replace("_", "."): value for name, value in config.items()}
    return TopicFacts("copy", partitions, None, parse_config(properties))


def plan(
    target: TopicFacts | None,
    *sources: SourcePartition,
    watermarks: dict[int, LogBounds] | None = None,
    router: Router | None = None,
    topic: str = "orders",
    **more: Any,
) -> ReplayPlan:
    return make_plan(
        ReplayPlan(
            topic, "copy", sources or (source(),), target, NOW, router or Routing(), watermarks=watermarks or {}, **more
        )
    )


def refused(error: type[BlockgzError], expected: str, **arguments: Any) -> None:
    target = arguments.pop("target")
    sources = arguments.pop("sources", ())
    with pytest.raises(error) as caught:
        plan(target, *sources, **arguments)
    told = f"{caught.value.what}\n{caught.value.why}\n{caught.value.remedy}"
    assert re.search(expected, told, re.DOTALL), told
    assert caught.value.exit_code == 2
    assert caught.value.why
    assert caught.value.remedy


def test_a_plan_sums_its_sources() -> None:
    made = plan(facts(), source(0), source(2))
    assert (made.records, made.bytes, made.target_partitions, made.warnings) == (200, 10_000, 4, ())


def test_a_missing_target_is_refused_with_the_command_that_makes_it() -> None:
    refused(NoSuchTopic, r"no topic 'copy'.*--create --topic copy --partitions 8", target=None, sources=[source(7)])


def test_too_few_partitions_are_refused() -> None:
    refused(
        ReplayRefused, "too few partitions.*it has 2, and partition 3", target=facts(2), sources=[source(0), source(3)]
    )


def test_a_target_with_as_many_partitions_as_are_used_is_enough() -> None:
    assert plan(facts(2), source(1)).target_partitions == 2


def test_retention_that_would_eat_the_records_is_refused() -> None:
    refused(
        ReplayRefused,
        r"delete the records.*retention.ms is 604800000 \(7 days\).*retention.ms=-1",
        target=facts(retention_ms=str(7 * DAY)),
    )
    assert plan(facts(retention_ms=str(31 * DAY)))
    assert plan(facts(retention_ms=str(7 * DAY), cleanup_policy="compact")).warnings


def test_records_without_timestamps_do_not_count_as_old() -> None:
    young = source(timestamps=TimeBounds(-1, NOW - DAY))
    none = source(timestamps=TimeBounds(-1, -1))
    empty = source(records=0, bytes=0, timestamps=None)
    assert plan(facts(retention_ms=str(7 * DAY)), young, none, empty).records == 200


def test_log_append_time_is_refused() -> None:
    config = EffectiveConfig(frozenset({"delete"}), None, None, "LogAppendTime", None, None, None)
    refused(ReplayRefused, "replace the records' timestamps.*LogAppendTime", target=TopicFacts("copy", 4, None, config))


@pytest.mark.parametrize(
    ("name", "times", "expected"),
    [
        ("message_timestamp_before_max_ms", TimeBounds(NOW - 2 * DAY, NOW), "no records as old as these"),
        ("message_timestamp_after_max_ms", TimeBounds(NOW, NOW + 2 * DAY), "as far in the future"),
    ],
)
def test_bounds_on_timestamps_are_refused(name: str, times: TimeBounds, expected: str) -> None:
    refused(ReplayRefused, expected, target=facts(**{name: str(DAY)}), sources=[source(timestamps=times)])
    assert plan(facts(**{name: str(3 * DAY)}), source(timestamps=times))


def test_a_compacted_target_refuses_records_without_a_key() -> None:
    compacted = facts(cleanup_policy="compact,delete")
    refused(ReplayRefused, "without a key.*partition 2, offset 17", target=compacted, without_key=RecordPlace(2, 17))
    assert "copy is compacted" in plan(compacted).warnings[0]


def test_a_record_that_is_too_large_even_compressed_is_refused() -> None:
    found = (RecordPlace(0, 5), 2_000_000)
    small = facts(max_message_bytes="1048588")
    refused(ReplayRefused, "as large.*1048588.*2000000 bytes.*max.message.bytes=4000000", target=small, too_large=found)
    assert plan(facts(max_message_bytes="2000000"), too_large=found)


def test_what_the_broker_does_not_report_is_a_warning() -> None:
    (warning,) = plan(TopicFacts("copy", 4, None, None)).warnings
    assert "does not report the configuration" in warning


def test_warnings_name_what_the_copy_will_not_have() -> None:
    odd = source(1, gaps=(Gap(3, 9, "retention"),), timestamps=TimeBounds(0, 5), record_formats=frozenset({"text"}))
    warnings = plan(TopicFacts("copy", 4, None, None), odd, append=True, watermarks={1: LogBounds(5, 7)}).warnings
    told = "\n".join(warnings)
    assert "copy:1 is not empty, it holds [5..7)" in told
    assert "recorded gap [3..9) (retention)" in told
    assert "timestamp 0" in told
    assert "archived as text" in told


def test_records_of_others_in_the_target_are_refused() -> None:
    held = {0: LogBounds(5, 7), 1: LogBounds(0, 9)}
    refused(
        ReplayRefused,
        r"'copy' is not empty.*copy:0 holds offsets \[5\.\.7\).*--append",
        target=facts(),
        watermarks=held,
    )
    assert plan(facts(), watermarks={0: LogBounds(7, 7), 3: LogBounds(0, 9)}), "partition 3 gets nothing"
    assert plan(facts(), watermarks=held, append=True)


def test_records_without_keys_are_not_spread_by_key() -> None:
    refused(
        ReplayRefused,
        "cannot be spread by key.*partition 2 was archived as text.*order",
        target=facts(),
        sources=[source(1), source(2, record_formats=frozenset({"text"}))],
        router=Routing("by-key", 4),
    )
    assert plan(facts(), source(1), router=Routing("by-key", 4)).router == Routing("by-key", 4)


def test_a_number_beyond_the_target_is_refused() -> None:
    refused(
        ReplayRefused,
        "it has 4, and partition 5 of orders goes to partition 5.*--partitions 4",
        target=facts(4),
        sources=[source(0), source(5)],
        router=Routing("number", 6),
    )
    assert plan(facts(4), source(5), router=Routing("number", 4))


def test_a_topic_that_is_made_is_told_how_to_be_made_otherwise() -> None:
    refused(
        ReplayRefused,
        "delete the records.*add --topic-config retention.ms=-1.*--retention hold",
        target=facts(retention_ms=str(7 * DAY)),
        creates=True,
    )


def test_limits_of_a_configuration() -> None:
    config = parse_config(
        {"cleanup.policy": "compact, delete", "retention.ms": "5", "message.timestamp.before.max.ms": str(2**63 - 1)}
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert (config.retention_ms, config.retention_bytes, config.timestamp_before_max_ms) == (5, None, None)


def test_settings_as_text() -> None:
    assert parse_topic_config("cleanup.policy=compact,delete") == ("cleanup.policy", "compact,delete")
    for text in ("retention.ms", "=1"):
        with pytest.raises(UsageError):
            parse_topic_config(text)


@pytest.mark.parametrize(
    ("before", "meanwhile", "change"),
    [
        ({"retention.ms": "1000"}, {}, ConfigChange({"retention.ms": "1000"}, ("retention.bytes",))),
        ({}, {}, ConfigChange({}, ("retention.ms", "retention.bytes"))),
        ({"retention.ms": "-1", "retention.bytes": "5"}, {}, ConfigChange({"retention.bytes": "5"})),
        ({"retention.ms": "1000"}, {"retention.ms": "7"}, ConfigChange({}, ("retention.bytes",), ("retention.ms",))),
        ({"retention.ms": "1000"}, {"retention.ms": "1000"}, ConfigChange({}, ("retention.bytes",))),
    ],
    ids=["set", "from-the-cluster", "was-unlimited", "changed-since", "set-back-already"],
)
def test_a_held_retention_is_set_back_to_what_it_was(
    before: dict[str, str], meanwhile: dict[str, str], change: ConfigChange
) -> None:
    hold = plan_hold("copy", "id", before)
    during = {**before, **hold.held, **meanwhile}
    undo = plan_undo(hold, during)
    assert undo == change
    after = {name: value for name, value in {**during, **undo.values}.items() if name not in undo.removed}
    assert after == {**before, **{name: value for name, value in meanwhile.items() if name in undo.kept}}


def test_a_new_topic_takes_records_of_any_block() -> None:
    assert raised_limit({"max.message.bytes": "1000000"}, 600_000) == {"max.message.bytes": "1201024"}
    assert raised_limit({"max.message.bytes": "1000000"}, 499_000) == {}
    assert raised_limit({}, 600_000) == {}, "the cluster's own limit is not known"
    assert raised_limit({"max.message.bytes": "5"}, 2**40) == {"max.message.bytes": str(2**31 - 1)}


def test_setting_back_twice_changes_nothing() -> None:
    hold = plan_hold("copy", "id", {"retention.ms": "1000"})
    assert not plan_undo(hold, {"retention.ms": "1000"})


def test_a_hold_on_a_topic_that_is_gone_means_nothing() -> None:
    hold = plan_hold("copy", "old", {})
    assert still_means(hold, "copy", "old")
    assert still_means(hold, "copy", None)
    assert not still_means(hold, "copy", "new")


def test_nothing_is_deleted_while_it_is_held() -> None:
    facts = TopicFacts("copy", 1, None, parse_config({"retention.ms": "5", "retention.bytes": "6"}))
    config = while_held(facts).config
    assert config is not None
    assert (config.retention_ms, config.retention_bytes) == (None, None)
    assert while_held(TopicFacts("copy", 1, None, None)).config is None


def test_the_file(tmp_path: Path) -> None:
    file = RetentionFile(tmp_path / "new" / "folder", "cluster", "copy")
    assert file.read() is None
    hold = plan_hold("copy", "id", {"retention.ms": "1000"})
    file.write(hold)
    assert file.read() == hold
    assert RetentionFile(tmp_path / "new" / "folder", "other", "copy").read() is None
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    file.path.write_text("{")
    with pytest.raises(ReplayRefused, match="cannot store"):
        file.read()
    file.remove()
    file.remove()
    assert file.read() is None


DEADLINE_SECONDS = 20.0
ANSWER_SECONDS = 0.3


class TokenEndpoint:
    """Listens, and answers nobody."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._path = f"/{uuid.uuid4()}"
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "a",
            "sasl.oauthbearer.client.secret": "b",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{listener.getsockname()[1]}{self._path}",
        }
        self.options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def was_asked(self, within: float) -> bool:
        """Whether a request for a token came; clients of other tests may still look for whoever had the port."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                connection = self._listener.accept()[0]
                with connection:
                    connection.settimeout(left)
                    if self._path.encode() in connection.recv(1024):
                        return True
            except OSError:
                continue
        return False


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield TokenEndpoint(listener)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit(records(range(40)))
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("program", "arguments", "told"),
    [
        (replayer, ["replay", "orders", "--to-topic", "orders", "--dry-run"], "is the topic that was archived"),
        (replayer, ["replay", "payments", "--to-topic", "copy", "--dry-run"], "is not in the archive"),
        (replayer, ["replay", "orders", "--to-topic", "ü", "--create-topic", "--dry-run"], "is not a topic name"),
        (archiver, ["repair", "diverged", "payments", "--dry-run"], "payments"),
    ],
)
def test_a_plan_that_the_archive_refuses_asks_for_no_token(
    endpoint: TokenEndpoint, root: Path, program: click.Command, arguments: list[str], told: str
) -> None:
    result = CliRunner().invoke(program, [*arguments, "-a", str(root), "-b", "127.0.0.1:1", *endpoint.options])
    assert result.exit_code, result.stdout
    assert told in result.stderr
    assert not endpoint.was_asked(ANSWER_SECONDS)


def test_a_plan_that_needs_the_cluster_does(
    endpoint: TokenEndpoint, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BROKER_DEADLINE_SECONDS", ANSWER_SECONDS)
    arguments = ["replay", "orders", "--to-topic", "copy", "--dry-run", "-a", str(root), "-b", "127.0.0.1:1"]
    result = CliRunner().invoke(replayer, [*arguments, *endpoint.options])
    assert result.exit_code, result.stdout
    assert endpoint.was_asked(DEADLINE_SECONDS)
