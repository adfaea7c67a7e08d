"""The page in a real browser: replays with a real broker, verifications, archivers."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from system_test.support.archiving import Site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.pages import Served, Watched, serving, shop_archive
from system_test.support.programs import start
from system_test.support.topics import NewRecord, fill_topic, read
from system_test.support.waiting import wait_until
from tests.support.archives import PartitionWriter

SECONDS = 40.0


@dataclass
class Shop:
    """An archive, a broker, and what belongs to both."""

    root: Path
    bootstrap: str
    topic: str
    written: list[PartitionWriter]

    @contextmanager
    def serving(self, *options: object, writes: bool = True) -> Iterator[Served]:
        more = ["--allow-replay"] if writes else []
        env = {"XDG_STATE_HOME": str(self.root / "state")}
        with serving(self.root / "archive", "-b", self.bootstrap, *more, *options, env=env) as server:
            yield server


@pytest.fixture
def shop(broker: KafkaBroker, topic_name: str, tmp_path: Path) -> Shop:
    return Shop(tmp_path, broker.bootstrap, topic_name, shop_archive(tmp_path / "archive"))


def fill_in(page: Page, shop: Shop, **fields: str) -> None:
    """The form of a replay into a topic that is made."""
    page.locator("summary", has_text="Changes to records").click()
    page.get_by_label("Topic", exact=True).fill("orders")
    page.get_by_label("To topic").fill(shop.topic)
    page.get_by_label("create the topic if it is missing").check()
    page.get_by_label("Settings of the new topic").fill("retention.ms=-1")
    for name, value in fields.items():
        page.get_by_label(name.replace("_", " ")).fill(value)


def begin(page: Page, shop: Shop, url: str, **fields: str) -> str:
    """Plans and begins a replay; the name of its job."""
    page.goto(f"{url}/replay")
    fill_in(page, shop, **fields)
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("h1")).to_contain_text(f"orders → {shop.topic}")
    page.get_by_label(re.compile("Type")).fill(shop.topic)
    page.get_by_role("button", name="Replay").click()
    page.wait_for_url("**/jobs/*")
    return page.url.rpartition("/")[2]


def job(url: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{url}/api/v1/jobs/{name}").json()
    return found


def steer(page: Page, button: str) -> None:
    """Sends a form, and waits for its answer: a click that comes before would take the form back."""
    with page.expect_navigation():
        page.get_by_role("button", name=button).click()


def state(page: Page, text: str) -> None:
    expect(page.locator("[data-state]")).to_have_text(text, timeout=SECONDS * 1000)


def values(shop: Shop) -> list[list[bytes | None]]:
    return [[record.value for record in read(shop.bootstrap, shop.topic, partition)] for partition in range(3)]


def test_a_replay_is_planned_refused_confirmed_steered_and_proved(watched: Watched, shop: Shop) -> None:
    with shop.serving() as server:
        page = watched.open(f"{server.url}/topics/orders")
        page.get_by_role("link", name="Replay").last.click()
        page.get_by_label("To topic").fill("orders")
        page.get_by_role("button", name="Plan").click()
        expect(page.locator("main")).to_contain_text("What to do:")
        assert watched.refusals == 1
        expect(page.get_by_label("To topic")).to_have_value("orders")
        fill_in(page, shop, Rate="400/s")
        page.get_by_role("button", name="Plan").click()
        expect(page.locator("main")).to_contain_text(" records (")
        page.get_by_label(re.compile("Type")).fill("another")
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_role("alert")).to_contain_text("the replay is not confirmed")
        expect(page.get_by_label("To topic")).to_have_value(shop.topic)
        expect(page.get_by_label("Settings of the new topic")).to_have_value("retention.ms=-1")
        name = begin(page, shop, server.url, Rate="400/s", Compression="gzip")
        state(page, "running")
        steer(page, "Pause")
        state(page, "paused")
        page.get_by_label("Rate").fill("100000/s")
        steer(page, "Change")
        steer(page, "Resume")
        state(page, "complete")
        expect(page.locator("[data-lanes] tr")).to_have_count(3)
        page.get_by_role("button", name="Prove this copy").click()
        page.wait_for_url("**/jobs/prove-*")
        state(page, "complete")
        expect(page.locator("[data-result] .verdict")).to_have_text("OK")
        assert job(server.url, name)["state"] == "complete"
    assert values(shop) == [[record.value for record in partition.records] for partition in shop.written]


def test_a_job_outlives_the_page_and_a_job_that_died_is_resumed(watched: Watched, shop: Shop) -> None:
    with shop.serving() as server:
        name = begin(watched.open(server.url), shop, server.url, Rate="300/s")
        state(watched.page, "running")
        watched.page.goto("about:blank")
        server.program.kill()
    with shop.serving() as server:
        page = watched.open(f"{server.url}/jobs/{name}")
        state(page, "running")
        steer(page, "Pause")
        state(page, "paused")
        held = job(server.url, name)["progress"]["done"]
        assert held > 0
        subprocess.run(["pkill", "-KILL", "-f", f"job={name} "], check=True)
        state(page, "interrupted")
        steer(page, "Resume")
        page.wait_for_url(f"**/jobs/{name}")
        page.get_by_label("Rate").fill("")
        steer(page, "Change")
        state(page, "complete")
        page.get_by_role("button", name="Prove this copy").click()
        state(page, "complete")
        expect(page.locator("[data-result] .verdict")).to_have_text(re.compile("OK|WARNING"))


def test_a_page_that_only_reads(watched: Watched, shop: Shop) -> None:
    with shop.serving(writes=False) as server:
        page = watched.open(f"{server.url}/replay")
        expect(page.locator("main")).to_contain_text("This page only plans")
        fill_in(page, shop)
        page.get_by_role("button", name="Plan").click()
        expect(page.locator("main")).to_contain_text("This page only reads")
        assert page.get_by_role("button", name="Replay").count() == 0
        answer = httpx2.post(
            f"{server.url}/api/v1/jobs",
            json={"kind": "replay", "confirm": "x", "replay": {"topic": "orders", "to_topic": "x"}},
        )
        assert (answer.status_code, answer.json()["error"]) == (400, "this page only reads")


def test_a_verification_becomes_a_signed_report(watched: Watched, shop: Shop) -> None:
    private, public = shop.root / "key.pem", shop.root / "pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    (shop.root / "reports").mkdir()
    with shop.serving("--reports", shop.root / "reports", "--sign-key", private, "--key", public) as server:
        page = watched.open(f"{server.url}/verify")
        page.get_by_label("Share of the chunks").fill("100")
        page.get_by_role("button", name="Verify").click()
        state(page, "complete")
        expect(page.locator("[data-result] .verdict")).to_have_text("WARNING")
        page.goto(f"{server.url}/verify")
        expect(page.locator("tbody tr")).to_contain_text("good")
        page.locator("tbody a").click()
        expect(page.locator("h1")).to_contain_text("WARNING")
        page.goto(server.url)
        expect(page.locator("dl.facts")).to_contain_text("WARNING")


def test_archivers_tell_of_themselves(watched: Watched, site: Site, topic_name: str) -> None:
    fill_topic(site.bootstrap, topic_name, [NewRecord(b"%d" % number) for number in range(100)], partitions=2)
    run = ("run", topic_name, "--http", "127.0.0.1:0", "--chunk-interval", "1s", "--log-format", "json", "-v")
    with start("archiver", *run, *site.kafka, *site.archive, env=site.env) as archiver:
        listening = re.compile(r'"url": ?"(http://[^"]+)"')
        found = archiver.wait_for(lambda: listening.search(archiver.stderr), SECONDS, "its address")
        wait_until(lambda: _durable(found[1]) == 100, SECONDS, "the records to be archived")
        with serving(Path(str(site.address).removeprefix("file://")), "--archiver", found[1], env=site.env) as server:
            page = watched.open(f"{server.url}/archivers")
            expect(page.locator("tbody tr")).to_have_count(2)
            expect(page.locator("tbody")).to_contain_text("archiving")
            page = watched.open(server.url)
            expect(page.locator("thead")).to_contain_text("headroom")
            archiver.signal(SIGKILL)
            archiver.wait(SECONDS)
            wait_until(lambda: "does not answer" in _archivers(page, server.url), SECONDS, "the archiver to be missed")
            page.goto("about:blank")  # before the server ends: a request that it breaks off is no fault of the page


def _archivers(page: Page, url: str) -> str:
    page.goto(f"{url}/archivers")
    return page.locator("main").inner_text()


def _durable(url: str) -> int:
    partitions = httpx2.get(f"{url}/status").json()["partitions"]
    return sum(each.get("durable_offset") or 0 for each in partitions)
