"""The measuring programs can be loaded, and what they measure on is an archive that our reader reads."""

import importlib
import pkgutil

import pytest

import benchmarks
from benchmarks.sections.growth import planning
from benchmarks.synthetic import RECORDS_IN_CHUNK, archive_of


def test_every_measuring_program_can_be_loaded() -> None:
    """They import names of the product, which move."""
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.mark.slow
def test_a_synthetic_archive_is_one_that_our_reader_reads():
    """Each of 200 look-ups gives the record that was asked for, or `planning` ends the run."""
    stored = archive_of(200)
    assert len([key for key in stored if key.endswith(".gz")]) == 200
    assert any("_catalog/" in key for key in stored)
    assert planning(200)["requests"] == 4
    assert RECORDS_IN_CHUNK * 200 == 2000
