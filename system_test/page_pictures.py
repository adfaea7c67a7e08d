"""`python -m system_test.page_pictures`: the pictures of the page in docs/images, taken of the real page."""

import math
import random
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page

from archiver.demo import DemoRecord, demo_records
from index_format.objects import Gap
from index_format.records import Headers, Record
from system_test.support.pages import Watched, chromium, chromium_program, serving
from tests.support.archives import ArchiveWriter, PartitionWriter

IMAGES = Path(__file__).parent.parent / "docs" / "images"
HOUR_MS = 3_600_000
HOURS = 14 * 24
FIRST_MS = 1_793_491_200_000
PARTITIONS = 6
GAP_AT = {2: 130, 4: 250}
"""By partition the hour in which retention was faster than the archiver."""
WIDTH, HEIGHT = 1240, 600

Content = tuple[bytes | None, bytes | None, Headers]


def make_archive(root: Path) -> None:
    """Two weeks of a shop's orders, more by day than by night; an archiver that stood still now and then."""
    writer, chance = ArchiveWriter(root), random.Random(7)
    values = [_content(record) for record in demo_records(3_000, 1, FIRST_MS)]
    for number in range(PARTITIONS):
        partition, offset = writer.partition("orders", number), 0
        for hour in range(HOURS):
            gaps = []
            if GAP_AT.get(number) in (hour, hour - 1, hour - 2):
                if GAP_AT[number] == hour - 2:
                    gaps = [Gap(offset, offset + 240, "retention")]
                    offset += 240
                else:
                    continue
            offset = _commit(partition, offset, hour, gaps, chance, values)


def _content(record: DemoRecord) -> Content:
    """Key, value and headers; in letters that every machine has."""
    headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
    return record.key, record.value and record.value.replace("東京".encode(), b"Tokyo"), headers


def _commit(
    partition: PartitionWriter, offset: int, hour: int, gaps: list[Gap], chance: random.Random, values: list[Content]
) -> int:
    """One chunk of an hour; where it ends."""
    busy = 1 + math.sin((hour % 24 - 9) / 24 * 2 * math.pi) + (0.2 if hour % 168 < 120 else -0.2)
    count = max(3, int(25 * busy + chance.randrange(6)))
    times = sorted(FIRST_MS + hour * HOUR_MS + chance.randrange(HOUR_MS) for _ in range(count))
    written = []
    for at, timestamp in enumerate(times):
        key, value, headers = values[(offset + at) % len(values)]
        if chance.random() > 0.02:
            written.append(Record(offset + at, timestamp, 0, key, value, headers))
    kept = written or [Record(offset, times[0], 0, None, b"{}", ())]
    partition.commit(kept, next_offset=offset + count, gaps=gaps, block_bytes=8_000)
    return offset + count


def take(browser: Browser, url: str, scheme: str) -> None:
    """The coverage map and a page of records with a gap in it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT})  # type: ignore[arg-type]
    watched = Watched(context.new_page())
    page = watched.open(f"{url}/topics/orders")
    _take(page, f"page-coverage-{scheme}.png")
    gap = page.locator("table a[href*='/topics/orders/2?at=']").first.get_attribute("href")
    start = int(str(gap).rpartition("=")[2])
    page = watched.open(f"{url}/topics/orders/2?at={start - 6}")
    _take(page, f"page-records-{scheme}.png")
    assert watched.errors == []
    context.close()


def _take(page: Page, name: str) -> None:
    """Without the name of the folder, which means nothing to others."""
    page.evaluate("document.querySelector('.where').hidden = true")
    page.screenshot(path=IMAGES / name)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="blockgz-pictures-") as folder:
        archive = Path(folder) / "kafka-backup"
        make_archive(archive)
        with serving(archive) as server, chromium(chromium_program()) as browser:
            for scheme in ("light", "dark"):
                take(browser, server.url, scheme)


if __name__ == "__main__":
    main()
