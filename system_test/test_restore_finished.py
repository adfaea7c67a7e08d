"""Restores that meet what an operator meets in a bad night, and that are finished nevertheless, on a real broker."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.topics import own_config
from tests.support.archives import ArchiveWriter, put_topic_config, records

AT = "@1760000900000"
FOREIGN = "message.timestamp.of.another.version.ms"
"""No broker knows this setting."""


@pytest.fixture
def archive(broker_site: Site, tmp_path: Path) -> tuple[ArchiveWriter, Site]:
    """An archive that no cluster here wrote, and a site with it."""
    site = dataclasses.replace(broker_site, address=str(tmp_path / "archive"), env={"XDG_STATE_HOME": str(tmp_path)})
    return ArchiveWriter(tmp_path / "archive"), site


def test_a_setting_that_the_cluster_does_not_know_is_left_out_and_named(
    archive: tuple[ArchiveWriter, Site], topic_name: str
) -> None:
    writer, site = archive
    writer.partition(topic_name, 0).commit(records(range(40)))
    put_topic_config(writer, topic_name, 1, {FOREIGN: "5", "cleanup.policy": "compact", "segment.bytes": "2000000"})
    names = ("restore", topic_name, "--at", AT, "--name", topic_name, "--map", r"(.*)=new.\1", *site.kafka)
    chosen = site.replayer(*names, "--dry-run", "--topic-config", f"{FOREIGN}=6", check=2).stderr
    assert f"Unknown topic config name: {FOREIGN}" in chosen
    assert "--omit-topic-config" in chosen
    told = site.replayer(*names, "--yes")
    assert f"{FOREIGN}=5 is left out, because the cluster does not accept it" in told.stderr
    found = own_config(site.bootstrap, f"new.{topic_name}")
    assert (found["cleanup.policy"], found["segment.bytes"]) == ("compact", "2000000")
    copied = (
        "replay",
        topic_name,
        "--to-topic",
        "{topic}-copy",
        "--create-topic",
        "--topic-config",
        "cleanup.policy=delete",
        "--topic-config",
        "retention.ms=-1",
        *site.kafka,
    )
    assert f"{FOREIGN}=5 is left out" in site.replayer(*copied, "--yes").stderr
    silent = site.replayer(*copied, "--dry-run", "--job", "other", "--omit-topic-config", FOREIGN, check=None).stderr
    assert FOREIGN not in silent
