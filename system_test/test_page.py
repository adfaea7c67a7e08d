"""The page in a real browser: looking at an archive."""

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from index_format.records import Record
from system_test.support.pages import DAY_MS, FIRST_MS, Served, Watched, serving, shop_archive
from tests.support.archives import ArchiveWriter, records

HOSTILE = (
    *(b"<script>document.title='owned'</script>", b'"><img src=x onerror="document.title=1">'),
    *("\u202egnp.exe\u2066".encode(), b"\x1b[31m\x1b]8;;http://evil.example\x07", b"\xff\xfe\x00\x01"),
    *(b"{{7*7}} ${7*7} <!-- --> ]]>", b'{"a":"</script><script>alert(1)</script>"}', b"x" * 20_000_000),
)
NO_DATE_MS = 9_000_000_000_000_000
"""A timestamp beyond those that browsers have dates for."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("shop")
    shop_archive(root / "archive")
    ArchiveWriter(root / "archive").partition("hostile", 0).commit(
        [
            Record(number, time, 0, content[:1000], content, ((content[:20].decode(errors="replace"), content[:99]),))
            for number, (content, time) in enumerate(zip(HOSTILE, (NO_DATE_MS, *[FIRST_MS] * 7), strict=True))
        ]
    )
    with serving(root / "archive", env={"XDG_STATE_HOME": str(root / "state")}) as server:
        yield server


def offsets(page: Page) -> list[int]:
    """Those of the records that a page shows."""
    return [int(text) for text in page.locator("table.records tbody tr:not(.missing) td:first-child").all_inner_texts()]


def test_every_page_opens_in_light_and_dark(browser: Browser, served: Served) -> None:
    papers = set()
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        watched = Watched(context.new_page())
        for path in ("/", "/topics/orders", "/topics/orders/0", "/topics/orders/0/20", "/search", "/replay", "/jobs"):
            watched.open(served.url + path)
        for path in ("/verify", "/archivers", "/api", "/login"):
            page = watched.open(served.url + path)
            expect(page.locator("h1")).to_be_visible()
        papers.add(watched.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert watched.errors == []
        context.close()
    assert len(papers) == 2, "dark is another colour"


def test_the_coverage_map_tells_seeks_and_looks_closer(watched: Watched, served: Served) -> None:
    page = watched.open(f"{served.url}/topics/orders")
    picture = page.locator("svg.coverage")
    assert "gap: offsets" in " ".join(picture.locator("g.row rect.g title").all_text_contents())
    row = picture.locator('g.row[data-partition="1"]')
    box = row.locator("rect.n").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.click(box["x"] + box["width"] * 0.25, middle)
    page.wait_for_url("**/topics/orders/1?at=*")
    # A quarter of the way: the first day of four.
    first = page.locator("table.records tbody tr td:nth-child(2)").first.inner_text()
    assert abs(page.evaluate("text => Date.parse(text)", first) - (FIRST_MS + DAY_MS)) < DAY_MS / 8
    page.go_back()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, middle)
    expect(picture.locator(".chosen")).to_be_visible()
    page.mouse.up()
    page.wait_for_url("**from=*to=*")
    assert int(page.locator("svg.coverage").get_attribute("data-start") or 0) > FIRST_MS + DAY_MS
    page.get_by_role("link", name="show everything").click()
    page.get_by_role("link", name="offset", exact=True).click()
    expect(page.locator('svg.coverage[data-scale="offset"]')).to_be_visible()


def test_records_by_offset_time_and_from_the_end(watched: Watched, served: Served) -> None:
    page = watched.open(f"{served.url}/topics/orders/1")
    newest = offsets(page)
    assert (len(newest), newest[-1]) == (50, 2099)
    seen = list(newest)
    for _ in range(3):
        page.get_by_role("link", name="before").click()
        page.wait_for_url("**before=*")
        found = offsets(page)
        assert found[-1] < seen[0]
        seen = found + seen
        page.wait_for_load_state()
    page.get_by_role("link", name="after").click()
    page.wait_for_load_state()
    assert offsets(page)[0] in seen
    seek = page.get_by_label("Seek")
    seek.fill("990")
    seek.press("Enter")
    page.wait_for_url("**at=990")
    assert offsets(page)[:2] == [990, 991]
    gap = page.locator("tr.missing.gap")
    expect(gap).to_contain_text("1000..1099")
    expect(gap).to_contain_text("retention")
    assert page.locator("tr.missing.hole").count() > 1
    assert "requests" in page.locator(".cost").inner_text()
    page.get_by_label("Seek").fill(f"@{FIRST_MS + DAY_MS}")
    page.get_by_role("button", name="Go").click()
    page.wait_for_url("**at=%40*")
    assert offsets(page)[0] == 500
    page.get_by_label("Seek").fill("the day before")
    page.get_by_role("button", name="Go").click()
    expect(page.locator("h1")).to_contain_text("is not a position")
    assert watched.refusals == 1


def test_one_record_in_every_form(watched: Watched, served: Served) -> None:
    page = watched.open(f"{served.url}/topics/orders/0?at=20")
    page.get_by_role("link", name="25", exact=True).click()
    page.wait_for_url("**/topics/orders/0/25")
    tree = page.locator("section.content .tree").last
    for text in ("customer", "Köln", "object of 2", "array of 1"):
        expect(tree).to_contain_text(text)
    value = page.locator("section.content", has_text="Value").last
    value.locator("summary", has_text="Hex").click()
    expect(value).to_contain_text("7b 22 6f 72 64 65 72")
    page.get_by_role("button", name="copy as command").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("replayer get orders:0:25 -a file://")
    with page.expect_download() as saved:
        value.get_by_role("link", name="Save").click()
    assert json.loads(saved.value.path().read_bytes())["order"] == 25
    page.goto(f"{served.url}/topics/orders/0/3")
    expect(page.locator("h1")).to_contain_text("there is no record orders:0:3")


def test_a_search_says_what_it_reads_and_shows_what_it_finds(watched: Watched, served: Served) -> None:
    page = watched.open(f"{served.url}/topics/orders/2?at=0")
    page.get_by_label("Key").fill("customer-42")
    page.get_by_role("button", name="Find from here on").click()
    expect(page.locator("form.panel")).to_contain_text("The search reads")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("[data-state]")).to_have_text("complete")
    found = page.locator("[data-found] tr")
    assert found.count() > 15
    assert {row.split("\t")[3] for row in found.all_inner_texts()} == {"customer-42"}
    found.first.get_by_role("link").click()
    page.wait_for_url("**/topics/orders/2/42")
    page.goto(f"{served.url}/jobs")
    expect(page.locator("tbody tr").first).to_contain_text("customer-42 in orders:2")


def test_a_page_that_refreshes_stays_where_it_was_scrolled_to(watched: Watched, tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(3)))
    partitions = [{"topic": "orders", "partition": number, "state": "archiving"} for number in range(300)]
    versions = map(str, itertools.count())

    class Archiver(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = {"version": next(versions), "archive": "a", "paused": False, "partitions": partitions}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Archiver) as archiver:
        threading.Thread(target=archiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{archiver.server_address[1]}"
        with serving(tmp_path, "--archiver", url, env={"XDG_STATE_HOME": str(tmp_path / "state")}) as server:
            page = watched.open(f"{server.url}/archivers")
            before = page.locator("h2").inner_text()
            page.evaluate("scrollTo(0, 2000)")
            assert page.evaluate("scrollY") == 2000
            expect(page.locator("h2")).not_to_have_text(before)
            assert page.evaluate("scrollY") == 2000
            page.goto("about:blank")
        archiver.shutdown()
    assert watched.errors == []


def test_hostile_records_do_nothing(watched: Watched, served: Served) -> None:
    page = watched.open(f"{served.url}/topics/hostile/0?at=earliest")
    assert len(offsets(page)) >= 7
    for number in range(len(HOSTILE)):
        page = watched.open(f"{served.url}/topics/hostile/0/{number}")
        assert page.title() == f"hostile:0:{number} - blockgz"
        assert page.locator("img, iframe, main script").count() == 0
        assert page.evaluate("document.documentElement.outerHTML.length") < 2_000_000
    page = watched.open(f"{served.url}/search?topic=hostile&grep=script")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("[data-state]")).to_have_text("complete")
    expect(page.locator("[data-found]")).to_contain_text("<script>")
    expect(page.locator("[data-found] tr")).to_have_count(2)
    expect(page.locator("[data-found]")).to_contain_text(str(NO_DATE_MS))
    assert page.locator("main script, main img").count() == 0


def test_every_control_is_reached_by_keyboard(watched: Watched, served: Served) -> None:
    for path in ("/", "/topics/orders", "/topics/orders/0", "/topics/orders/0/25", "/search", "/replay", "/verify"):
        page = watched.open(served.url + path)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        wanted = page.evaluate(
            "[...document.querySelectorAll('a, button, input:not([type=hidden]), select, textarea, summary')]"
            ".filter(e => e.checkVisibility() && !e.closest('.skip')).length"
        )
        for _ in range(wanted + 2):
            assert page.evaluate(
                "e = document.activeElement, e.dataset.reached = 1,"
                "e === document.body || getComputedStyle(e).outlineStyle !== 'none'"
            )
            page.keyboard.press("Tab")
        assert page.locator("body [data-reached]").count() == wanted + 1, path
    page = watched.open(served.url)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_thousand_topics(watched: Watched, tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "archive")
    for number in range(1000):
        writer.partition(f"topic-{number:04}", 0).commit(records([1, 2]))
    with serving(tmp_path / "archive") as server:
        page = watched.open(server.url)
        expect(page.locator("dl.facts")).to_contain_text("1,000")
        assert page.locator("tbody tr").count() == 100
        page.get_by_role("link", name="next").click()
        expect(page.locator("tbody tr").first).to_contain_text("topic-0100")
        page.get_by_label("Name").fill("0777")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.goto("about:blank")


def test_logging_in(watched: Watched, tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "archive").partition("orders", 0).commit(records(range(5)))
    (tmp_path / "token").write_text("correct-horse-battery")
    with serving(tmp_path / "archive", "--token-file", tmp_path / "token") as server:
        page = watched.open(f"{server.url}/topics/orders")
        expect(page.locator("h1")).to_have_text("Log in")
        page.get_by_label("Token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not the token")
        page.get_by_label("Token").fill("correct-horse-battery")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/orders")
        expect(page.locator("h1")).to_have_text("orders")
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("h1")).to_have_text("Log in")
        page.goto(server.url)
        expect(page.locator("h1")).to_have_text("Log in")
        page.goto("about:blank")
    assert watched.refusals == 1
