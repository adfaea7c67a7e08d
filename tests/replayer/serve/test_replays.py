"""Replay jobs of the page; system_test/test_page.py runs them."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import NotInArchive, StoreBusy, StoreUnavailable, UsageError, exit_code
from blockgz.store.address import LocalAddress, S3Address, S3Settings
from blockgz.store.opening import open_store
from index_format.old_objects import OldFormat
from replayer.cli.replay import command as replay_command
from replayer.replay.jobs.control import JobProgress, ProgressFile, ReportedState, held, read_control
from replayer.replay.jobs.folder import JobFolder, JobUndone
from replayer.serve import replays
from replayer.serve.replays import MOST_PLANS, CommandFailed, JobLaunch, ReplayForm, Replays, environment_of, form_of
from replayer.serve.settings import Access, ServeSettings
from replayer.serve.verifying import KnownReport, Reports, after
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records
from tests.support.memory_store import MemoryStore
from tests.support.page_client import get_page, page_client, settings_of

FORM: dict[str, Any] = {"topic": "orders:0,2", "to_topic": "{topic}-copy"}


def test_a_form_is_options_of_the_command() -> None:
    form = ReplayForm.model_validate(
        {**FORM, "from": "-10", "add_header": ["--yes", "a=b c"], "transactional": True, "rate": "", "job": "j"}
    )
    assert form.named_target == "orders-copy"
    assert form.arguments == [
        "--to-topic={topic}-copy",
        "--from=-10",
        "--add-header=--yes",
        "--add-header=a=b c",
        "--transactional",
    ]


def test_every_field_is_an_option() -> None:
    """The command's options, but for those that read files, or agree, or say where things are."""
    options = {str(name).removeprefix("--").replace("-", "_") for param in replay_command.params for name in param.opts}
    fields = {field.alias or name for name, field in ReplayForm.model_fields.items()}
    assert fields - {"topic"} <= options
    kept_back = options - fields
    assert {"positions", "transforms", "yes", "X", "b", "bootstrap_server", "archive"} <= kept_back | {
        each.lstrip("_") for each in kept_back
    }


def test_a_folder_that_others_write_to_is_believed_no_more_than_a_request() -> None:
    form = ReplayForm.model_validate(FORM)
    launch = JobLaunch(form=form.model_dump(by_alias=True), user="ada", begun_at=1)
    assert form_of(launch.form) == form
    for more in ({"X": "plugin.library.paths=/tmp/x"}, {"topic": "a b"}, {"to_topic": None}):
        with pytest.raises(UsageError, match="invalid replay request"):
            form_of({**FORM, **more})
    with pytest.raises(UsageError, match="invalid replay request"):
        form_of("{")


def test_a_command_gets_nothing_secret_in_its_arguments() -> None:
    settings = ServeSettings(
        ArchivePlace(
            S3Address("bucket", "prefix"),
            S3Settings(region="eu-1", customer_key="${env:KEY}"),
            old_format=OldFormat("delimited", b"\t|"),
        ),
        Access("127.0.0.1"),
        {"bootstrap.servers": "b:9092", "sasl.password": "se cret", "plugin.library.paths": "lib"},
        jobs="s3://bucket/jobs",
        zone=ZoneInfo("Asia/Tokyo"),
    )
    found = environment_of(settings)
    assert found["BLOCKGZ_TIMEZONE"] == "Asia/Tokyo"
    assert found["BLOCKGZ_ARCHIVE"] == "s3://bucket/prefix"
    assert (found["BLOCKGZ_REGION"], found["BLOCKGZ_CUSTOMER_KEY"]) == ("eu-1", "${env:KEY}")
    assert (found["BLOCKGZ_JOBS"], found["BLOCKGZ_BOOTSTRAP_SERVER"]) == ("s3://bucket/jobs", "b:9092")
    assert found["BLOCKGZ_KAFKA_PROPERTIES"] == "'sasl.password=se cret'"
    assert "BLOCKGZ_PROFILE" not in found
    assert OldFormat.of_options(found["BLOCKGZ_OLD_FORMAT"], found["BLOCKGZ_KEY_DELIMITER"]).delimiter == b"\t|"
    words = Replays(settings)._command(ReplayForm.model_validate(FORM), "--dry-run")
    assert "-Xplugin.library.paths=lib" in words
    assert not any("cret" in word for word in words)
    assert words[-2:] == ["--", "orders:0,2"]


def test_what_a_command_says_is_told() -> None:
    failed = CommandFailed(4, "connecting\nerror: it is gone\nwhy:   so it is\ndo:    look: elsewhere\n")
    assert (failed.what, failed.why, failed.remedy, exit_code(failed)) == (
        "it is gone",
        "so it is",
        "look: elsewhere",
        4,
    )
    assert CommandFailed(-9, "Killed").what == "the command was killed by SIGKILL"
    assert CommandFailed(7, "").what == "the command ended with exit code 7"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Replays(ServeSettings(ArchivePlace(S3Address("b", "")), Access("127.0.0.1"))).log_tail("none") == ""


def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Replays:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = ArchivePlace(LocalAddress(str(tmp_path / "archive")))
    more = {"allow_replay": True, "kafka": {"bootstrap.servers": "h:1"}, "jobs": str(tmp_path / "jobs"), **more}
    return Replays(ServeSettings(place, Access("127.0.0.1"), **more))


def report(tmp_path: Path, state: ReportedState, process: str, before: int = 0) -> None:
    progress = JobProgress(
        run="r",
        state=state,
        records=5,
        total=10,
        bytes=500,
        seconds=1.5,
        rate=None,
        records_before=before,
        updated_at=1,
        attempt_host=process,
    )
    assert ProgressFile(open_store(str(tmp_path / "jobs"), S3Settings()), "j", "r").write(progress)


def test_after_a_resume_progress_counts_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "failed", "here:1", before=7)
    found = asyncio.run(page.get("j"))
    assert (found["progress"], found["records_before"]) == ({"done": 12, "all": 17, "unit": "records"}, 7)


def test_a_job_that_starts_is_not_told_as_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "failed", "here:1")
    assert asyncio.run(page.get("j"))["state"] == "failed"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    page._begun.append(("j", process))
    page._known.clear()
    try:
        starting = asyncio.run(page.get("j"))
        assert (starting["state"], starting["actions"]) == ("planning", [])
        assert [each["state"] for each in asyncio.run(page.all())] == ["planning"]
        report(tmp_path, "complete", f"here:{process.pid}")
        assert asyncio.run(page.get("j"))["state"] == "complete"
    finally:
        process.communicate()


def test_nothing_can_be_done_with_a_job_that_was_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "complete", "here:1")
    undone = JobUndone(target="t", target_topic_id="id", records=5, host="here:2", undone_at=1)
    JobFolder(open_store(str(tmp_path / "jobs"), S3Settings()), "j").put(undone)
    job = asyncio.run(page.get("j"))
    assert (job["state"], job["actions"]) == ("undone", [])


def test_a_job_that_was_told_to_pause_is_told_to_go_on_before_it_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "running", "here:1")

    def wanted() -> str | None:
        control = read_control(open_store(str(tmp_path / "jobs"), S3Settings()), "j")
        return control and control.state

    with held(tmp_path / "blockgz" / "jobs", "j"):
        with pytest.raises(UsageError, match="cannot be resumed"):
            asyncio.run(page.resume("j"))
        asyncio.run(page.steer("j", "pause"))
        assert wanted() == "pause"
        asyncio.run(page.resume("j"))
        assert wanted() == "run"
        report(tmp_path, "paused", "here:1")
        asyncio.run(page.steer("j", "pause"))
        assert wanted() == "pause", "it reports that it is paused, but was told to go on"
        with pytest.raises(UsageError, match="cannot pause job"):
            asyncio.run(page.steer("j", "pause"))
        report(tmp_path, "running", "here:1")
        (tmp_path / "jobs" / "j" / "control.json").write_text("{")
        with pytest.raises(UsageError, match="cannot be resumed"):
            asyncio.run(page.resume("j"))


def test_two_processes_of_a_job_write_behind_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that finds the job running says so, and the other's log goes on."""
    page = page_of(tmp_path, monkeypatch)
    with replays._opened_log("j") as first:
        first.write(b"long ago\n" * 9)
        first.flush()
        with replays._opened_log("j") as second:
            second.write(b"it runs already\n")
        first.write(b"still here\n")
    assert page.log_tail("j") == "it runs already\nstill here\n"


def test_a_job_that_a_signal_ends_is_reported_with_its_name_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tmp_path, monkeypatch)
    crash = "import os, sys; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)"
    monkeypatch.setattr(page, "_command", lambda *_: [sys.executable, "-S", "-c", crash])
    with pytest.raises(CommandFailed) as failed:
        asyncio.run(page._run("j", ReplayForm.model_validate({"topic": "orders", "to_topic": "copy"})))
    assert "was killed by SIGSEGV" in failed.value.what and "core dump" in failed.value.remedy
    deadline = time.monotonic() + 30
    while "do:" not in page.log_tail("j") and time.monotonic() < deadline:
        time.sleep(0.01)
    said = "last words\nerror: the process of job j was killed by SIGSEGV\n"
    assert page.log_tail("j").startswith(said)
    assert capsys.readouterr().err.startswith(said)


def test_a_job_whose_report_is_damaged_runs_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "running", "here:1")
    (tmp_path / "jobs" / "j" / "progress.json").write_text("{")
    with held(tmp_path / "blockgz" / "jobs", "j"):
        job = asyncio.run(page.get("j"))
    assert (job["state"], "damaged" in job["failure"]["error"]) == ("running", True)
    assert asyncio.run(page.get("j"))["state"] == "ended"


def test_a_store_that_does_not_answer_says_nothing_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MemoryStore):
        def get(self, key: str) -> Any:
            if key.endswith("launch.json"):
                return None
            raise StoreUnavailable("it does not answer")

    page = page_of(tmp_path, monkeypatch)
    page.__dict__["store"] = Silent()
    with pytest.raises(StoreUnavailable):
        asyncio.run(page.get("j"))


async def test_many_who_watch_a_job_cost_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    report(tmp_path, "running", "here:1")
    looks = []
    look = page._document
    monkeypatch.setattr(page, "_document", lambda name: looks.append(name) or look(name))
    found = await asyncio.gather(*(page.watched("j") for _ in range(20)))
    assert {each["state"] for each in found} == {"interrupted"}
    assert (await page.watched("j"), looks) == (found[0], ["j"])
    monkeypatch.setattr(replays, "LOOK_SECONDS", 0.0)
    await page.watched("j")
    assert looks == ["j", "j"]
    with pytest.raises(NotInArchive):
        await page.watched("none")


async def test_a_store_of_jobs_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    class Hanging(MemoryStore):
        def get(self, key: str) -> Any:
            goes_on.wait()
            return super().get(key)

    page = page_of(tmp_path, monkeypatch)
    page.__dict__["store"] = Hanging()
    waiting = [asyncio.ensure_future(page.get(f"j{number}")) for number in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 17), 10) == 17
    goes_on.set()
    await asyncio.wait(waiting)


def test_plans_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    begun = []

    async def endless(form: ReplayForm) -> dict[str, Any]:
        begun.append(form)
        return await asyncio.Event().wait() or {}

    async def run() -> None:
        monkeypatch.setattr(page, "_planned", endless)
        form = ReplayForm.model_validate(FORM)
        plans = [asyncio.ensure_future(page.plan(form)) for _ in range(MOST_PLANS)]
        while len(begun) < MOST_PLANS:
            await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match="are being planned"):
            await page.plan(form)
        for plan in plans:
            plan.cancel()
        await asyncio.wait(plans)
        plans = [asyncio.ensure_future(page.plan(form))]
        while len(begun) <= MOST_PLANS:
            await asyncio.sleep(0)
        plans[0].cancel()
        await asyncio.wait(plans)

    asyncio.run(run())


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
