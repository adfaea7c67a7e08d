"""Pages as browsers get them; system_test/test_page.py has a real one."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from blockgz.errors import MASK
from blockgz.store.address import S3Settings
from index_format.objects import Gap
from index_format.records import Record
from replayer.serve import archive_view
from replayer.serve.archivers import ArchivedNow, Archiver, Archivers
from tests.support.archives import ArchiveWriter, records
from tests.support.encryption import key_line
from tests.support.maintained import Maintainer
from tests.support.page_client import BROWSER, URL, form_token, get_page, page_client, send_form, settings_of
from tests.support.sampling import seeded_random

SCRIPT = b"<script>alert(1)</script>"
OVERRIDE = "\u202e\u2066abc".encode()
LINK = b'"><img src=x onerror=alert(1)>'
ESCAPE = b"\x1b]8;;http://evil.example\x07\x9b31m"
HOSTILE = (SCRIPT, OVERRIDE, LINK, ESCAPE, b"\xff\xfe\x00", b"'; DROP TABLE", b"{{7*7}}{% raise %}", b"x" * 3_000_000)


class Markup(HTMLParser):
    """What a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.handlers += [name for name in given if name.startswith("on") or name == "style"]
        self.links += [given[name] or "" for name in ("href", "src", "action") if name in given]


@pytest.fixture
def asking(tmp_path: Path, writer: ArchiveWriter) -> Iterator[TestClient]:
    with page_client(settings_of(tmp_path)) as client:
        yield client


def check(text: str) -> Markup:
    """The page runs nothing but its own module, and holds nothing that a browser obeys."""
    markup = Markup(text)
    assert markup.scripts == ["/static/page.js"]
    assert markup.handlers == []
    assert "img" not in markup.tags and "style" not in markup.tags
    assert all(link.startswith(("/", "?", "#")) for link in markup.links), markup.links
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    return markup


def test_hostile_records_are_shown_harmlessly(asking: TestClient, writer: ArchiveWriter) -> None:
    written = [
        Record(number, 1_760_000_000_000, 0, content, content, ((f"h{number}" + SCRIPT.decode(), content), ("n", None)))
        for number, content in enumerate(HOSTILE)
    ]
    writer.partition("hostile", 0).commit(written)
    listing = get_page(asking, "/topics/hostile/0?at=earliest")
    check(listing)
    assert "&lt;script&gt;alert(1)" in listing
    for number in range(len(HOSTILE)):
        text = get_page(asking, f"/topics/hostile/0/{number}")
        check(text)
        assert len(text) < 1_000_000
    assert "{{7*7}}" in get_page(asking, "/topics/hostile/0/6")


@pytest.mark.slow
@pytest.mark.parametrize("given", ["<script>alert(1)</script>", '"><b onclick=x>', "\u202eabc", "{{7*7}}", "%00"])
def test_what_a_request_brings_is_shown_harmlessly(asking: TestClient, writer: ArchiveWriter, given: str) -> None:
    writer.partition("orders", 0).commit(records(range(3)))
    for path in ("/", "/search", "/replay", "/topics/orders/0", "/login"):
        for name in ("q", "topic", "grep", "at", "next", "from"):
            answer = asking.get(path, params={name: given}, headers=BROWSER)
            assert answer.status_code in (200, 400, 404), answer.text
            if "Reading the archive" not in answer.text:
                assert set(Markup(answer.text).scripts) <= {"/static/page.js"}
                assert not Markup(answer.text).handlers


@pytest.mark.slow
def test_the_overview(asking: TestClient, writer: ArchiveWriter) -> None:
    for number in range(250):
        writer.partition(f"topic-{number:03}", 0).commit(records(range(2)))
    first = get_page(asking, "/")
    check(first)
    assert (first.count('href="/topics/'), "page 1 of 3" in first) == (100, True)
    assert "topic-249" in get_page(asking, "/?number=3")
    found = get_page(asking, "/?q=PIC-24")
    assert found.count('href="/topics/') == 10
    assert "No topic has" in get_page(asking, "/?q=nothing")


def test_a_partition_that_is_gone_is_told(asking: TestClient, writer: ArchiveWriter, tmp_path: Path) -> None:
    for number in range(2):
        writer.partition("orders", number).commit(records(range(2)))
    (tmp_path / "topic=orders" / "partition=00001").rename(tmp_path / "elsewhere")
    assert "1 partitions are missing" in get_page(asking, "/")


def test_coverage_records_and_one_record(asking: TestClient, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(60)))
    partition.commit(records(range(100, 160)), gaps=[Gap(60, 90, "retention")])
    for scale in ("time", "offset"):
        text = get_page(asking, f"/topics/orders?scale={scale}")
        check(text)
        assert f'data-scale="{scale}"' in text and "gap: offsets [60..90) (retention)" in text
    narrowed = get_page(asking, "/topics/orders?scale=offset&from=100&to=120")
    assert 'data-start="100" data-end="120"' in narrowed and "show everything" in narrowed
    newest = get_page(asking, "/topics/orders/0")
    assert 'href="?before=110"' in newest and "the end" in newest
    before = get_page(asking, "/topics/orders/0?before=110")
    check(before)
    assert "gap: retention" in before and "hole: no record" in before and ">60..89<" in before
    assert re.search(r"[\d.]+ k?B?(bytes)? of [\d.]+ kB, \d+ requests", before)
    one = get_page(asking, "/topics/orders/0/100")
    assert "replayer get orders:0:100 -a file://" in one and "value of 100" in one
    moved = asking.get("/topics/orders/0/latest", headers=BROWSER)
    assert (moved.status_code, moved.headers["location"]) == (303, "/topics/orders/0/159")
    hole = get_page(asking, "/topics/orders/0/95", 404)
    check(hole)
    assert "the log held no record there" in hole
    assert 'href="/topics/orders/0?at=95"' in hole and "<code>replayer describe TOPIC</code>" in hole
    assert "Show the records around it" not in get_page(asking, "/topics/orders/0/nowhere", 400)


def test_gaps_for_reasons_that_this_version_does_not_know_are_told(asking: TestClient, writer: ArchiveWriter) -> None:
    partition = writer.partition("a.b-c_d", 0)
    partition.commit(records(range(5)))
    partition.commit(records(range(20, 30)), gaps=[Gap(5, 15, "Swallowed_by-a-whale")])
    for path in ("/topics/a.b-c_d", "/topics/a.b-c_d/0?at=3", "/topics/a.b-c_d/0/7"):
        text = get_page(asking, path, 404 if path.endswith("/7") else 200)
        check(text)
        assert "Swallowed_by-a-whale" in text, path
    found = asking.get("/api/v1/topics/a.b-c_d/partitions/0/page?at=3").json()["items"]
    assert [item["missing"]["kind"] for item in found if "missing" in item] == ["gap", "hole"]


def test_an_empty_archive(asking: TestClient) -> None:
    """It was made, but nothing was archived."""
    for path in ("/", "/topics/orders", "/topics/orders/0", "/topics/orders/0/7"):
        text = asking.get(path, headers=BROWSER)
        assert text.status_code in (200, 404, 503), path
        assert "bug" not in text.text


def test_a_topic_that_was_created_again(asking: TestClient, writer: ArchiveWriter) -> None:
    older = writer.partition("orders", 0)
    older.commit(records(range(5)))
    older.hand_over("orders~2")
    writer.partition("orders", 0, incarnation=2).commit(records(range(3)))
    newest = get_page(asking, "/topics/orders")
    check(newest)
    assert "3 records in 1" in newest and 'href="/topics/orders~1"' in newest
    assert "5 records in 1" in get_page(asking, "/topics/orders~1")
    assert "/topics/orders~1/0/4" in get_page(asking, "/topics/orders~1/0")


def test_json_is_a_tree(asking: TestClient, writer: ArchiveWriter) -> None:
    value = b'{"id":1,"items":[{"name":"<b>"}],"big":12345678901234567890}'
    writer.partition("orders", 0).commit([Record(0, 1, 0, None, value, ())])
    text = get_page(asking, "/topics/orders/0/0")
    check(text)
    assert "array of 1" in text and "12345678901234567890" in text and "&lt;b&gt;" in text


def test_a_record_with_half_a_character_or_many_headers_is_shown(asking: TestClient, writer: ArchiveWriter) -> None:
    many = tuple((f"name-{number}", b"x") for number in range(5000))
    half = Record(0, 1_760_000_000_000, 0, b"k", b'{"\\ud800":"\\udfff"}', ())
    writer.partition("orders", 0).commit([half, Record(1, 1_760_000_000_000, 0, b"k", b"v", many)])
    assert "\\ud800" in get_page(asking, "/topics/orders/0/0")
    crowded = get_page(asking, "/topics/orders/0/1")
    assert ("name-99 " in crowded, "name-100 " in crowded, "4,900 more headers" in crowded) == (True, False, True)


def test_an_archive_that_went_away_is_told(
    asking: TestClient, writer: ArchiveWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.partition("orders", 0).commit(records(range(2)))
    for path in ("/", "/topics/orders"):
        assert "cannot be read now" not in get_page(asking, path)
    monkeypatch.setattr(archive_view, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(archive_view, "SHARE_OF_TIME", 1e9)
    for path in tmp_path.iterdir():
        path.rename(tmp_path.parent / f"gone-{tmp_path.name}-{path.name}")
    give_up = time.monotonic() + 30  # the view is fresh for 10 s
    for path in ("/", "/topics/orders"):
        while "cannot be read now" not in (text := get_page(asking, path)):
            assert time.monotonic() < give_up
        assert 'href="/topics/orders' in text


def test_archivers_that_do_not_answer_are_told(tmp_path: Path, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(2)))
    with page_client(settings_of(tmp_path, archivers=("http://127.0.0.1:1",))) as asking:
        assert "1 of 1 archivers do not answer" in get_page(asking, "/")


@pytest.mark.parametrize("charset", ["utf-8", "unicode_escape", "punycode", "undefined"])
def test_only_a_form_is_taken_for_one(asking: TestClient, charset: str) -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n\\ud800\r\n--B--\r\n'
    sent = {"content-type": f"multipart/form-data; boundary=B; charset={charset}"}
    assert asking.post("/verify", content=body, headers=sent).status_code == 415


@pytest.mark.slow
def test_every_page_opens_and_refuses_what_it_must(asking: TestClient, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(3)))
    for path in ("/", "/search", "/replay", "/jobs", "/verify", "/archivers", "/api", "/login"):
        check(get_page(asking, path))
    assert "start it with -b" in get_page(asking, "/replay")
    assert asking.post("/replay/plan", data={"topic": "orders"}, headers=BROWSER).status_code == 400
    refused = send_form(asking, "/replay/plan", topic="orders", to_topic="copy")
    assert refused.status_code == 400 and "this page knows no Kafka cluster" in refused.text
    begun = send_form(asking, "/replay/begin", asked='{"topic":"orders","to_topic":"copy"}', confirm="copy")
    assert begun.status_code == 400 and "this page only reads" in begun.text
    assert send_form(asking, "/replay/begin", asked="{", confirm="copy").status_code == 400
    assert send_form(asking, "/jobs/none/cancel").status_code == 404
    assert send_form(asking, "/jobs/none/explode").status_code == 404
    assert send_form(asking, "/verify", sample="none").status_code == 400


FILLED = {
    **{"topic": "orders:0", "to_topic": 'copy-"2', "from": "5", "to": "@9", "at_rule": "first", "rate": "10/s"},
    **{"job": "mine", "transactional": "on", "append": "on", "key": "one\ntwo", "grep": "<b>", "on_damage": "skip"},
    **{"add_header": "a=1\nb=2", "tombstones": "drop", "retention": "hold", "speed": "2x"},
}


class Typed(HTMLParser):
    """What the forms of a page hold, by the fields' names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._inside, self._is_text = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.fields[name] = "on" if given.get("type") == "checkbox" else given.get("value") or ""
        if tag in ("select", "textarea"):
            self._inside, self.fields[name] = name, ""
        self._is_text = tag == "textarea"
        if tag == "option" and "selected" in given:
            self.fields[self._inside] = given["value"] or ""

    def handle_data(self, data: str) -> None:
        if self._is_text:
            self.fields[self._inside] = (self.fields[self._inside] + data).removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        self._is_text = self._is_text and tag != "textarea"


def test_a_refused_form_keeps_what_was_typed(asking: TestClient, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(3)))
    refused = send_form(asking, "/replay/plan", **FILLED)
    check(refused.text)
    assert refused.status_code == 400 and "invalid replay request" in refused.text
    assert FILLED.items() <= Typed(refused.text).fields.items()
    asked = '{"topic":"orders","to_topic":"copy","key":["a","b"],"rate":"5/s"}'
    unconfirmed = send_form(asking, "/replay/begin", asked=asked, confirm="other")
    assert unconfirmed.status_code == 400
    kept = {"topic": "orders", "to_topic": "copy", "key": "a\nb", "rate": "5/s"}
    assert kept.items() <= Typed(unconfirmed.text).fields.items()
    sent = {"topics": "orders nothing", "depth": "records", "sample": "a lot"}
    assert sent.items() <= Typed(send_form(asking, "/verify", **sent).text).fields.items()
    sought = {"topic": "orders", "from": "the day before", "to": "", "key": "7", "header": "", "grep": ""}
    for answer in (asking.get("/search", params=sought, headers=BROWSER), send_form(asking, "/search", **sought)):
        assert answer.status_code == 400 and "is not a position" in answer.text
        assert sought.items() <= Typed(answer.text).fields.items()


def test_commands_carry_what_the_page_was_started_with(tmp_path: Path, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(3)))
    keys = tmp_path.parent / f"{tmp_path.name}.keys"
    keys.write_text(key_line(1))
    settings = settings_of(tmp_path, jobs="s3://b/jobs", kafka=KAFKA, zone=ZoneInfo("Europe/Berlin"))
    s3 = S3Settings("http://127.0.0.1:9", "eu-west-1", proxy_url="http://me:secret@proxy:1")
    settings = replace(settings, place=replace(settings.place, s3=s3, keys=f"file:{keys}", max_block_bytes=10**6))
    common = (
        f"-a file://{tmp_path} --endpoint-url http://127.0.0.1:9 --region eu-west-1 --proxy-url 'http://***@proxy:1'"
    )
    common = f"{common} --keys file:{keys} --max-block-bytes 1000000"
    with page_client(settings) as asking:
        for path, words in (
            ("/topics/orders", "replayer coverage orders"),
            ("/topics/orders/0?at=1", "replayer cat orders:0 --from 1 --to 3"),
            ("/topics/orders/0/1", "replayer get orders:0:1"),
        ):
            assert f"<code>{words} {common}</code>" in unescape(get_page(asking, path)).replace(MASK, "***"), path
    of_cluster = settings.command("replayer", "replay", "orders", of_cluster=True)
    assert "-b b:1 --jobs s3://b/jobs --timezone Europe/Berlin -X client.id=x -X 'sasl.password=" in of_cluster
    assert "secret" not in of_cluster


KAFKA = {"bootstrap.servers": "b:1", "client.id": "x", "sasl.password": "secret"}


def test_partitions_that_stand_still_are_on_the_first_page(
    tmp_path: Path, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        writer.partition("orders", number).commit(records(range(2)))
    writer.remove(writer.partition("orders", 1).keys.marker)
    fields = {"remedy": "rebuild it: `archiver repair index orders:7`", "failure": "an index is missing"}
    stopped = ArchivedNow("orders", 7, "stopped", **fields)
    waiting = ArchivedNow("orders", 8, "archiving")
    archiver = Archiver(url="u", version="1", archive="a", paused=False, partitions=(stopped, waiting))

    async def every(*_: object) -> tuple[Archiver, ...]:
        return (archiver,)

    monkeypatch.setattr(Archivers, "all", every)
    with page_client(settings_of(tmp_path)) as asking:
        text = get_page(asking, "/")
    check(text)
    assert "2 partitions stand still" in text and "an index is missing" in text
    assert "<code>archiver repair index orders:7</code>" in text
    assert re.search(r"orders:1</a>: .*To get it going: .*archiver repair", text) and "orders:8" not in text


def test_a_search_is_planned_then_begun(asking: TestClient, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(100)))
    planned = get_page(asking, "/search?topic=orders&grep=value+of+5")
    check(planned)
    assert "100 records" in planned
    begun = send_form(asking, "/search", topic="orders", grep="value of 5", key="", header="", **{"from": "", "to": ""})
    assert begun.status_code == 303
    check(get_page(asking, begun.headers["location"]))


WORDS = ("", "0", "-1", "latest", "-5", "9" * 30, "@1760000000", "-1h", "\u202e", "<script>", "..", "a b", "orders")
WORDS += ("orders~1", "orders:0,2-4", "(", "\x00", "x" * 3000, "'", "{{7}}", "time", "offset", "none")
ASKED = (
    "/topics/{}",
    "/topics/orders?scale={}&from={}&to={}&number={}",
    "/topics/{}/{}",
    "/topics/orders/{}?at={}&before={}",
)
ASKED += (
    "/topics/orders/0/{}",
    "/search?topic={}&from={}&to={}&key={}&grep={}&header={}",
    "/jobs/{}",
    "/verify/{}",
    "/?q={}",
)
SENT = ("/search", "/verify", "/replay/begin", "/jobs/{}/{}", "/jobs/{}/rate", "/jobs/{}/prove", "/login")
FIELDS = (
    "topic",
    "from",
    "to",
    "key",
    "header",
    "grep",
    "asked",
    "confirm",
    "rate",
    "sample",
    "depth",
    "topics",
    "next",
)


@pytest.mark.slow
def test_requests_by_chance_meet_no_bug(asking: TestClient, writer: ArchiveWriter) -> None:
    rng = seeded_random()
    writer.partition("orders", 0).commit(records(range(100)))
    csrf = form_token(asking)

    def path_of(paths: tuple[str, ...]) -> str:
        path = rng.choice(paths)
        return path.format(*(quote(rng.choice(WORDS), safe="") for _ in range(path.count("{}"))))

    for _ in range(300):
        if rng.random() < 0.7:
            answer = asking.get(path_of(ASKED), headers=BROWSER if rng.random() < 0.8 else {})
        else:
            fields = {name: rng.choice(WORDS) for name in rng.sample(FIELDS, 6)}
            answer = asking.post(path_of(SENT), data={"csrf": csrf, **fields}, headers=BROWSER | {"origin": URL})
        assert answer.status_code < 500, f"{answer.request.method} {answer.request.url}: {answer.text[-500:]}"


def test_what_was_pruned_and_erased_is_shown(asking: TestClient, writer: ArchiveWriter) -> None:
    partition = writer.partition("kept", 0)
    maintainer = Maintainer(partition)
    for start in range(0, 60, 20):
        partition.commit(records(range(start, start + 20)))
        maintainer.fold()
    partition.commit(records(range(60, 70)))
    maintainer.prune(1)
    maintainer.rewrite([1], [25, *range(40, 60)])
    maintainer.begin("merge")
    listing = get_page(asking, "/topics/kept/0?at=5")
    check(listing)
    assert (
        '<tr class="missing pruned"><td class="n">0..19</td><td colspan="4">pruned: nothing below offset 20' in listing
    )
    assert '<tr class="missing erased"><td class="n">25</td><td colspan="4">erased: no longer in the archive' in listing
    assert '<tr class="missing erased"><td class="n">40..59</td>' in listing
    topic = get_page(asking, "/topics/kept?scale=offset")
    check(topic)
    assert "pruned below 20" in topic
    assert "a merge is under way" in topic
    assert "rewrites that wait for garbage collection: 1" in topic
    assert ">[40..60)</a> erased" in topic
    assert 'class="p"' in topic and 'class="e"' in topic
    page = asking.get("/api/v1/topics/kept/partitions/0/page?at=earliest").json()
    kinds = [each["missing"]["kind"] for each in page["items"] if "missing" in each]
    assert kinds == ["pruned", "erased", "erased"]
    gone = asking.get("/api/v1/topics/kept/partitions/0/records/5")
    assert gone.status_code == 404
    assert "it was pruned" in gone.text


def test_any_timestamps_are_shown(tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("odd", 0)
    partition.commit(records(range(4), timestamps=[1_760_000_000_000_000, 2**63 - 1, -5, -1]))
    partition.lose(9)
    partition.commit(records(range(9, 12), timestamps=[2**63 - 1, -1, 1_760_000_000_000_000_000]))
    with page_client(settings_of(tmp_path)) as asking:
        for path in ("/", "/topics/odd", "/topics/odd/0?at=earliest", "/topics/odd/0/1"):
            assert "9223372036854775807" in get_page(asking, path)
        assert asking.get("/api/v1/topics/odd/coverage").json()["partitions"][0]["max_timestamp_ms"] == 2**63 - 1
        assert asking.get("/api/v1/topics/odd/partitions/0/page?at=earliest").status_code == 200
