"""An archive that S3 encrypts with a customer's key: both programs, and what they say of another key."""

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from system_test.support.archiving import Site, store_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.programs import run
from system_test.support.topics import NewRecord, create_topic, produce
from tests.support.recording_proxy import RecordingProxy

SETTINGS = ("--storage-class", "STANDARD_IA", "--object-tags", "team=data", "--acl", "bucket-owner-full-control")


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[RecordingProxy]:
    with RecordingProxy(moto.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def site(broker: KafkaBroker, moto: MotoServer, proxy: RecordingProxy, tmp_path: Path) -> Site:
    """The key is in a file, which only its owner reads."""
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(base64.b64encode(bytes(range(32))).decode())
    options = ("--endpoint-url", proxy.endpoint_url, "--customer-key", f"${{file:{key}}}")
    return replace(store_site(broker.bootstrap, moto, f"key-{uuid.uuid4().hex[:6]}", tmp_path), store_options=options)


def test_it_is_archived_resumed_verified_replayed_and_kept_from_others(
    site: Site, moto: MotoServer, proxy: RecordingProxy, topic_name: str
) -> None:
    create_topic(site.bootstrap, topic_name)
    for _ in range(2):
        produce(site.bootstrap, topic_name, [NewRecord(b"%d" % number) for number in range(50)])
        site.once(topic_name, *SETTINGS)
    assert site.replayer_json("verify", topic_name, "--deep", "--records")["verdict"] == "OK"
    jobs = ("--jobs", moto.url("jobs"), "--job", f"job-{uuid.uuid4().hex[:6]}")
    site.replayer(
        "replay", topic_name, "--to-topic", f"{topic_name}-copy", "--create-topic", *jobs, *site.kafka, "--yes"
    )
    assert json.loads(site.replayer("verify", *jobs, *site.kafka, "--json").stdout)["verdict"] == "OK"
    put = proxy.sent("PutObject")
    plain = {each.path for each in put if not any("customer-key" in name for name in each.headers)}
    assert len(plain) == 1 and plain.pop().endswith("/_archive.json")
    of_class = [each.path for each in put if "x-amz-storage-class" in each.headers]
    assert of_class == [each.path for each in put if each.path.endswith(".gz")]
    without = replace(site, store_options=site.store_options[:2])
    for refused in (
        without.replayer("cat", topic_name, check=12),
        without.run(topic_name, "--once", check=12),
        run("archiver", "gc", *without.archive, "--dry-run", env=site.env, check=12),
    ):
        assert "is encrypted with a customer key" in refused.stderr and "--customer-key" in refused.stderr
