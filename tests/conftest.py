"""What holds for every test."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest

from archiver import logs
from blockgz.kafka import LOGGER

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
"""So that no command reads the configuration of whoever runs the tests."""


def pytest_collection_finish() -> None:
    """The tests and what is loaded stay, and few objects are in cycles: collections are rare, as in the programs."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """A command that runs in the tests' process says where logs go: for its test alone, not for those that follow."""
    loggers = [logging.getLogger(name) for name in (logs.NAME, LOGGER)]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate
