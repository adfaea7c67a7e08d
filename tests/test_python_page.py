"""The examples of docs/python.md print what the page says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import blockgz
from index_format.records import Record
from replayer.library_choice import Choice
from replayer.library_replay import ReplayChoice
from tests.support.archives import ArchiveWriter
from tests.support.mock_cluster import MockCluster

PAGE = (Path(__file__).parent.parent / "docs/python.md").read_text()
NOON_MS = 1_795_176_000_000
"""2026-11-20T12:00:00Z."""


def orders(count: int) -> list[Record]:
    return [
        Record(each, NOON_MS + each * 1000, 0, b"customer-%d" % (each % 7), b'{"id": %d}' % each, ())
        for each in range(count)
    ]


@pytest.mark.slow
def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ArchiveWriter(tmp_path / "archive")
    writer.partition("orders", 0).commit(orders(1000))
    writer.partition("orders", 1).commit(orders(10))
    writer.partition("users", 0).commit(orders(10))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    examples = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```python")
    cluster = MockCluster()
    cluster.create_topic("orders-copy")
    names: dict[str, object] = {}
    for code, output in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code.replace("localhost:9092", cluster.bootstrap_servers), names)
        assert printed.getvalue() == output, code


def test_the_page_names_every_error_and_argument() -> None:
    kinds = [name for name in blockgz.__all__ if isinstance(getattr(blockgz, name), type)]
    errors = [name for name in kinds if issubclass(getattr(blockgz, name), Exception)]
    assert [name for name in errors if f"`{name}`" not in PAGE and f"`blockgz.{name}`" not in PAGE] == []
    assert [name for name in (*Choice.__annotations__, "limit") if f"`{name}=" not in PAGE] == []
    replaying = ReplayChoice.__annotations__.keys() - Choice.__annotations__.keys()
    assert [name for name in replaying if f"`{name}`" not in PAGE] == []
