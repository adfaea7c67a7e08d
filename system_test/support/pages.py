"""The page in a real browser: servers of it, Debian's Chromium, and archives worth looking at."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

from index_format.objects import Gap
from index_format.records import Record
from system_test.support.environment import PartMissingError, accepts_connections
from system_test.support.programs import Running, start
from tests.support.archives import ArchiveWriter, PartitionWriter

SECONDS = 20.0
"""What the page shows is waited for so long."""
FIRST_MS = 1_763_000_000_000
DAY_MS = 86_400_000


def chromium_program() -> str:
    """Debian's browser, or what else there is; PartMissingError where there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise PartMissingError("no `chromium` on PATH")
    return program


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        expect.set_options(timeout=SECONDS * 1000)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Served:
    """A running server."""

    program: Running
    url: str


@contextmanager
def serving(archive: object, *options: object, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server of the archive, killed at the end."""
    with start("replayer", "serve", "-a", archive, "--http", "127.0.0.1:0", *options, env=env) as program:
        found = program.wait_for(
            lambda: re.search(r"^serving \S+ on (http://\S+)$", program.stderr, re.MULTILINE), SECONDS, "its address"
        )
        yield Served(program, found[1])


@dataclass
class Watched:
    """A page of the browser, with everything that went wrong in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    refusals: int = 0
    """Answers of 4xx, which the browser's console tells of as well."""

    def __post_init__(self) -> None:
        self.page.set_default_timeout(SECONDS * 1000)
        self.page.on("console", lambda message: self._said(message.type, message.text, message.location["url"]))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def _said(self, kind: str, text: str, url: str) -> None:
        if kind == "error" and "the server responded with a status of 4" in text:
            self.refusals += 1
        elif kind in ("error", "warning") and not ("net::ERR_" in text and self._is_served_no_more(url)):
            self.errors.append(text)

    def _is_served_no_more(self, url: str) -> bool:
        """Whether the test has ended the server: a page that is still open misses its events, or a look at its jobs."""
        port = urlsplit(url).port
        return port is not None and not accepts_connections(port)

    def open(self, url: str) -> Page:
        """Opens a page, and waits until the archive has been looked at."""
        self.page.goto(url)
        expect(self.page.get_by_text("Reading the archive")).to_have_count(0)
        return self.page


def shop_archive(root: Path) -> list[PartitionWriter]:
    """Four days of the topic `orders` in three partitions, with holes, and a gap of retention in the second."""
    writer = ArchiveWriter(root)
    return [_partition(writer.partition("orders", number), has_gap=number == 1) for number in range(3)]


def _partition(partition: PartitionWriter, *, has_gap: bool) -> PartitionWriter:
    offset = 0
    for chunk in range(40):
        gaps = [Gap(offset, offset + 100, "retention")] if has_gap and chunk == 20 else []
        offset += 100 * len(gaps)
        start, end = FIRST_MS + chunk * DAY_MS // 10, offset + 50
        written = [_order(each, start + (each - offset) * 60_000) for each in range(offset, end) if each % 17 != 3]
        partition.commit(written, gaps=gaps, next_offset=end)
        offset = end
    return partition


def _order(offset: int, timestamp: int) -> Record:
    value = (
        b'{"order":%d,"customer":{"name":"Ada","city":"K\xc3\xb6ln"},"items":[{"name":"mug","cents":%d}],"paid":true}'
    )
    key = None if offset % 10 == 7 else b"customer-%d" % (offset % 97)
    headers = (("trace", b"%08x" % offset), ("retry", None)) if offset % 5 == 0 else ()
    return Record(offset, timestamp, 0, key, value % (offset, offset * 3 % 5000), headers)
