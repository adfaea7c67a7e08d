"""The API of what is archived."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from index_format.chunk_index import Gap
from index_format.records import Record
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import page_client, settings_of

ORDERS = "/api/v1/topics/orders"
FIRST = f"{ORDERS}/partitions/0"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[TestClient]:
    writer = ArchiveWriter(tmp_path)
    orders = writer.partition("orders", 0)
    orders.commit(records(range(50)))
    orders.commit(records(range(70, 100)), gaps=[Gap(50, 60, "retention")])
    writer.partition("orders", 1).commit(records(range(5)))
    writer.partition("payments", 0).commit(
        [Record(0, -1, -1, b"\xff", b"\x00\x01", (("h", None),)), Record(1, 5, 0, None, None, ())]
    )
    with page_client(settings_of(tmp_path)) as client:
        yield client


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_and_partitions(asking: TestClient) -> None:
    found = asking.get("/api/v1/topics").json()
    assert [(each["topic"], each["records"], each["partitions"]) for each in found["topics"]] == [
        ("orders", 85, 2),
        ("payments", 2, 1),
    ]
    assert [each["topic"] for each in asking.get("/api/v1/topics?q=pay").json()["topics"]] == ["payments"]
    topic = asking.get(ORDERS).json()
    assert topic["partitions"][0]["gaps"] == [{"from": 50, "to": 60, "reason": "retention"}]
    assert asking.get(FIRST).json() == topic["partitions"][0]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/topics/none", 404),
        ("/api/v1/topics/none/coverage", 404),
        ("/api/v1/topics/none/partitions/0/page", 404),
        ("/api/v1/topics/a b", 400),
        ("/api/v1/topics/..", 404),
        (f"{ORDERS}/partitions/7", 404),
        (f"{ORDERS}/partitions/-1", 404),
        (f"{ORDERS}/partitions/{2**70}", 404),
        (f"{ORDERS}/partitions/x", 400),
        (f"{FIRST}/page?at=yesterday", 400),
        (f"{FIRST}/page?n=0", 400),
        (f"{FIRST}/page?n=100000", 400),
        (f"{FIRST}/records?from=9&to=3", 400),
        (f"{FIRST}/records?grep=(", 400),
        (f"{FIRST}/records/55", 404),
        (f"{FIRST}/records/17/headers", 400),
        (f"{ORDERS}/find", 400),
        (f"{ORDERS}/find?time=x", 400),
        (f"{ORDERS}/coverage?from=5&to=5", 400),
        (f"{ORDERS}/coverage?slices=0", 400),
        (f"{FIRST}/records?form=3", 400),
        ("/api/v1/jobs?state=running", 400),
        ("/api/v1/nothing", 404),
    ],
)
def test_what_cannot_be_answered_says_why(asking: TestClient, path: str, status: int) -> None:
    answer = asking.get(path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "why", "do"}
    assert answer.json()["error"]


def test_pages_both_ways(asking: TestClient) -> None:
    page = asking.get(f"{FIRST}/page?at=45&n=10").json()
    kinds = [item["missing"]["kind"] if "missing" in item else item["record"]["offset"] for item in page["items"]]
    assert kinds == [45, 46, 47, 48, 49, "gap", "hole", 70, 71, 72, 73, 74]
    assert page["items"][5]["missing"] == {"from": 50, "to": 60, "kind": "gap", "reason": "retention"}
    assert (page["previous"], page["next"]) == ({"before": 45}, {"at": 75})
    assert 0 < page["stats"]["requests"] <= 10
    assert page["stats"]["bytes_fetched"] > 0
    before = asking.get(f"{FIRST}/page", params={**page["previous"], "n": 3}).json()
    assert [item["record"]["offset"] for item in before["items"]] == [42, 43, 44]
    newest = asking.get(f"{FIRST}/page").json()
    assert (newest["to"], newest["next"]) == (100, None)


def test_a_stream_has_the_lines_of_cat_and_a_cursor(asking: TestClient) -> None:
    answer = asking.get(f"{FIRST}/records?from=40&n=12")
    assert answer.headers["content-type"] == "application/x-ndjson"
    *found, cursor = lines(answer.text)
    assert [each["offset"] for each in found] == [*range(40, 50), 70, 71]
    assert found[0] == {**found[0], "topic": "orders", "partition": 0, "timestamp_type": "CreateTime"}
    assert cursor == {"cursor": {"next": 72, "complete": False}}
    *rest, last = lines(asking.get(f"{FIRST}/records?from=72").text)
    assert len(rest) == 28
    assert last == {"cursor": {"next": 100, "complete": True}}
    chosen = lines(asking.get(f"{FIRST}/records", params={"grep": "value of 4[46]", "n": 5}).text)
    assert [each.get("offset") for each in chosen] == [44, 46, None]
    keyed = lines(asking.get(f"{FIRST}/records", params={"key": ["44", "46"]}).text)
    assert [each.get("offset") for each in keyed] == [44, 46, None]


def test_damage_ends_a_stream_with_its_reason(asking: TestClient, tmp_path: Path) -> None:
    next((tmp_path / "topic=orders" / "partition=00000").glob("*50.index.json")).unlink()
    *found, last = lines(asking.get(f"{FIRST}/records?from=45").text)
    assert [each["offset"] for each in found] == [45, 46, 47, 48, 49]
    assert "is missing" in last["failure"]["error"]
    assert asking.get(f"{FIRST}/records/80").status_code == 410


def test_one_record_and_its_bytes(asking: TestClient) -> None:
    found = asking.get(f"{FIRST}/records/20").json()
    assert found["record"]["offset"] == 20
    assert found["stats"]["requests"] >= 2
    assert found["stats"]["chunk_bytes"] > 0
    assert asking.get(f"{FIRST}/records/latest").json()["record"]["offset"] == 99
    binary = "/api/v1/topics/payments/partitions/0/records/0"
    assert asking.get(binary).json()["record"]["value"] == "\x00\x01"
    assert "key_base64" in asking.get(binary).json()["record"]
    value = asking.get(f"{binary}/value")
    assert value.content == b"\x00\x01"
    assert value.headers["content-type"] == "application/octet-stream"
    assert value.headers["content-disposition"] == 'attachment; filename="payments-0-0.value"'
    assert asking.get("/api/v1/topics/payments/partitions/0/records/1/value").status_code == 204


def test_offsets_of_a_time(asking: TestClient) -> None:
    found = asking.get(f"{ORDERS}/find", params={"time": ["@1760000000003", "@1990000000000"]}).json()
    assert [(each["partition"], each["offset"], each["found"]) for each in found] == [
        (0, 3, True),
        (1, 3, True),
        (0, 100, False),
        (1, 5, False),
    ]


def test_coverage_by_time_and_by_offset(asking: TestClient) -> None:
    by_offset = asking.get(f"{ORDERS}/coverage?scale=offset&slices=10").json()
    assert (by_offset["from_offset"], by_offset["to_offset"]) == (0, 100)
    first = by_offset["partitions"][0]
    assert first["records_by_slice"] == [10, 10, 10, 10, 10, 0, 0, 10, 10, 10]
    assert [(gap["from"], gap["to"]) for gap in first["gaps"]] == [(50, 60)]
    part = asking.get(f"{ORDERS}/coverage?scale=offset&from=70&to=80&slices=2").json()
    assert part["partitions"][0]["records_by_slice"] == [5, 5]
    by_time = asking.get(f"{ORDERS}/coverage").json()
    assert len(by_time["partitions"][0]["records_by_slice"]) == 60
