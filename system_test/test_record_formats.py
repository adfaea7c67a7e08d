"""Record formats and codecs beside the default: nothing is lost in them, and foreign readers open what is stored."""

import json
from typing import Any

import pytest

from system_test.checker import check_equal, partition_home, records_of_chunk
from system_test.support.archiving import Site
from system_test.support.contents import records_of_every_content
from system_test.support.topics import create_topic, fill_topic, produce, read


@pytest.mark.parametrize(
    ("record_format", "codec", "suffix"),
    [("arrow", "gzip", ".arrows.gz"), ("arrow", "zstd", ".arrows.zst"), ("json", "zstd", ".zst")],
)
def test_every_content_comes_back(site: Site, topic_name: str, record_format: str, codec: str, suffix: str) -> None:
    fill_topic(site.bootstrap, topic_name, records_of_every_content())
    source = read(site.bootstrap, topic_name)
    site.once(topic_name, "--record-format", record_format, "--codec", codec, "--block-bytes", "4KiB")

    folder = partition_home(topic_name, 0)
    entry = site.marker(topic_name)["tail"][0]
    index: dict[str, Any] = json.loads(site.fetch(folder + entry["name"]))
    assert index["data"]["name"].endswith(suffix)
    data = site.fetch(folder + index["data"]["name"])
    assert len(index["chunks"]) > 5
    check_equal(list(records_of_chunk(data, index, entry["name"])), source)

    for arguments in (("--deep", "--records"), ("--against-topic", topic_name, *site.kafka)):
        report = site.replayer_json("verify", topic_name, *arguments)
        assert report["verdict"] == "OK"
    found = site.replayer_json("get", f"{topic_name}:0:{source[100].offset}")
    assert found["offset"] == source[100].offset


def test_an_archive_may_change_its_format(site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    for record_format, codec in (("json", "gzip"), ("arrow", "zstd"), ("json", "zstd"), ("arrow", "gzip")):
        produce(site.bootstrap, topic_name, records_of_every_content()[:50])
        site.once(topic_name, "--record-format", record_format, "--codec", codec)
    report = site.replayer_json("verify", topic_name, "--against-topic", topic_name, *site.kafka)
    assert (report["verdict"], report["records"]) == ("OK", 200)
