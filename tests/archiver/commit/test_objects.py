"""What is asked to store a write-once object; markers between commits."""

import hashlib
import random
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from archiver.commit import operations as op
from archiver.commit.objects import Held, RestingMarker, store_once
from blockgz.errors import StoreUnavailable
from blockgz.store.writer import PART_BYTES, FileBody, ObjectHead
from index_format.marker import ChunkEntry, Marker

SEED = 5


def full_marker(rng: random.Random) -> Marker:
    """With the longest tail there is."""
    tail = tuple(
        ChunkEntry(
            name=f"2026/11/21/{start:020}-{1_790_000_000_000 + start * 150}.index.json",
            start_offset=start,
            next_offset=start + 600,
            first_offset=start,
            last_offset=start + 599,
            num_records=600,
            bytes=rng.randrange(10_000, 30_000),
            raw_bytes=rng.randrange(300_000, 400_000),
            min_timestamp=1_790_000_000_000 + start * 150,
            max_timestamp=1_790_000_000_000 + start * 150 + 89_999,
            sha256=hashlib.sha256(rng.randbytes(8)).hexdigest(),
        )
        for start in range(10**9, 10**9 + 64 * 600, 600)
    )
    return Marker(
        archive_id="archive",
        topic="orders",
        topic_id=None,
        partition=3,
        group_id="group",
        epoch=7,
        writer="writer",
        nonce="nonce",
        start_offset=tail[0].start_offset,
        next_offset=tail[-1].next_offset,
        tail_hash="0" * 64,
        last_chunk_index=tail[-1].name,
        tail=tail,
    )


def test_it_is_the_same_marker() -> None:
    held = Held(full_marker(random.Random(SEED)), '"etag"')
    resting = RestingMarker.of(held)
    assert resting.unpack() == held
    assert (resting.epoch, resting.next_offset, resting.num_gaps) == (7, held.marker.next_offset, 0)
    assert resting.newest_timestamp == held.marker.tail[-1].max_timestamp


def test_a_thousand_partitions_with_full_tails_take_a_few_megabytes() -> None:
    rng = random.Random(SEED)
    tracemalloc.start()
    try:
        resting = [RestingMarker.of(Held(full_marker(rng), '"etag"')) for _ in range(20)]
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Other threads of this process may log meanwhile.
    ours = [tracemalloc.Filter(True, file) for file in ("*/archiver/*", "*/index_format/*")]
    held = sum(trace.size for trace in snapshot.filter_traces(ours).traces)
    assert len(resting[0].packed) < held / len(resting)
    assert held / len(resting) < 8 * 1024, "decoded, one takes five times as much"


def asked(protocol: op.Protocol[object], *answers: object) -> list[type]:
    """The operations of a protocol to which the store gives these answers; an error is raised in it."""
    kinds = []
    step = partial(next, protocol)
    with suppress(StopIteration):
        for answer in answers:
            kinds.append(type(step()))
            step = partial(protocol.throw if isinstance(answer, Exception) else protocol.send, answer)
        kinds.append(type(step()))
    return kinds


class TestStoringOnce:
    LOST = StoreUnavailable("no answer")

    @pytest.mark.parametrize(
        ("answers", "kinds"),
        [
            ([True], [op.PutIfAbsent]),
            ([False, ObjectHead(1, "mine")], [op.PutIfAbsent, op.Head]),
            ([LOST, None, ObjectHead(1, "mine")], [op.PutIfAbsent, op.Wait, op.Head]),
            ([LOST, None, None, True], [op.PutIfAbsent, op.Wait, op.Head, op.PutIfAbsent]),
            (
                [False, None, False, None, ObjectHead(1, "mine")],
                [op.PutIfAbsent, op.Head, op.PutIfAbsent, op.Wait, op.Head],
            ),
            ([False, ObjectHead(1, "other"), "t", True], [op.PutIfAbsent, op.Head, op.NewToken, op.PutIfAbsent]),
        ],
    )
    def test_a_body_of_one_put_is_sent_at_once(self, answers: list[object], kinds: list[type]) -> None:
        assert asked(self.storing(PART_BYTES), "mine", *answers) == [op.NewToken, *kinds]

    @pytest.mark.parametrize(
        ("answers", "kinds"),
        [
            ([None, True], [op.Head, op.PutIfAbsent]),
            ([None, LOST, None, ObjectHead(1, "mine")], [op.Head, op.PutIfAbsent, op.Wait, op.Head]),
            ([ObjectHead(1, "other"), "t", None, True], [op.Head, op.NewToken, op.Head, op.PutIfAbsent]),
        ],
    )
    def test_a_larger_one_only_where_its_key_is_free(self, answers: list[object], kinds: list[type]) -> None:
        assert asked(self.storing(PART_BYTES + 1), "mine", *answers) == [op.NewToken, *kinds]

    @staticmethod
    def storing(size: int) -> op.Protocol[object]:
        return store_once([(lambda conflict: f"key{conflict or ''}", FileBody(Path("body"), size, ""))], 1)
