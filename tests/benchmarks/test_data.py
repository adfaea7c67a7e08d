"""What is measured on."""

import itertools
import sysconfig
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.data import TopicShape, generated, text, values
from benchmarks.sections.growth import _rates, planning
from benchmarks.synthetic import RECORDS_IN_CHUNK, archive_of


@pytest.mark.parametrize("corpus", ["generated", "text"])
@pytest.mark.parametrize("size", [200, 1024, 102_400])
def test_values_have_their_size_and_compress_as_real_ones_do(corpus: str, size: int):
    shape = TopicShape(8, size, corpus=corpus)
    made = list(values(shape))
    assert [len(value) for value in made] == [size] * 8
    assert b"\n" not in b"".join(made)
    if size > 1000:
        together = b"".join(made)
        assert 1.5 < len(together) / len(zlib.compress(together, 1)) < 8


@pytest.mark.parametrize("source", [generated, text])
def test_values_are_the_same_on_every_run(source):
    assert list(itertools.islice(source(300), 500)) == list(itertools.islice(source(300), 500))


def test_the_corpus_begins_again_where_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "b.py").write_bytes(b"4567\n89")
    (tmp_path / "a.py").write_bytes(b"0123")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert list(itertools.islice(text(3), 5)) == [b"012", b"345", b"67 ", b"012", b"345"]


def test_topics_of_other_contents_have_other_names():
    shape = TopicShape(64, 200)
    others = [{"records": 65}, {"value_bytes": 201}, {"partitions": 1}, {"compression": "none"}, {"keys": False}]
    shapes = [shape, *(replace(shape, **other) for other in [*others, {"corpus": "text"}])]
    assert len({each.name for each in shapes}) == len(shapes)


def test_a_synthetic_archive_is_one_that_our_reader_reads():
    """Each of 200 look-ups gives the record that was asked for, or `planning` ends the run."""
    stored = archive_of(200)
    assert len([key for key in stored if key.endswith(".gz")]) == 200
    assert any("_catalog/" in key for key in stored)
    assert planning(200)["requests"] == 4
    assert RECORDS_IN_CHUNK * 200 == 2000


def test_rates_are_without_what_every_run_costs():
    rows = {"archive, 64": {"seconds": 2.0}, "archive, 1,064": {"seconds": 3.0}, "archive, 10,064": {"seconds": 12.0}}
    assert _rates(rows) == {"archive": pytest.approx(1000)}
