"""A marker of version 2 and an index of a chunk with erased records, as this release writes them: byte for byte."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from index_format import objects
from index_format.errors import UnsupportedVersion
from index_format.keys import Rewritten, catalog_name
from index_format.marker import ChunkCatalog, Maintenance, Marker, Retired, Rewriting, encode, reference_to
from index_format.objects import ChunkIndex, Erased, Gap
from tests.golden import test_current_format as current

MAINTAINED = Path(__file__).parent / "maintained"
TOKEN, FORMER = "5f0d342e1140c4e54e518f89ef4d4d59", "aeb9012da2d5c9b6a5b1d8f2e07c4431"
CATALOG = ChunkCatalog(
    level=1,
    entries=current.catalog().entries[1:],
    gaps=(Gap(40, 64, "erased", at=1_760_000_000_000), Gap(98, 100, "retention")),
)
NAME = catalog_name(1, 40, Rewritten(FORMER, 7))


def marker() -> Marker:
    before = current.marker()
    (former,) = before.catalogs[0]
    return replace(
        before,
        version=2,
        catalogs=((reference_to(CATALOG, NAME, encode(CATALOG), (40, 100)),),),
        gaps=(Gap(105, 106, "skipped", at=1_760_000_000_500),),
        last_offset=108,
        maintenance=Maintenance(
            revision=12,
            pruned_before=40,
            rewriting=Rewriting(token=TOKEN, kind="merge", level=1, start=40, end=100, since=1_760_000_100_000),
            retired=(Retired(references=(former,), token=FORMER),),
            fold_before=100,
        ),
    )


def index() -> ChunkIndex:
    return replace(current.chunk()[0], erased=(Erased(100, 102), Erased(106, 107)))


OBJECTS: dict[str, msgspec.Struct] = {"last_chunk_index.json": marker(), "catalog.json": CATALOG}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_written_byte_for_byte(name: str) -> None:
    assert objects.encode(OBJECTS[name]) == (MAINTAINED / name).read_bytes()


@current.same_zlib
def test_an_index_is_written_byte_for_byte() -> None:
    assert objects.encode(index()) == (MAINTAINED / "index.json").read_bytes()


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_read(name: str) -> None:
    assert objects.decode((MAINTAINED / name).read_bytes(), type(OBJECTS[name]), name) == OBJECTS[name]


def test_a_program_that_knows_only_version_1_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Marker, "VERSIONS", (1,))
    with pytest.raises(UnsupportedVersion) as refused:
        objects.decode((MAINTAINED / "last_chunk_index.json").read_bytes(), Marker, "the marker")
    assert refused.value.remedy == "use a newer release of blockgz"
