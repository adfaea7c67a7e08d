import re
from typing import Any

import pytest

from blockgz.errors import NoSuchTopic
from blockgz.kafka import LogBounds
from index_format.chunk_index import Gap
from index_format.errors import BlockgzError
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import EffectiveConfig, TopicFacts, parse_config
from replayer.replay.pipeline import Router, Routing
from replayer.replay.plan import (
    RecordPlace,
    ReplayPlan,
    SourcePartition,
    TimeBounds,
    make_plan,
)

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
            topic,
            "copy",
            sources or (source(),),
            target,
            NOW,
            router or Routing(),
            watermarks=watermarks or {},
            **more,
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


def test_the_source_topic_is_refused_unless_it_is_meant() -> None:
    refused(ReplayRefused, "that was archived.*--into-source", target=facts(), topic="copy")
    assert plan(facts(), topic="copy", into_source=True).records == 100


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
