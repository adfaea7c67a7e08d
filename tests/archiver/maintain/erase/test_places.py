"""What names of topics, partitions and offsets mean."""

from pathlib import Path

import pytest

from archiver.maintain.erase import parse_offsets, places_of
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings
from tests.support.archives import ArchiveWriter, records


def found(root: Path, text: str, *, by_offset: bool = False) -> list[str]:
    store = open_existing_store(str(root), S3Settings())
    return [f"{keys.folder}:{keys.partition}" for keys in places_of(store, text, by_offset=by_offset)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic, partition, incarnation in [("orders", 0, 1), ("orders", 3, 1), ("orders", 0, 2), ("other", 0, 1)]:
        archive.partition(topic, partition, incarnation=incarnation).commit(records(range(5)))
    return tmp_path


def test_a_topic_means_all_its_incarnations_unless_one_is_named(root: Path) -> None:
    assert found(root, "orders") == ["orders:0", "orders:3", "orders~2:0"]
    assert found(root, "orders:0") == ["orders:0", "orders~2:0"]
    assert found(root, "orders~1") == ["orders:0", "orders:3"]
    assert found(root, "orders~2:0") == ["orders~2:0"]
    assert found(root, "orders~1:0,2-3".replace("2-3", "3-3")) == ["orders:0", "orders:3"]


def test_offsets_are_those_of_one_incarnation(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        found(root, "orders", by_offset=True)
    assert "orders~1, orders~2" in caught.value.remedy
    assert found(root, "orders~2", by_offset=True) == ["orders~2:0"]
    assert found(root, "other", by_offset=True) == ["other:0"]


@pytest.mark.parametrize("text", ["nothing", "orders:7", "orders:0,7", "orders~3"])
def test_what_is_not_in_the_archive_is_an_error(text: str, root: Path) -> None:
    with pytest.raises(NotInArchive):
        found(root, text)


@pytest.mark.parametrize("text", ["orders:", "orders:x", "orders:1-", "orders:1,,2", "orders:٣"])
def test_other_texts_name_no_partitions(text: str, root: Path) -> None:
    with pytest.raises(UsageError):
        found(root, text)


def test_layout_seed_cannot_be_rewritten(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, "seed").partition("orders", 0, record_format="text")
    with pytest.raises(UsageError, match="layout seed"):
        found(tmp_path, "orders")


def test_offsets_are_single_ones_and_ranges() -> None:
    assert parse_offsets(["17", "20..30, 5"]) == OffsetRanges([range(5, 6), range(17, 18), range(20, 30)])


@pytest.mark.parametrize("text", ["", "x", "-1", "5..5", "7..3", "1..x", "1,", "9223372036854775808", "1..2..3"])
def test_other_texts_are_no_offsets(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an offset|is empty"):
        parse_offsets([text])
