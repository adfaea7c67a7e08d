import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from blockgz.store.cache import SHARE_OF_ONE, DiskCache, default_folder

UNFINISHED = f".k.{0:032x}.tmp"


class Source:
    """Objects of 800 bytes, by key, and how often they were fetched."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def read(self, cache: DiskCache, key: str, sha256: str | None = None, archive_id: str = "a") -> bytes:
        body = key.encode().ljust(800, b".")

        async def fetch() -> bytes:
            self.fetched.append(key)
            return body

        return asyncio.run(cache.through(archive_id, key, sha256 or hashlib.sha256(body).hexdigest(), fetch))


def test_an_object_is_fetched_once_by_all_programs(tmp_path: Path) -> None:
    source = Source()
    first, second = DiskCache(tmp_path / "c"), DiskCache(tmp_path / "c")
    assert source.read(first, "k") == source.read(first, "k") == source.read(second, "k")
    assert source.fetched == ["k"]
    assert (first.hits, second.hits, second.bytes_found) == (1, 1, 800)
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0
    source.read(first, "k", archive_id="another archive")
    assert source.fetched == ["k", "k"]


@pytest.mark.parametrize("damage", [b"", b"an index", b"." * 800])
def test_a_damaged_file_is_fetched_anew(tmp_path: Path, damage: bytes) -> None:
    source = Source()
    whole = source.read(DiskCache(tmp_path), "k")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert source.read(DiskCache(tmp_path), "k") == whole
    assert source.read(DiskCache(tmp_path), "k") == whole
    assert source.fetched == ["k", "k"]


def test_what_is_not_what_the_archive_says_is_not_kept(tmp_path: Path) -> None:
    source = Source()
    source.read(DiskCache(tmp_path), "k", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_it_is_bounded_and_forgets_the_longest_unused(tmp_path: Path) -> None:
    source = Source()
    cache = DiskCache(tmp_path, max_bytes=8000)
    (tmp_path / UNFINISHED).write_bytes(b"x")
    os.utime(tmp_path / UNFINISHED, (0, 0))
    for number in range(30):
        source.read(cache, str(number))
        source.read(cache, "0")
        for file in tmp_path.iterdir():
            stat = file.stat()
            os.utime(file, (stat.st_atime - 1, stat.st_mtime - 1))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 8000
    assert source.fetched == [str(number) for number in range(30)], "what is used again and again stays"
    assert not (tmp_path / UNFINISHED).exists()
    source.read(DiskCache(tmp_path, max_bytes=800 * SHARE_OF_ONE - 1), "too large")
    assert "too large" in source.fetched
    assert not any(file.read_bytes().startswith(b"too large") for file in tmp_path.iterdir())


def test_a_disk_that_cannot_be_used_costs_requests_only(tmp_path: Path) -> None:
    source = Source()
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "folder")
    assert source.read(cache, "k") == source.read(cache, "k")
    assert source.fetched == ["k", "k"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_folder() == Path("/var/cache/me/blockgz/objects")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_folder() == Path.home() / ".cache/blockgz/objects"
