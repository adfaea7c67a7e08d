"""Verifications begun from the page, and the history of reports."""

import json
import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from replayer.serve.verifying import KnownReport, Reports, after
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records
from tests.support.memory_store import MemoryStore
from tests.support.page_client import get_page, page_client, settings_of


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def finished(asking: object, name: str) -> dict[str, object]:
    """The last event of a task."""
    with asking.stream("GET", f"/api/v1/jobs/{name}/events") as answer:  # type: ignore[attr-defined]
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    document: dict[str, object] = json.loads(lines[-1].removeprefix("data: "))
    return document


@pytest.mark.slow
def test_a_verification_writes_a_signed_report(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    root, reports = tmp_path / "archive", tmp_path / "reports"
    reports.mkdir()
    writer = ArchiveWriter(root)
    for number in range(2):
        partition = writer.partition("orders", number)
        partition.commit(records(range(20)))
        partition.commit(records(range(20, 40)))
    index = next((root / "topic=orders" / "partition=00001").glob("*20.index.json"))
    index.unlink()
    settings = settings_of(root, reports=reports, sign_key=keys[0], report_key=keys[1])
    with page_client(settings) as asking:
        job = asking.post("/api/v1/jobs", json={"kind": "verify", "depth": "records"}).json()
        done = finished(asking, job["id"])
        assert (done["state"], done["failure"]) == ("complete", None)
        result = done["result"]
        assert isinstance(result, dict)
        assert (result["verdict"], result["partitions"], result["lost_ranges"]) == ("FAILURE", 2, 1)
        (known,) = asking.get("/api/v1/reports").json()["reports"]
        assert (known["verdict"], known["signature"], known["lost"]) == ("FAILURE", "good", 1)
        assert asking.get(f"/api/v1/reports/{known['name']}").json()["partitions"][1]["lost"]
        # What was lost is on the map, and on the page of the report.
        assert "damage: offsets [20..40)" in get_page(asking, "/topics/orders")
        assert "[20..40)" in get_page(asking, f"/verify/{known['name']}")
        report = reports / known["name"]
        report.write_bytes(report.read_bytes().replace(b"FAILURE", b"WARNING"))
        (forged,) = asking.get("/api/v1/reports").json()["reports"]
        assert (forged["verdict"], forged["signature"]) == ("WARNING", "wrong")


def test_a_share_is_not_told_as_the_whole(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    partition = ArchiveWriter(tmp_path / "archive").partition("orders", 0)
    for start in range(0, 200, 10):
        partition.commit(records(range(start, start + 10)))
    with page_client(settings_of(tmp_path / "archive", reports=tmp_path / "reports")) as asking:
        job = asking.post("/api/v1/jobs", json={"kind": "verify", "sample": 0.1}).json()
        assert "10 % of the chunks" in job["title"]
        result = finished(asking, job["id"])["result"]
        assert isinstance(result, dict)
        assert (result["checked_chunks"], result["chunks"]) == (2, 20)
        assert "2 of 20 chunks" in get_page(asking, "/")


def test_what_is_lost_stays_known_until_all_of_it_was_verified_again(tmp_path: Path) -> None:
    def write(number: int, archive: str, checked: int, lost: list[tuple[int, int]], depth: str = "blocks") -> None:
        partition = {"topic": "orders", "partition": 0, "verdict": "OK", "records": 9, "chunks": 9}
        partition |= {"checked_chunks": checked, "lost": [{"from": start, "to": end} for start, end in lost]}
        more = {"created": f"2026-01-{number:02}", "archive": "a", "archive_id": archive, "depth": depth}
        (tmp_path / f"{number}.json").write_text(json.dumps({"verdict": "OK", "partitions": [partition]} | more))

    def left() -> list[tuple[int | None, int | None]]:
        return [(each.start, each.end) for each in reports.open_damage("a1")]

    reports = Reports(tmp_path, None, MemoryStore)
    write(1, "a1", 9, [(0, 5)])
    write(2, "a1", 9, [(20, 30)])
    write(3, "a1", 1, [])
    write(4, "a1", 9, [], "structure")
    write(5, "b2", 9, [(70, 80)])
    assert left() == [(20, 30)]
    assert [each.name for each in reports.of_archive("a1")] == ["4.json", "3.json", "2.json", "1.json"]
    write(6, "a1", 9, [])
    assert left() == []


@pytest.mark.slow
@pytest.mark.parametrize("with_reports", [False, True])
def test_the_page_stays_red_until_the_damaged_chunk_is_checked_again(tmp_path: Path, with_reports: bool) -> None:
    """Whatever samples of other chunks find, and also if the server is started again, or the report is deleted."""
    root, reports = tmp_path / "archive", tmp_path / "reports"
    reports.mkdir()
    partition = ArchiveWriter(root).partition("orders", 0)
    for start in range(0, 200, 10):
        partition.commit(records(range(start, start + 10)), block_bytes=100_000)
    path = root / partition.keys.home / f"{70:020d}.gz"
    body = path.read_bytes()
    settings = settings_of(root, jobs=str(tmp_path / "jobs"), reports=reports if with_reports else None)

    def verified(asking: TestClient, **asked: object) -> object:
        job = asking.post("/api/v1/jobs", json={"kind": "verify", **asked}).json()
        result = finished(asking, job["id"])["result"]
        assert isinstance(result, dict)
        return result["verdict"]

    def left(asking: TestClient) -> list[tuple[str, int, int, int]]:
        is_red = "no later verification found it repaired" in get_page(asking, "/")
        found = asking.get("/api/v1/damage").json()["damage"]
        assert is_red == bool(found)
        assert ("damage: offsets" in get_page(asking, "/topics/orders")) == bool(found)
        return [(each["folder"], each["partition"], each["from"], each["to"]) for each in found]

    expected = [("orders", 0, 70, 80)]
    path.write_bytes(bytes(len(body)))
    with page_client(settings) as asking:
        assert left(asking) == []
        assert verified(asking) == "FAILURE"
        assert left(asking) == expected
        assert verified(asking, depth="structure") == "OK"
        assert left(asking) == expected
    for file in reports.iterdir():
        file.unlink()
    path.write_bytes(body)
    with page_client(settings) as asking:
        assert left(asking) == expected
        for _ in range(3):
            assert verified(asking, sample=0.05) == "SAMPLED"
        # The sample may have chosen the chunk, and then it is right that it is settled.
        chosen = [each["checked"] for name in reports.iterdir() for each in json.loads(name.read_bytes())["partitions"]]
        if with_reports and not any({"from": 70, "to": 80} in each for each in chosen):
            assert left(asking) == expected
        assert verified(asking) == "OK"
        assert left(asking) == []
    with page_client(settings) as asking:
        assert left(asking) == []


def test_a_page_that_cannot_read_what_was_damaged_says_so(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "archive").partition("orders", 0).commit(records(range(10)))
    settings = settings_of(tmp_path / "archive", jobs=str(tmp_path / "jobs"))
    with page_client(settings) as asking:
        assert "Damage was found" not in get_page(asking, "/")
    (tmp_path / "jobs" / "~damage").mkdir(parents=True)
    (tmp_path / "jobs" / "~damage" / f"{ARCHIVE_ID}.json").write_text("{}")
    with page_client(settings) as asking:
        assert "the damage that earlier verifications found cannot be read" in get_page(asking, "/")


def test_what_a_report_settles() -> None:
    """Only what a verification read, at least as deep, of the same incarnation."""
    key = "topic=orders/partition=00000/00000000000000000070.gz"
    lost, extra = {"from": 72, "to": 75, "reason": "changed"}, {"object": key, "reason": "extra", "from": 70, "to": 80}
    marker = {"object": "m", "reason": "its epoch is wrong", "from": None, "to": None}
    reports = Reports(None, None, MemoryStore)

    def report(*checked: tuple[int, int], depth: str = "blocks", incarnation: int = 2, **more: object) -> KnownReport:
        partition = {"topic": "orders", "partition": 0, "verdict": "OK", "records": 9, "incarnation": incarnation}
        partition |= {"checked": [{"from": start, "to": end} for start, end in checked], **more}
        whole = {"created": "2026-01-01T00:00:00Z", "archive": "a", "depth": depth, "partitions": [partition]}
        return reports._parsed("a.json", json.dumps({"verdict": "OK", **whole}).encode(), "none")

    def left(*then: KnownReport) -> list[str]:
        found = after([], report((0, 200), lost=[lost], damage=[extra, marker]))
        for each in then:
            found = after(found, each)
        return sorted(each.reason for each in found)

    assert left() == ["changed", "m: its epoch is wrong"]
    assert left(report((0, 70), (80, 200))) == ["changed"]
    assert left(report((0, 200), depth="structure")) == ["changed", "m: its epoch is wrong"]
    assert left(report((0, 200), incarnation=1)) == ["changed", "m: its epoch is wrong"]
    assert left(report((70, 80), damage=[extra])) == [f"{key}: extra"]
    assert left(report((70, 80))) == left(report((0, 200), depth="records")) == []


def test_what_is_no_report_is_left_out(tmp_path: Path) -> None:
    assert Reports(None, None, MemoryStore).all() == []
    assert Reports(tmp_path / "none", None, MemoryStore).all() == []
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("[1")
    (tmp_path / "c.txt").write_text("text")
    (tmp_path / "d.json").write_text('{"verdict":"OK","created":"2026-01-01T00:00:00Z","archive":"a","partitions":[]}')
    (tmp_path / "e.json").mkdir()
    (tmp_path / "f.json").write_text('{"verdict":"OK","created":"c","archive":"a","partitions":[{}],"warnings":null}')
    assert [each.name for each in Reports(tmp_path, None, MemoryStore).all()] == ["d.json"]
    with page_client(settings_of(tmp_path, reports=tmp_path)) as asking:
        for name in ("a.json", "b.json", "..%2Fetc%2Fpasswd", ".hidden.json", "f.json", "none.json"):
            assert asking.get(f"/api/v1/reports/{name}").status_code == 404
        assert asking.get("/api/v1/reports/d.json").json()["verdict"] == "OK"


@pytest.mark.parametrize("asked", [{"sample": 0}, {"sample": 2}, {"depth": "deep"}, {"topics": ["a b"]}, {"more": 1}])
def test_a_verification_that_cannot_be_is_refused(tmp_path: Path, asked: dict[str, object]) -> None:
    with page_client(settings_of(tmp_path)) as asking:
        assert asking.post("/api/v1/jobs", json={"kind": "verify", **asked}).status_code == 400
