"""The buffer folder: whose sub-folders it removes, what it counts, and how a full or lying disk shows."""

import hashlib
import io
import json
import logging
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from archiver.ingest.buffer import BufferFolder
from archiver.logs import log_to
from blockgz.errors import BufferFailed, BufferFull, StoreError

OWNER = """
import sys
from pathlib import Path
from archiver.ingest.buffer import BufferFolder
folder = BufferFolder(Path(sys.argv[1]))
folder.new_file().append(b"block")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a buffer folder under `root`, alive."""
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """A disk that takes no more: the nearest to a full one that needs no disk of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_a_file_holds_what_was_appended(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path / "deep" / "down")
    file = buffer.new_file()
    file.append(b"one")
    file.append(b"two")
    assert buffer.used_bytes == file.size == 6
    body = file.finish()
    assert body.path.read_bytes() == b"onetwo"
    assert (body.size, body.sha256) == (6, hashlib.sha256(b"onetwo").hexdigest())
    body.check_size()
    file.discard()
    assert (buffer.used_bytes, body.path.exists()) == (0, False)
    buffer.close()


def test_closing_removes_everything(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"x")
    file.finish()
    buffer.mark_alive()
    buffer.close()
    buffer.close()
    assert not folders(tmp_path)


@pytest.mark.slow
def test_folders_of_living_processes_are_kept_and_those_of_dead_ones_removed(tmp_path: Path) -> None:
    with another_process(tmp_path) as living, another_process(tmp_path) as dying:
        both = folders(tmp_path)
        assert len(both) == 2
        dying.kill()
        dying.wait()
        written = io.StringIO()
        log_to(written, level=logging.WARNING, log_format="json")
        BufferFolder(tmp_path).close()
        line = json.loads(written.getvalue())
        assert (line["event"], line["pid"], line["bytes"]) == ("process_died", str(dying.pid), len(b"block"))
        assert abs(datetime.fromisoformat(line["last_seen"]).timestamp() - time.time()) < 60
        (kept,) = folders(tmp_path)
        assert kept in both and list((tmp_path / kept).glob("*.chunk"))
        living.kill()
        living.wait()
    BufferFolder(tmp_path).close()
    assert not folders(tmp_path)


def test_what_died_before_it_had_a_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "blockgz-buffer-0123").mkdir()
    BufferFolder(tmp_path).close()
    assert not folders(tmp_path)


def test_nothing_of_anybody_else_is_touched(tmp_path: Path) -> None:
    for name in ("photos", "0123456789abcdef0123456789abcdef"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").write_bytes(b"")
        (tmp_path / name / "precious").write_bytes(b"1")
    BufferFolder(tmp_path).close()
    assert folders(tmp_path) == {"photos", "0123456789abcdef0123456789abcdef"}
    assert (tmp_path / "photos" / "precious").exists()


def test_two_folders_in_one_process_do_not_meet(tmp_path: Path) -> None:
    first, second = BufferFolder(tmp_path), BufferFolder(tmp_path)
    file = first.new_file()
    file.append(b"x")
    second.close()
    assert file.finish().path.exists()
    first.close()


def test_a_file_that_was_cut_behind_our_back(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"x" * 100_000)
    (path,) = tmp_path.glob("*/*.chunk")
    with path.open("r+b") as behind:
        behind.truncate(10)
    with pytest.raises(BufferFailed, match="has"):
        file.finish()
    file.discard()
    assert buffer.used_bytes == 0
    buffer.close()


@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_finished_file_that_changed_behind_our_back(tmp_path: Path, change: str) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"content")
    body = file.finish()
    if change == "cut":
        body.path.write_bytes(b"con")
    else:
        body.path.unlink()
    with pytest.raises(BufferFailed, match="changed"):
        body.check_size()
    with pytest.raises(BufferFailed, match="changed"):
        body.check_content(hashlib.sha256(b"con").hexdigest())
    file.discard()
    buffer.close()


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    with files_no_larger_than(50_000):
        with pytest.raises(BufferFailed) as caught:
            for _ in range(3):
                file.append(b"x" * 40_000)
            file.finish()
        file.discard()
    assert isinstance(caught.value, StoreError) and "--buffer-dir" in caught.value.remedy
    assert buffer.used_bytes == 0 and not list(tmp_path.glob("*/*.chunk"))
    buffer.close()


def test_bytes_that_the_disk_does_not_take_are_missed_at_once(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    with files_no_larger_than(50):
        with pytest.raises(BufferFailed):
            file.append(b"x" * 100)
        file.discard()
    assert buffer.used_bytes == 0
    buffer.close()


def test_a_block_that_fitted_in_part_is_cut_off_and_may_be_written_again(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"a" * 60)
    (path,) = tmp_path.glob("*/*.chunk")
    with files_no_larger_than(100):
        with pytest.raises(BufferFull):
            file.append(b"b" * 60)
        assert path.read_bytes() == b"a" * 60
        with path.open("ab") as torn:  # where even cutting failed
            torn.write(b"b" * 10)
        file._is_torn = True
        assert file.finish().size == 60
    file.append(b"c" * 60)
    body = file.finish()
    content = b"a" * 60 + b"c" * 60
    assert path.read_bytes() == content and body.sha256 == hashlib.sha256(content).hexdigest()
    buffer.close()


@pytest.mark.parametrize("place", ["file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BufferFailed):
        BufferFolder(tmp_path / place)
