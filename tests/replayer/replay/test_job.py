"""Jobs: names, positions and what is kept of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockgz.archive.positions import OffsetRange
from blockgz.errors import UsageError
from replayer.errors import ReplayRefused
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
from replayer.replay.pipeline import Pipeline

HASH = "0123456789abcdef"
JOB = Job("nightly", "copy", HASH)
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
        return first_positions(job, {0: OffsetRange(0, 9)}, {0: history}, Pipeline())

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
    first = first_positions(JOB, {0: OffsetRange(0, 9)}, {0: "chunks"}, Pipeline())
    begun = {0: first[0].advanced(2, {0: 4})}
    now = first_positions(JOB, {0: OffsetRange(0, 9)}, {0: "merged chunks"}, Pipeline())
    refuse_other_job(begun, rewritten_since(now, begun, {0}))
    assert rewritten_since(now, {}, {0}) == now
    with pytest.raises(ReplayRefused, match="archive is not the one"):
        refuse_other_job(begun, rewritten_since(now, begun, {1}))
