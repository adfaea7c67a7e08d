"""Who may read what a folder's store writes, and what is no object."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.ingest.buffer import BufferFolder
from blockgz.atomic_file import replace_file, write_private
from blockgz.errors import StoreError
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.opening import default_buffer_root


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """Path below the root -> its mode."""
    return {path.relative_to(root).as_posix(): oct(stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}


def written(root: Path) -> LocalStore:
    store = LocalStore(root)
    store.put_if_absent("topic=a/chunk", b"x", "attempt")
    store.compare_and_swap("topic=a/marker", b"{}", None)
    return store


def test_a_new_archive_is_its_owners_alone(tmp_path: Path) -> None:
    written(tmp_path / "new" / "archive")
    assert modes(tmp_path) == {
        "new": "0o700",
        "new/archive": "0o700",
        "new/archive/topic=a": "0o700",
        "new/archive/topic=a/chunk": "0o600",
        "new/archive/topic=a/marker": "0o600",
        "new/archive/topic=a/.marker.lock": "0o600",
    }


def test_below_a_root_that_is_there_its_mode_holds(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    written(tmp_path)
    files = dict.fromkeys(("topic=a/chunk", "topic=a/marker", "topic=a/.marker.lock"), "0o640")
    assert modes(tmp_path) == {"topic=a": "0o2750", **files}


def test_buffers_and_files_beside_archives_are_private(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path / "a" / "buffer")
    assert set(modes(tmp_path / "a").values()) <= {"0o700", "0o600"}
    buffer.close()
    write_private(tmp_path / "report", b"")
    replace_file(tmp_path / "state", b"")
    assert {modes(tmp_path)[name] for name in ("report", "state")} == {"0o600"}


def test_the_buffer_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_buffer_root("s3://bucket/prefix") == tmp_path / "blockgz" / "buffer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_buffer_root("s3://bucket/prefix") == tmp_path / ".cache" / "blockgz" / "buffer"


def test_a_pipe_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    store = written(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    reader = LocalReader(LocalAddress(str(tmp_path)))
    for read in (
        lambda: store.get("pipe"),
        lambda: store.get_range("pipe", 0, 1),
        lambda: asyncio.run(reader.get("pipe", 10)),
        lambda: asyncio.run(reader.get_range("pipe", 0, 1)),
    ):
        with pytest.raises(StoreError) as caught:
            read()
        assert "a pipe or a device" in caught.value.why
