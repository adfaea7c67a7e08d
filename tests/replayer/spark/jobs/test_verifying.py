"""A verification by many tasks reports what that of one process does; Spark itself runs in the system tests."""

import asyncio
import json
import os
import pickle
import random
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StringType, StructField, StructType

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.address import LocalAddress
from index_format.marker import encode as encode_marker
from replayer.cli import main
from replayer.cli.options.options import _schema_text
from replayer.spark.export import ValueOptions, check_parts, json_schema, row_decoder
from replayer.spark.verify import TASK_CHUNKS, VerificationPlan, _grouped, check_slice, planned, reported
from replayer.verify.chunk_checks import EVERY_CHUNK, ChunkChoice, ChunkFindings
from replayer.verify.earlier import compare_with, parse_report
from replayer.verify.report import ArchiveReport, Depth, StoredReport, verification_document
from replayer.verify.verifying import survey, verify_partition
from tests.archiver.spark.test_sink import Sink, at
from tests.support.archives import ArchiveWriter, records
from tests.support.corruption import Case, cases, damaged, sample_archive
from tests.support.encryption import key_line
from tests.support.protobuf_values import ANSWERS
from tests.support.sampling import mostly_long
from tests.support.schema_registry import registry_of, schema_registry


def stored(root: Path, objects: Mapping[str, bytes]) -> ArchivePlace:
    for key, body in objects.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(body)
    return ArchivePlace(LocalAddress(str(root)))


async def alone(
    archive: ArchiveReader,
    depth: Depth,
    choice: ChunkChoice,
    expected: Sequence[str] = (),
    earlier: StoredReport | None = None,
) -> ArchiveReport:
    identity, places, report = await survey(archive, [], expected)
    for place in places:
        found = await verify_partition(archive, *place, depth, lambda *_: None, choice=choice, identity=identity)
        report.partitions.append(found)
    if earlier is not None:
        report.since_report = await compare_with(archive, identity.archive_id, earlier, [])
    return report


def spread(plan: VerificationPlan, place: ArchivePlace, depth: Depth) -> ArchiveReport:
    """Every slice by a task of its own, which gets and gives no more than bytes."""
    found = {}
    for each in plan.slices:
        check, task = pickle.loads(pickle.dumps((partial(check_slice, place, depth), each)))
        home, number, findings = check(task)
        found[home, number] = msgspec.json.decode(findings, type=ChunkFindings)
    return reported(plan, found)


def both(place: ArchivePlace, depth: Depth, choice: ChunkChoice, **how: Any) -> tuple[Any, Any, int]:
    async def read() -> tuple[VerificationPlan, ArchiveReport]:
        async with opened(place) as archive:
            demands = {name: how[name] for name in ("expected", "earlier") if name in how}
            return await planned(place, [], choice, **how), await alone(archive, depth, choice, **demands)

    plan, theirs = asyncio.run(read())
    ours = spread(plan, place, depth)
    documents = [json.loads(json.dumps(verification_document(each, "here", depth))) for each in (ours, theirs)]
    return (*documents, len(plan.slices))


def without_digests(document: Any) -> Any:
    return {**document, "partitions": [{**each, "digests": None} for each in document["partitions"]]}


@pytest.mark.slow
@pytest.mark.parametrize("layout", mostly_long(["topic", "seed"]))
def test_whole_and_damaged_archives(tmp_path: Path, layout: str) -> None:
    sample = sample_archive(layout)
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    rng = random.Random(seed)
    some: list[Case | None] = [None, *rng.sample(list(cases(sample, rng, 300)), 10)]
    failures = 0
    for number, case in enumerate(some):
        objects = sample.objects if case is None else damaged(sample, case)
        depth = rng.choice([Depth.BLOCKS, Depth.RECORDS])
        digests = rng.random() < 0.3
        place = stored(tmp_path / str(number), objects)
        task_bytes = rng.choice([1, 1_000, 10**9])
        ours, theirs, slices = both(place, depth, EVERY_CHUNK, task_bytes=task_bytes, digests=digests)
        told = f"seed {seed}, {case and case.kind}, {task_bytes} bytes a task, {slices} slices"
        if digests or task_bytes == 10**9:
            assert ours == theirs, told
        else:
            assert without_digests(ours) == without_digests(theirs), told
            for one, other in zip(ours["partitions"], theirs["partitions"], strict=True):
                assert one["digests"] in (None, other["digests"]), told
        failures += ours["verdict"] == "FAILURE"
    assert failures > 2, f"seed {seed}: hardly any damage was tried"


def test_a_sample_of_the_chunks(tmp_path: Path) -> None:
    place = stored(tmp_path, sample_archive("topic").objects)
    ours, theirs, _ = both(place, Depth.BLOCKS, ChunkChoice(None, 0.3, 7), task_bytes=1, digests=False)
    assert ours == theirs
    assert ours["partitions"][0]["checked_chunks"] < ours["partitions"][0]["chunks"]


def test_an_earlier_report_and_expected_topics_are_demanded(tmp_path: Path) -> None:
    """Also of topics that a pattern named when they were there, and not now."""
    for topic in ("orders", "orders-eu"):
        ArchiveWriter(tmp_path).partition(topic, 0).commit(records(range(10)))
    users = ArchiveWriter(tmp_path).partition("users", 0)
    before = users.marker
    users.commit(records(range(5)))
    place = ArchivePlace(LocalAddress(str(tmp_path)))
    report = tmp_path / "report.json"
    assert CliRunner().invoke(main, ["verify", "--report", str(report), "-a", str(tmp_path)]).exit_code == 0
    earlier = parse_report(report.read_bytes(), "report.json")

    demands: dict[str, Any] = {"expected": ("users", "bills"), "earlier": earlier}
    ours, theirs, _ = both(place, Depth.BLOCKS, EVERY_CHUNK, task_bytes=1, digests=False, **demands)
    assert ours == theirs
    since = ours["since_report"]
    assert (ours["unmet"], since["partitions"], since["differences"]) == (["bills"], 3, [])

    (tmp_path / users.keys.marker).write_bytes(encode_marker(before))
    for chunk in (tmp_path / users.keys.home).glob("0*"):
        chunk.unlink()
    shutil.rmtree((tmp_path / ArchiveWriter(tmp_path).partition("orders-eu", 0).keys.home).parent)
    demands = {"earlier": earlier}
    ours, theirs, _ = both(place, Depth.BLOCKS, EVERY_CHUNK, task_bytes=1, digests=False, **demands)
    assert ours == theirs
    assert [each["topic"] for each in ours["since_report"]["differences"]] == ["orders-eu", "users"]
    plan = asyncio.run(planned(place, ["o*"], EVERY_CHUNK, 1, digests=False, **demands))
    found = spread(plan, place, Depth.BLOCKS).since_report
    assert found is not None
    assert [each.topic for each in found.differences] == ["orders-eu"]


@pytest.mark.slow
def test_digests_are_not_claimed_for_parts(tmp_path: Path) -> None:
    place = stored(tmp_path, sample_archive("topic").objects)
    parts, _, many = both(place, Depth.RECORDS, EVERY_CHUNK, task_bytes=1, digests=False)
    whole, theirs, few = both(place, Depth.RECORDS, EVERY_CHUNK, task_bytes=1, digests=True)
    assert few == 3 < many
    assert [each["digests"] for each in parts["partitions"]] == [None, None, None]
    assert whole == theirs
    assert all(each["digests"] for each in whole["partitions"])


def test_what_is_sent_to_a_task_is_bounded(tmp_path: Path) -> None:
    """By small chunks a task gets so many; all of a partition is read by the task itself."""
    place = stored(tmp_path, sample_archive("topic").objects)
    plan = asyncio.run(planned(place, [], EVERY_CHUNK, 10**12, digests=True))
    assert all(not each.entries and each.chunks for each in plan.slices)
    some = next(e for s in asyncio.run(planned(place, [], EVERY_CHUNK, 1, digests=False)).slices for e in s.entries)
    groups = _grouped([some] * (3 * TASK_CHUNKS + 1), 10**12)
    assert [len(group) for group in groups] == [TASK_CHUNKS, TASK_CHUNKS, TASK_CHUNKS, 1]
    many = [msgspec.structs.replace(some, name=f"{n:08}-{some.name}", sha256=f"{n:064x}") for n in range(TASK_CHUNKS)]
    assert len(pickle.dumps(many)) < 5_000_000


@pytest.mark.parametrize("digests", [False, True])
def test_tasks_open_encrypted_chunks(tmp_path: Path, digests: bool) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    keys = f"file:{file}"
    sink = Sink(tmp_path / "archive")
    sink.write(at("orders", 0, records(range(60))), encrypt=keys, chunkRecords="20")
    place = ArchivePlace(LocalAddress(str(sink.folder)), keys=keys)
    ours, theirs, _ = both(place, Depth.RECORDS, EVERY_CHUNK, task_bytes=1, digests=digests)
    assert ours["verdict"] == theirs["verdict"] == "OK"
    assert [each["records"] for each in ours["partitions"]] == [60]
    closed = ArchivePlace(LocalAddress(str(sink.folder)))
    ours, theirs, _ = both(closed, Depth.BLOCKS, EVERY_CHUNK, task_bytes=1, digests=False)
    assert ours["verdict"] == theirs["verdict"] == "WARNING"
    assert [each["unopened_chunks"] for each in (*ours["partitions"], *theirs["partitions"])] == [3, 3]


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
BILL = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "double"}]}


def test_a_schema_as_sparks_json() -> None:
    """DDL is Spark's to read, in the system tests."""
    wanted = StructType([StructField("id", LongType()), StructField("name", StringType())])
    assert json_schema(wanted.json()) == wanted


@pytest.mark.parametrize("text", ["{}", '{"type": "struct"}', '{"type": "struct", "fields": []}', "{"])
def test_what_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--schema is not a schema of JSON values"):
        json_schema(text)


def test_topics_of_a_registry_must_agree() -> None:
    subjects = {"orders-value": 1, "copies-value": 1, "bills-value": 2}
    with schema_registry({1: ORDER, 2: BILL}, subjects) as (url, _):
        options = ValueOptions("avro", registry=url)
        decoder = row_decoder(options, ("orders", "copies")).value
        assert decoder is not None
        assert [field.name for field in decoder.type] == ["id"]
        with pytest.raises(UsageError, match="orders and bills have different schemas"):
            row_decoder(options, ("orders", "bills"))
        with pytest.raises(NotInArchive, match="no subject nowhere-value"):
            row_decoder(options, ("nowhere",))


def test_a_registry_that_is_not_an_address_is_not_taken_for_bad_values() -> None:
    with pytest.raises(UsageError, match="--schema-registry is not a URL"):
        row_decoder(ValueOptions("avro", schema=json.dumps(ORDER), registry="localhost:8081"), ("orders",))


def test_values_of_protobuf() -> None:
    with registry_of(ANSWERS) as (url, _):
        decoder = row_decoder(ValueOptions("protobuf", registry=url), ("orders",)).value
        assert decoder is not None and decoder.type.field("id").name == "id"
    with pytest.raises(UsageError, match="--value protobuf needs a schema") as caught:
        ValueOptions("protobuf")
    assert "avsc" not in caught.value.remedy
    with pytest.raises(UsageError, match="--schema goes with"):
        ValueOptions("protobuf", schema="{}", registry="http://x")


def test_a_schema_that_is_longer_than_a_name_may_be() -> None:
    text = ", ".join(f"field_{number} BIGINT" for number in range(100))
    assert _schema_text(text) == text


@pytest.mark.parametrize("parts", [("topic", "value.a.topic"), ("value.a", "value.b.a"), ("value.",), ("offset",)])
def test_parts_that_cannot_be(parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--partition-by"):
        check_parts(parts, decodes=True)
