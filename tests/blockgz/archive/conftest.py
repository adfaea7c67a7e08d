from pathlib import Path

import pytest

from tests.support.archives import ArchiveWriter
from tests.support.opened import Opened


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


@pytest.fixture
def writer(tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs under test keep nothing where others would find it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
