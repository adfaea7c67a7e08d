from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format.errors import BadName, MalformedObject
from index_format.keys import (
    INDEX_SUFFIX,
    LAYOUTS,
    SEED_INDEX_SUFFIX,
    ChunkStart,
    Conflict,
    ObjectKey,
    ObjectKind,
    Rewritten,
    SeedLayoutKeys,
    TopicFolder,
    TopicLayoutKeys,
    ancestor_marker_partition,
    archive_key,
    catalog_level,
    catalog_name,
    check_topic,
    configs_home,
    data_suffix,
    dated_key,
    floor_name,
    groups_home,
    is_catalog_name,
    parse_dated_key,
    parse_floor_key,
    parse_groups_key,
    parse_key,
    parse_topic_folder,
    topic_folders,
    topic_home,
    topic_of,
    topic_prefixes,
    utc_date,
)
from tests.index_format.builders import MAX_INT64, MIN_INT64

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in (".", ".."))
folders = st.builds(TopicFolder, topics, st.sampled_from([1, 2, 10, 999_999_999]))
partitions = st.integers(0, 2**31 - 1)
offsets = st.one_of(st.integers(0, 100), st.integers(0, MAX_INT64))
times = st.one_of(st.just(-1), st.integers(0, 4_000_000_000_000), st.integers(MIN_INT64, MAX_INT64))
conflicts = st.one_of(
    st.none(), st.builds(Conflict, st.integers(1, MAX_INT64), st.from_regex(r"[0-9a-f]{8}", fullmatch=True))
)
DATA_SUFFIXES = st.sampled_from([".gz", ".zst", ".arrows.gz", ".gz.enc", ".arrows.zst.enc"])
suffixes = st.sampled_from([".gz", ".zst", ".arrows.gz", ".gz.enc", ".arrows.zst.enc", INDEX_SUFFIX, SEED_INDEX_SUFFIX])


@st.composite
def starts(draw: st.DrawFn) -> ChunkStart:
    position = draw(offsets)
    return ChunkStart(position, draw(st.integers(position, MAX_INT64)), draw(times))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(folder=folders, partition=partitions, start=starts(), suffix=suffixes, conflict=conflicts)
def test_names_come_back(
    layout: str, folder: TopicFolder, partition: int, start: ChunkStart, suffix: str, conflict: Conflict | None
) -> None:
    keys = LAYOUTS[layout](folder, partition)
    name = keys.data_name(start, suffix, conflict)
    assert keys.check_name(name, start.position, suffix) == name
    assert keys.index_name(start, conflict) != keys.data_name(start, ".gz", conflict)
    assert name.isascii() and ".." not in name.replace(folder.topic, "") and not name.startswith("/")
    if conflict:
        assert name != keys.data_name(start, suffix)
    if start.position:
        with pytest.raises(MalformedObject):
            keys.check_name(name, start.first_offset + 1, suffix)
    with pytest.raises(MalformedObject):
        keys.check_name(name, start.position, ".other")


@given(folders, partitions)
def test_homes(folder: TopicFolder, partition: int) -> None:
    for layout, keys_of in LAYOUTS.items():
        keys = keys_of(folder, partition)
        assert keys.home.startswith(topic_home(layout, folder)) and keys.home.endswith("/")
        assert keys.marker == keys.home + "last_chunk_index.json"
        assert keys.layout == layout


@given(folders)
def test_folders_come_back(folder: TopicFolder) -> None:
    assert parse_topic_folder(str(folder)) == folder


def test_names_of_long_topics_fit_into_255_bytes() -> None:
    longest, other = "x" * 249, "y" * 248
    assert topic_home("topic", TopicFolder(longest)) == f"topic={longest}/"
    assert topic_home("seed", TopicFolder(longest, 2)) == f"_blockgz/t~2={longest}/"
    assert topic_home("topic", TopicFolder("x" * 240, 2)) == f"topic={'x' * 240}~2/"
    names = [f"t~2={longest}", f"topic={longest}", f"t~2={other}", f"topic={other}"]
    assert all(len(name) <= 255 for name in names)
    assert topic_folders([*names, f"topic={longest}~2", "t~2=short", "t~1=" + longest]) == [
        *(TopicFolder(longest), TopicFolder(longest, 2)),
        *(TopicFolder(other), TopicFolder(other, 2)),
    ]


def test_the_prefixes_of_a_topic_cover_its_names() -> None:
    for length in (1, 200, 239, 240, 244, 247, 248, 249):
        for incarnation in (1, 2, 100, 9999, 999_999_999):
            home = topic_home("topic", TopicFolder("x" * length, incarnation))
            assert home.startswith(tuple(topic_prefixes("x" * length))), (length, incarnation)


def test_incarnations() -> None:
    assert parse_topic_folder("orders") == TopicFolder("orders", 1)
    assert parse_topic_folder("orders~1") == TopicFolder("orders", 1)
    assert parse_topic_folder("orders~2") == TopicFolder("orders", 2)
    assert str(TopicFolder("orders", 1)) == "orders"
    assert str(TopicFolder("orders", 2)) == "orders~2"


BAD_TOPICS = [
    *("", ".", "..", "a b", "a/b", "../a", "a\n", "\n", "é", "a~b", "x" * 250, "a\x00", "topic=a", "*", "\u0661")
]


@pytest.mark.parametrize("name", BAD_TOPICS, ids=ascii)
def test_topic_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(BadName):
        check_topic(name)
    with pytest.raises(BadName):
        parse_topic_folder(name)
    with pytest.raises(BadName):
        str(TopicFolder(name))


@pytest.mark.parametrize(
    "name",
    [
        *("orders~", "orders~0", "orders~01", "orders~-1", "orders~x", "orders~2~3", "orders~2\n", "~2", "..~2"),
        *("orders~" + "9" * 10, "o~" + "9" * 5000),
    ],
)
def test_incarnations_that_are_none(name: str) -> None:
    with pytest.raises(BadName) as caught:
        parse_topic_folder(name)
    assert len(caught.value.what) < 200


def test_the_layout_of_topics() -> None:
    keys = TopicLayoutKeys(TopicFolder("orders", 2), 3)
    start = ChunkStart(17, 20, 0)
    assert keys.marker == "topic=orders~2/partition=00003/last_chunk_index.json"
    assert keys.chunks == keys.home
    assert keys.data_name(start, ".gz") == "00000000000000000017.gz"
    assert keys.index_name(start) == "00000000000000000017.index.json"
    assert keys.index_name(start, Conflict(7, "ab12cd34")) == "00000000000000000017~e7-ab12cd34.index.json"
    assert (archive_key("topic"), archive_key("seed")) == ("_archive.json", "_blockgz/_archive.json")


def test_the_layout_of_the_seed() -> None:
    keys = SeedLayoutKeys(TopicFolder("bar"), 0)
    start = ChunkStart(0, 5, 1_456_315_200_000)
    assert keys.data_name(start, ".gz") == "2016-02-24/bar-00000-000000000005.gz"
    assert keys.ancestor_index_name(start) == "2016-02-24/bar-00000-000000000005.index.json"
    assert keys.index_name(start) == "2016-02-24/bar-00000-000000000005.meta.json"
    assert keys.data_name(start, ".gz", Conflict(7, "ab12cd34")) == "2016-02-24~e7-ab12cd34/bar-00000-000000000005.gz"
    assert keys.ancestor_marker == "last_chunk_index.bar-00000.txt"
    assert keys.chunks == ""
    assert keys.home == "_blockgz/topic=bar/partition=00000/"


@given(folders, partitions, starts(), conflicts)
def test_the_ancestors_marker_tells_a_position(
    folder: TopicFolder, partition: int, start: ChunkStart, conflict: Conflict | None
) -> None:
    keys = SeedLayoutKeys(folder, partition)
    body = f"any/prefix/{keys.ancestor_index_name(start, conflict)}".encode()
    for written in (body, body + b"\n", b" " + body):
        assert keys.ancestor_position(written) == start.first_offset


TRICKS = ["", "/", "..", ".", "../x", "/etc/passwd", "a/../b", "\x00", "\n", "~", ".gz", ".index.json"]
GOOD = "00000000000000000017"
SEED = "2016-02-24/bar-00000-000000000017"


@pytest.mark.parametrize(
    "name",
    [
        *TRICKS,
        *(f"{GOOD}{trick}" for trick in TRICKS if trick != ".gz"),
        *(f"{trick}{GOOD}.gz" for trick in TRICKS if trick),
        f"{GOOD}.gz\n",
        f"{GOOD}.gz.gz",
        f"{GOOD}.GZ",
        f"{GOOD}.index.json",
        "00000000000000000018.gz",
        "0000000000000000017.gz",
        "000000000000000000017.gz",
        "17.gz",
        "-0000000000000000017.gz",
        "0000000000000000001\u0667.gz",
        f"{GOOD}~e0-ab12cd34.gz",
        f"{GOOD}~e01-ab12cd34.gz",
        f"{GOOD}~e1-AB12CD34.gz",
        f"{GOOD}~e1-ab12cd3.gz",
        f"{GOOD}~e1-ab12cd345.gz",
        f"{GOOD}~e1.gz",
        f"{GOOD}~e{'9' * 5000}-ab12cd34.gz",
        f"topic=orders/partition=00003/{GOOD}.gz",
    ],
    ids=ascii,
)
def test_names_that_are_not_derived(name: str) -> None:
    with pytest.raises(MalformedObject) as caught:
        TopicLayoutKeys(TopicFolder("orders"), 3).check_name(name, 17, ".gz")
    assert len(caught.value.what) < 300 and "\n" not in caught.value.what


@pytest.mark.parametrize(
    "name",
    [
        *TRICKS,
        *(f"{SEED}{trick}" for trick in TRICKS if trick != ".gz"),
        *(f"{trick}{SEED}.gz" for trick in TRICKS if trick),
        f"{SEED}.gz.gz",
        SEED,
        "2016-02-24/baz-00000-000000000017.gz",
        "2016-02-24/bar-00001-000000000017.gz",
        "2016-02-24/bar-00000-000000000016.gz",
        "2016-02-24/bar-00000-0000000000017.gz",
        "2016-02-24/bar-00000-00000000017.gz",
        "2016-02-24/bar-0000-000000000017.gz",
        "2016-02-24/bar-00000-" + "9" * 20 + ".gz",
        "2016-2-24/bar-00000-000000000017.gz",
        "12016-02-24/bar-00000-000000000017.gz",
        "2016-13-24/bar-00000-000000000017.gz",
        "2016-00-24/bar-00000-000000000017.gz",
        "2016-02-32/bar-00000-000000000017.gz",
        "2016-02-24/../bar-00000-000000000017.gz",
        "2016-02-24~e0-ab12cd34/bar-00000-000000000017.gz",
        "2016-02-24~e1/bar-00000-000000000017.gz",
    ],
    ids=ascii,
)
def test_seed_names_that_are_not_derived(name: str) -> None:
    with pytest.raises(MalformedObject):
        SeedLayoutKeys(TopicFolder("bar"), 0).check_name(name, 17, ".gz")


@given(st.integers(1, 16), offsets, conflicts)
def test_catalog_names_come_back(level: int, position: int, conflict: Conflict | None) -> None:
    name = catalog_name(level, position, conflict)
    assert is_catalog_name(name, level, position)
    assert not is_catalog_name(name, level + 1, position)
    assert not is_catalog_name(name, level, position + 1)
    for trick in (f"../{name}", f"{name}/", name.replace("_catalog/", ""), f"{name}\n", name.replace("/", "/../"), ""):
        assert not is_catalog_name(trick, level, position)


@pytest.mark.parametrize(
    ("record_format", "codec", "suffix"),
    [
        ("json", "gzip", ".gz"),
        ("text", "gzip", ".gz"),
        ("arrow", "gzip", ".arrows.gz"),
        ("json", "zstd", ".zst"),
        ("json", "lz9", ".lz9"),
    ],
)
def test_suffixes(record_format: str, codec: str, suffix: str) -> None:
    assert data_suffix(record_format, codec) == suffix
    assert data_suffix(record_format, codec, encrypted=True) == f"{suffix}.enc"


@given(st.integers(0, 253_402_300_799_999))
def test_dates_are_utc(timestamp: int) -> None:
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)
    assert utc_date(timestamp) == expected.date().isoformat()


def test_dates_have_bounds() -> None:
    assert utc_date(-1) == utc_date(MIN_INT64) == utc_date(0) == "1970-01-01"
    assert utc_date(MAX_INT64) == date.max.isoformat()


@given(folders, partitions, offsets, offsets, times, conflicts, DATA_SUFFIXES)
def test_keys_of_chunks_come_back(
    folder: TopicFolder, partition: int, position: int, first: int, time: int, conflict: Conflict | None, suffix: str
) -> None:
    start = ChunkStart(position, first, time)
    for layout, kind in LAYOUTS.items():
        keys = kind(folder, partition)
        seed = layout == "seed"
        written = folder._replace(incarnation=1) if seed else folder
        number = first if seed else position
        data = keys.chunks + keys.data_name(start, suffix, conflict)
        stem = data.removesuffix(suffix)
        assert parse_key(layout, data) == ObjectKey(data, ObjectKind.DATA, written, partition, number, 0, stem)
        index = keys.chunks + keys.index_name(start, conflict)
        assert parse_key(layout, index) == ObjectKey(index, ObjectKind.INDEX, written, partition, number, 0, stem)
        catalog = keys.home + catalog_name(2, position, conflict)
        assert parse_key(layout, catalog) == ObjectKey(
            catalog, ObjectKind.CATALOG, folder, partition, position, 2, catalog
        )
        if isinstance(keys, SeedLayoutKeys):
            sidecar = keys.ancestor_index_name(start, conflict)
            expected = ObjectKey(sidecar, ObjectKind.ANCESTOR_INDEX, written, partition, number, 0, stem)
            assert parse_key(layout, sidecar) == expected
        for key in (data, index, catalog, keys.marker):
            assert topic_of(key) == folder.topic
        for other in (keys.marker, archive_key(layout), topic_home(layout, folder) + "_topic.json"):
            assert parse_key(layout, other) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "topic=orders",
        "topic=orders/partition=00000/",
        "topic=orders/partition=00000/1.gz",
        "topic=orders/partition=0/00000000000000000001.gz",
        "topic=orders/partition=000000/00000000000000000001.gz",
        "topic=orders~1/partition=00000/00000000000000000001.gz",
        "topic=orders~02/partition=00000/00000000000000000001.gz",
        "topic=../partition=00000/00000000000000000001.gz",
        "topic=orders/partition=00000/00000000000000000001~e0-ab12cd34.gz",
        "topic=orders/partition=00000/00000000000000000001~e7-AB12CD34.gz",
        "topic=orders/partition=00000/99999999999999999999.gz",
        "topic=orders/partition=00000/00000000000000000001.gz.tmp",
        "topic=orders/partition=00000/below/00000000000000000001.gz",
        "topic=orders/partition=00000/.00000000000000000001.gz",
        "topic=orders/partition=00000/_catalog/0-00000000000000000000.json",
        "x/topic=orders/partition=00000/00000000000000000001.gz",
        "2016-02-24/orders-00000-000000000005.txt",
        "2016-02-30x/orders-00000-000000000005.gz",
        "2016-02-24/orders-0-000000000005.gz",
        "2016-02-24/orders-000000-000000000005.gz",
        "2016-02-24/orders-00000-0000000000005.gz",
        "_blockgz/topic=orders/partition=00000/00000000000000000001.gz",
        "last_chunk_index.orders-00000.txt",
    ],
)
def test_keys_that_are_not_derived_name_nothing(key: str) -> None:
    assert parse_key("topic", key) is None
    assert parse_key("seed", key) is None


@pytest.mark.parametrize(
    ("key", "topic", "partition"),
    [
        ("last_chunk_index.a-00002.txt", "a", 2),
        ("last_chunk_index.a-00001-00002.txt", "a-00001", 2),
        ("last_chunk_index.a-00001-00002.txt", "a", None),
        ("last_chunk_index.ab-00002.txt", "a", None),
        ("00002.txt", "a", None),
        ("last_chunk_index.a-00002.txt~", "a", None),
    ],
)
def test_the_ancestors_markers_tell_of_partitions(key: str, topic: str, partition: int | None) -> None:
    assert ancestor_marker_partition(key, topic) == partition
    if partition is not None:
        assert SeedLayoutKeys(TopicFolder(topic, 1), partition).ancestor_marker == key


@given(st.sampled_from(sorted(LAYOUTS)), folders, offsets, offsets)
def test_names_by_times_come_back_in_their_order(layout: str, folder: TopicFolder, at_ms: int, other_ms: int) -> None:
    for home in (groups_home(layout, folder), configs_home(layout, folder)):
        key = dated_key(home, at_ms)
        assert parse_dated_key(home, key) == at_ms
        assert (key < dated_key(home, other_ms)) == (at_ms < other_ms)
        assert parse_key(layout, key) is None
        assert parse_groups_key(layout, key) == ((folder, at_ms) if home == groups_home(layout, folder) else None)
        assert topic_of(key) == folder.topic


def test_names_by_times() -> None:
    home = groups_home("seed", TopicFolder("orders", 2))
    assert dated_key(home, 1_760_000_040_000) == "_blockgz/topic=orders~2/_groups/00000001760000040000.json"
    for name in ("1.json", "0" * 21 + ".json", "9" * 20 + ".json", "0" * 20 + ".gz", "a/" + "0" * 20 + ".json"):
        assert parse_dated_key(home, home + name) is None, name
    for key in ("topic=../_groups/", "topic=orders~1/_groups/", "_blockgz/topic=a/_groups/", "x/topic=a/_groups/"):
        assert parse_groups_key("topic", f"{key}{0:020d}.json") is None, key
    assert parse_groups_key("seed", dated_key(groups_home("topic", TopicFolder("a")), 1)) is None
    assert parse_dated_key(home, dated_key(configs_home("seed", TopicFolder("orders", 2)), 1)) is None


TOKEN = "5f0d342e1140c4e54e518f89ef4d4d59"


def test_names_of_a_rewrite_come_back() -> None:
    keys = TopicLayoutKeys(TopicFolder("orders"), 3)
    mark = Rewritten(TOKEN, 12)
    data = keys.data_name(ChunkStart(17, 17, 0), ".gz", mark)
    assert data == f"00000000000000000017~r{TOKEN}-12.gz" == keys.check_name(data, 17, ".gz")
    assert parse_key("topic", keys.home + data) == ObjectKey(
        keys.home + data, ObjectKind.DATA, keys.folder, 3, 17, 0, (keys.home + data)[:-3], TOKEN
    )
    catalog = catalog_name(2, 17, mark)
    assert is_catalog_name(catalog, 2, 17) and catalog_level(catalog) == 2
    found = parse_key("topic", keys.home + catalog)
    assert found is not None and found.token == TOKEN
    for wrong in (data.replace("-12", "-012"), data.replace(TOKEN, TOKEN[1:]), data.replace(TOKEN, TOKEN.upper())):
        with pytest.raises(MalformedObject):
            keys.check_name(wrong, 17, ".gz")


def test_floors_come_back() -> None:
    for layout, kind in LAYOUTS.items():
        keys = kind(TopicFolder("orders", 2), 3)
        key = keys.home + floor_name(20)
        assert key.endswith("/_pruned/00000000000000000020")
        assert parse_floor_key(layout, key) == (TopicFolder("orders", 2), 3, 20)
        assert parse_key(layout, key) is None
        for wrong in (key[:-1], f"{key}.json", keys.home + floor_name(2**63), key.replace("~2", "~1")):
            assert parse_floor_key(layout, wrong) is None
