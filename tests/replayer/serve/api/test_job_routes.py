"""The API of what is archived and of what takes long; system_test/test_page.py has replays with a broker."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from index_format.objects import Gap
from index_format.records import Record
from replayer.errors import TargetInUse
from replayer.serve.errors import status_of
from replayer.serve.replays import ReplayForm, Replays
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import page_client, send_form, settings_of

JOBS = "/api/v1/jobs"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[TestClient]:
    writer = ArchiveWriter(tmp_path)
    for number in range(3):
        writer.partition("orders", number).commit(records(range(500)))
    settings = settings_of(tmp_path, kafka={"bootstrap.servers": "127.0.0.1:1"}, jobs=str(tmp_path / "jobs"))
    with page_client(settings) as client:
        yield client


def events(asking: TestClient, name: str) -> list[dict[str, Any]]:
    with asking.stream("GET", f"{JOBS}/{name}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]


@pytest.mark.slow
def test_a_search_says_what_it_reads_and_tells_what_it_finds(asking: TestClient, tmp_path: Path) -> None:
    form = {"topic": "orders:0,2", "from": "10", "grep": "value of 4[246]1"}
    plan = asking.post("/api/v1/plans/search", json=form).json()
    assert (plan["records"], plan["requests"] > 0, plan["bytes"] > 0) == (980, True, True)
    created = asking.post(JOBS, json={"kind": "search", "search": form})
    assert created.status_code == 201
    done = events(asking, created.json()["id"])[-1]
    assert (done["state"], done["progress"]) == ("complete", {"done": 980, "all": 980, "unit": "records"})
    assert [(each["partition"], each["offset"]) for each in done["result"]["found"]] == [
        (partition, offset) for partition in (0, 2) for offset in (421, 441, 461)
    ]
    assert done["result"]["found"][0]["value"].startswith("value of 421")
    assert [job["id"] for job in asking.get(JOBS).json()["jobs"]] == [done["id"]]


@pytest.mark.slow
def test_a_search_goes_around_damage_and_tells_of_it(asking: TestClient, tmp_path: Path) -> None:
    next((tmp_path / "topic=orders" / "partition=00001").glob("*.index.json")).unlink()
    created = asking.post(JOBS, json={"kind": "search", "search": {"topic": "orders", "key": ["1"]}}).json()
    done = events(asking, created["id"])[-1]
    assert [each["partition"] for each in done["result"]["found"]] == [0, 2]
    assert [(each["partition"], each["from"], each["to"]) for each in done["result"]["skipped"]] == [(1, 0, 500)]


@pytest.mark.slow
def test_a_search_that_ends_early_tells_what_it_could_not_read(asking: TestClient, tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("large", 0)
    for start in range(0, 1500, 100):
        partition.commit(records(range(start, start + 100)))
    next((tmp_path / "topic=large" / "partition=00000").glob("*00200.index.json")).unlink()
    created = asking.post(JOBS, json={"kind": "search", "search": {"topic": "large", "grep": "."}}).json()
    done = events(asking, created["id"])[-1]
    assert (len(done["result"]["found"]), done["result"]["has_more"]) == (1000, True)
    assert [(each["from"], each["to"]) for each in done["result"]["skipped"]] == [(200, 300)]


@pytest.mark.slow
def test_a_search_that_finds_much_ends(asking: TestClient) -> None:
    created = asking.post(JOBS, json={"kind": "search", "search": {"topic": "orders", "grep": "."}}).json()
    done = events(asking, created["id"])[-1]
    assert (len(done["result"]["found"]), done["result"]["has_more"]) == (1000, True)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        (JOBS, {"kind": "search", "search": {"topic": "orders"}}, 400, "nothing to search for"),
        (JOBS, {"kind": "search", "search": {"topic": "none", "key": ["1"]}}, 404, "not in the archive"),
        (JOBS, {"kind": "search", "search": {"topic": "orders", "grep": "("}}, 400, ""),
        (JOBS, {"kind": "explode"}, 400, "not valid"),
        (JOBS, {"kind": "prove", "job": "none"}, 404, "no job"),
        (JOBS, {"kind": "prove", "job": "../x"}, 404, "no job"),
        (
            JOBS,
            {"kind": "replay", "replay": {"topic": "orders", "to_topic": "copy"}, "confirm": "copy"},
            400,
            "this page only reads",
        ),
        (JOBS, {"kind": "replay", "replay": {"topic": "orders", "to_topic": "c", "X": "a=b"}, "confirm": ""}, 400, "X"),
        ("/api/v1/plans/replay", {"topic": "orders", "to_topic": "c", "positions": "/etc/passwd"}, 400, "positions"),
        ("/api/v1/plans/replay", {"topic": "orders", "to_topic": "c", "transforms": "/etc/passwd"}, 400, "transforms"),
        ("/api/v1/plans/replay", {"topic": "--help", "to_topic": "copy"}, 404, ""),
        ("/api/v1/plans/replay", {"topic": "none", "to_topic": "copy"}, 404, "not in the archive"),
        ("/api/v1/plans/replay", {"topic": "orders", "to_topic": "orders"}, 400, ""),
        ("/api/v1/plans/replay", {"topic": "orders", "to_topic": "copy", "from": "soon"}, 400, "not a position"),
        ("/api/v1/plans/replay", {"topic": "orders", "to_topic": "{topic} 2"}, 400, "'orders 2' is not a topic name"),
        (
            JOBS,
            {"kind": "replay", "replay": {"topic": "orders", "to_topic": "a b"}, "confirm": "a b"},
            400,
            "'a b' is not a topic name",
        ),
        (f"{JOBS}/none/pause", None, 404, "no job"),
        (f"{JOBS}/none/explode", None, 404, "no action"),
        (f"{JOBS}/none/rate", {"rate": "fast"}, 400, "not a rate"),
        (f"{JOBS}/none/rate", {"rate": None}, 404, "no job"),
    ],
)
def test_what_cannot_be_done_says_why(
    archive_page: TestClient, path: str, body: dict[str, Any] | None, status: int, word: str
) -> None:
    answer = archive_page.post(path, json=body) if body is not None else archive_page.post(path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "why", "do"}
    assert word in " ".join(answer.json().values())


@pytest.mark.parametrize("job", ["..", "../../etc", "a/b", "a b", "x" * 200])
def test_a_job_is_named_so_that_it_stays_in_its_folder(tmp_path: Path, job: str) -> None:
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit(records(range(5)))
    jobs = tmp_path / "jobs"
    settings = settings_of(tmp_path / "a", kafka={"bootstrap.servers": "h:1"}, jobs=str(jobs), allow_replay=True)
    with page_client(settings) as asking:
        form = {"topic": "none", "to_topic": "../../copy", "job": job}
        begun = asking.post(JOBS, json={"kind": "replay", "replay": form, "confirm": "../../copy"})
        assert begun.status_code in (400, 404), begun.text
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "jobs"}
    assert {path.name for path in jobs.glob("*")} == set()


@pytest.mark.slow
def test_a_form_that_is_sent_twice_begins_one_job(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit(records(range(5)))
    settings = settings_of(
        tmp_path / "a", kafka={"bootstrap.servers": "h:1"}, jobs=str(tmp_path / "jobs"), allow_replay=True
    )
    asked = {"kind": "replay", "confirm": "c", "replay": {"topic": "none", "to_topic": "c", "job": "once"}}
    with page_client(settings) as asking:
        first, second = (asking.post(JOBS, json=asked) for _ in range(2))
        assert "there is a job once" in second.json()["error"]
        found = asking.get(f"{JOBS}/once").json()
        assert (first.status_code, found["state"], found["actions"]) == (201, "failed", ["resume"])
        assert "none is not in the archive" in found["failure"]["error"]
        assert [job["id"] for job in asking.get(JOBS).json()["jobs"]] == ["once"]
        again = asking.post(f"{JOBS}/once/resume").json()
        assert again["state"] == "failed"
        assert asking.post(f"{JOBS}/once/pause").status_code == 400


def test_two_jobs_do_not_write_to_one_topic_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(
        tmp_path / "a", kafka={"bootstrap.servers": "h:1"}, jobs=str(tmp_path / "jobs"), allow_replay=True
    )

    async def begun_together() -> None:
        replays, go_on = Replays(settings), asyncio.Event()

        async def run(*_: object) -> None:
            await go_on.wait()

        monkeypatch.setattr(replays, "_run", run)
        forms = [ReplayForm(topic="orders", to_topic=target, job=job) for job, target in (("a", "c"), ("b", "c"))]
        first = asyncio.create_task(replays.begin(forms[0], "c", "me"))
        await asyncio.sleep(0)
        with pytest.raises(TargetInUse, match="job a writes to topic c") as caught:
            await replays.begin(forms[1], "c", "me")
        assert status_of(caught.value) == 409
        other = asyncio.create_task(replays.begin(ReplayForm(topic="orders", to_topic="d", job="d"), "d", "me"))
        go_on.set()
        assert [await first, await other] == ["a", "d"]
        running = {"id": "e", "target": "c", "state": "running", "created_at_ms": 1}

        async def all_jobs() -> list[dict[str, Any]]:
            return [running]

        monkeypatch.setattr(replays, "all", all_jobs)
        with pytest.raises(TargetInUse, match="job e writes to topic c"):
            await replays.begin(forms[1], "c", "me")
        running["state"] = "complete"
        assert await replays.begin(forms[1], "c", "me") == "b"

    asyncio.run(begun_together())


def test_archivers_and_reports_are_empty_lists(asking: TestClient) -> None:
    assert asking.get("/api/v1/archivers").json() == {"archivers": []}
    assert asking.get("/api/v1/reports").json() == {"reports": []}


def test_a_replay_whose_end_is_in_doubt_is_answered_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = {"partition": 0, "doubt": "clocks differ", "is_chosen": False, "majority": 834, "first": 100}
    plan = dict.fromkeys(("topic", "target"), "orders") | {"cuts": [cut, {**cut, "partition": 1, "doubt": None}]}
    plan |= dict.fromkeys(("records", "bytes", "target_partitions", "requests", "stored_bytes", "seconds"), 1)
    plan |= {"records_exact": True, "warnings": ["orders:0  ends before offset 834"], "notes": [], "partitions": []}
    plan |= {"cut_bytes": 2048}
    begun: list[ReplayForm] = []

    async def planned(_: Replays, form: ReplayForm) -> dict[str, Any]:
        if form.at_rule is None:
            return plan
        return plan | {"cuts": [{**each, "is_chosen": True} for each in plan["cuts"]]}

    async def run(_: Replays, name: str, form: ReplayForm, *more: str) -> None:
        begun.append(form)

    monkeypatch.setattr(Replays, "_planned", planned)
    monkeypatch.setattr(Replays, "_run", run)
    settings = settings_of(
        tmp_path / "a", kafka={"bootstrap.servers": "h:1"}, jobs=str(tmp_path / "jobs"), allow_replay=True
    )
    form = {"topic": "orders", "to_topic": "copy", "at": "2026-11-20", "job": "j"}
    with page_client(settings) as asking:
        refused = asking.post(JOBS, json={"kind": "replay", "confirm": "copy", "replay": form})
        assert (refused.status_code, refused.json()["cuts"]) == (409, [cut])
        assert "834" in refused.json()["why"] and "at_rule" in refused.json()["do"]
        assert (begun, list((tmp_path / "jobs").glob("*"))) == ([], [])
        shown = send_form(asking, "/replay/plan", **form).text
        assert shown.count('name="at_rule"') == 2
        assert "by majority: partition 0 ends before offset 834" in shown
        assert "by Kafka&#39;s rule: partition 0 ends before offset 100" in shown
        assert "2.0 kB" in shown or "2.0 KiB" in shown or "2 kB" in shown or "2.0 KB" in shown, shown
        assert 'name="at_rule"' not in send_form(asking, "/replay/plan", at_rule="first", **form).text
        sent = json.dumps(form)
        assert send_form(asking, "/replay/begin", asked=sent, confirm="copy").status_code == 409
        assert send_form(asking, "/replay/begin", asked=sent, confirm="copy", at_rule="last").status_code == 400
        assert send_form(asking, "/replay/begin", asked=sent, confirm="copy", at_rule="first").status_code == 303
        asking.post(JOBS, json={"kind": "replay", "confirm": "copy", "replay": {**form, "at_rule": "majority"}})
    assert [each.at_rule for each in begun] == ["first"], "the second one has the name of the first"
    assert "--at-rule=first" in begun[0].arguments


ORDERS = "/api/v1/topics/orders"
FIRST = f"{ORDERS}/partitions/0"


def archive_of(root: Path) -> None:
    writer = ArchiveWriter(root)
    orders = writer.partition("orders", 0)
    orders.commit(records(range(50)))
    orders.commit(records(range(70, 100)), gaps=[Gap(50, 60, "retention")])
    writer.partition("orders", 1).commit(records(range(5)))
    writer.partition("payments", 0).commit(
        [Record(0, -1, -1, b"\xff", b"\x00\x01", (("h", None),)), Record(1, 5, 0, None, None, ())]
    )


@pytest.fixture(scope="module")
def archive_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A page of an archive that no test changes."""
    root = tmp_path_factory.mktemp("archive")
    archive_of(root)
    settings = settings_of(root, kafka={"bootstrap.servers": "127.0.0.1:1"}, jobs=str(root / "jobs"))
    with page_client(settings) as client:
        yield client


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_and_partitions(archive_page: TestClient) -> None:
    found = archive_page.get("/api/v1/topics").json()
    assert [(each["topic"], each["records"], each["partitions"]) for each in found["topics"]] == [
        ("orders", 85, 2),
        ("payments", 2, 1),
    ]
    assert [each["topic"] for each in archive_page.get("/api/v1/topics?q=pay").json()["topics"]] == ["payments"]
    topic = archive_page.get(ORDERS).json()
    assert topic["partitions"][0]["gaps"] == [{"from": 50, "to": 60, "reason": "retention"}]
    assert archive_page.get(FIRST).json() == topic["partitions"][0]


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
def test_what_cannot_be_answered_says_why(archive_page: TestClient, path: str, status: int) -> None:
    answer = archive_page.get(path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "why", "do"}
    assert answer.json()["error"]


def test_pages_both_ways(archive_page: TestClient) -> None:
    page = archive_page.get(f"{FIRST}/page?at=45&n=10").json()
    kinds = [item["missing"]["kind"] if "missing" in item else item["record"]["offset"] for item in page["items"]]
    assert kinds == [45, 46, 47, 48, 49, "gap", "hole", 70, 71, 72, 73, 74]
    assert page["items"][5]["missing"] == {"from": 50, "to": 60, "kind": "gap", "reason": "retention"}
    assert (page["previous"], page["next"]) == ({"before": 45}, {"at": 75})
    assert 0 < page["stats"]["requests"] <= 10
    assert page["stats"]["bytes_fetched"] > 0
    before = archive_page.get(f"{FIRST}/page", params={**page["previous"], "n": 3}).json()
    assert [item["record"]["offset"] for item in before["items"]] == [42, 43, 44]
    newest = archive_page.get(f"{FIRST}/page").json()
    assert (newest["to"], newest["next"]) == (100, None)


def test_a_stream_has_the_lines_of_cat_and_a_cursor(archive_page: TestClient) -> None:
    answer = archive_page.get(f"{FIRST}/records?from=40&n=12")
    assert answer.headers["content-type"] == "application/x-ndjson"
    *found, cursor = lines(answer.text)
    assert [each["offset"] for each in found] == [*range(40, 50), 70, 71]
    assert found[0] == {**found[0], "topic": "orders", "partition": 0, "timestamp_type": "CreateTime"}
    assert cursor == {"cursor": {"next": 72, "complete": False}}
    *rest, last = lines(archive_page.get(f"{FIRST}/records?from=72").text)
    assert len(rest) == 28
    assert last == {"cursor": {"next": 100, "complete": True}}
    chosen = lines(archive_page.get(f"{FIRST}/records", params={"grep": "value of 4[46]", "n": 5}).text)
    assert [each.get("offset") for each in chosen] == [44, 46, None]
    keyed = lines(archive_page.get(f"{FIRST}/records", params={"key": ["44", "46"]}).text)
    assert [each.get("offset") for each in keyed] == [44, 46, None]


def test_damage_ends_a_stream_with_its_reason(tmp_path: Path) -> None:
    archive_of(tmp_path)
    next((tmp_path / "topic=orders" / "partition=00000").glob("*50.index.json")).unlink()
    with page_client(settings_of(tmp_path)) as asking:
        *found, last = lines(asking.get(f"{FIRST}/records?from=45").text)
        assert [each["offset"] for each in found] == [45, 46, 47, 48, 49]
        assert "is missing" in last["failure"]["error"]
        assert asking.get(f"{FIRST}/records/80").status_code == 410


def test_one_record_and_its_bytes(archive_page: TestClient) -> None:
    found = archive_page.get(f"{FIRST}/records/20").json()
    assert found["record"]["offset"] == 20
    assert found["stats"]["requests"] >= 2
    assert found["stats"]["chunk_bytes"] > 0
    assert archive_page.get(f"{FIRST}/records/latest").json()["record"]["offset"] == 99
    binary = "/api/v1/topics/payments/partitions/0/records/0"
    assert archive_page.get(binary).json()["record"]["value"] == "\x00\x01"
    assert "key_base64" in archive_page.get(binary).json()["record"]
    value = archive_page.get(f"{binary}/value")
    assert value.content == b"\x00\x01"
    assert value.headers["content-type"] == "application/octet-stream"
    assert value.headers["content-disposition"] == 'attachment; filename="payments-0-0.value"'
    assert archive_page.get("/api/v1/topics/payments/partitions/0/records/1/value").status_code == 204


def test_offsets_of_a_time(archive_page: TestClient) -> None:
    found = archive_page.get(f"{ORDERS}/find", params={"time": ["@1760000000003", "@1990000000000"]}).json()
    assert [(each["partition"], each["offset"], each["found"]) for each in found] == [
        (0, 3, True),
        (1, 3, True),
        (0, 100, False),
        (1, 5, False),
    ]


def test_coverage_by_time_and_by_offset(archive_page: TestClient) -> None:
    by_offset = archive_page.get(f"{ORDERS}/coverage?scale=offset&slices=10").json()
    assert (by_offset["from_offset"], by_offset["to_offset"]) == (0, 100)
    first = by_offset["partitions"][0]
    assert first["records_by_slice"] == [10, 10, 10, 10, 10, 0, 0, 10, 10, 10]
    assert [(gap["from"], gap["to"]) for gap in first["gaps"]] == [(50, 60)]
    part = archive_page.get(f"{ORDERS}/coverage?scale=offset&from=70&to=80&slices=2").json()
    assert part["partitions"][0]["records_by_slice"] == [5, 5]
    by_time = archive_page.get(f"{ORDERS}/coverage").json()
    assert len(by_time["partitions"][0]["records_by_slice"]) == 60
