"""What holds for every test."""

import asyncio
import gc
import inspect
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver import logs
from blockgz.kafka import LOGGER
from tests.support.archives import ArchiveWriter
from tests.support.mock_cluster import MockCluster
from tests.support.opened import Opened

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
"""So that no command reads the configuration of whoever runs the tests."""

copies = map("copy-{}".format, itertools.count())


def pytest_collection_finish() -> None:
    """The tests and what is loaded stay, and few objects are in cycles: collections are rare, as in the programs."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """A command that runs in the tests' process says where logs go: for its test alone, not for those that follow."""
    loggers = [logging.getLogger(name) for name in (logs.NAME, LOGGER)]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs under test keep nothing where others would find it, jobs of one test are not those of another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


@pytest.fixture
def writer(tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path)


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    return MockCluster()


@pytest.fixture
def copy(cluster: MockCluster) -> str:
    """A topic that no other test writes to."""
    topic = next(copies)
    cluster.create_topic(topic)
    return topic
