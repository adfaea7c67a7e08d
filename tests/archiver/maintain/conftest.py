import pytest

from index_format import marker as markers
from tests.archiver.maintain.fourteen_chunks import filled
from tests.support.memory_store import MemoryStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The fourteen chunks, two in each catalog and two in the tail."""
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    return filled(MemoryStore())
