"""The page's API with archive and jobs on S3, and a replay by transactions on a real broker."""

import json
from pathlib import Path
from typing import Any

import httpx2

from system_test.support.archiving import store_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.pages import serving
from system_test.support.topics import NewRecord, create_topic, produce, read
from system_test.support.waiting import wait_until

RECORDS = 3000
SECONDS = 60.0


def test_a_replay_by_transactions_from_s3(
    broker: KafkaBroker, moto: MotoServer, topic_name: str, tmp_path: Path
) -> None:
    site = store_site(broker.bootstrap, moto, topic_name, tmp_path)
    copy = f"{topic_name}-copy"
    for topic in (topic_name, copy):
        create_topic(site.bootstrap, topic, 1)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % number, key=b"k") for number in range(RECORDS)])
    site.once(topic_name)
    jobs = ("--jobs", f"{site.address}-jobs")
    options = (*site.kafka, *site.store_options, *jobs, "--allow-replay")
    with serving(site.address, *options, env=site.env) as server:
        api = f"{server.url}/api/v1"

        def job() -> dict[str, Any]:
            found: dict[str, Any] = httpx2.get(f"{api}/jobs/{topic_name}").json()
            return found

        page = httpx2.get(f"{api}/topics/{topic_name}/partitions/0/page?at=-10").json()
        assert [item["record"]["value"] for item in page["items"]] == [str(n) for n in range(RECORDS - 10, RECORDS)]
        lines = httpx2.get(f"{api}/topics/{topic_name}/partitions/0/records?n=100000").text.splitlines()
        assert len(lines) == RECORDS + 1
        assert json.loads(lines[-1])["cursor"] == {"next": RECORDS, "complete": True}
        form = {"topic": topic_name, "to_topic": copy, "transactional": True, "compression": "gzip"}
        form |= {"rate": "500/s", "job": topic_name}
        begun = httpx2.post(f"{api}/jobs", json={"kind": "replay", "replay": form, "confirm": copy}, timeout=SECONDS)
        assert begun.status_code == 201, begun.text
        wait_until(lambda: job()["progress"]["done"] > 0, SECONDS, "the first records")
        assert httpx2.post(f"{api}/jobs/{topic_name}/cancel").status_code == 200
        wait_until(lambda: job()["state"] == "ended", SECONDS, "the end")
        assert job()["actions"] == ["resume", "prove"]
        resumed = httpx2.post(f"{api}/jobs/{topic_name}/resume", timeout=SECONDS)
        assert resumed.status_code == 200, resumed.text
        httpx2.post(f"{api}/jobs/{topic_name}/rate", json={"rate": None}, timeout=SECONDS)
        wait_until(lambda: job()["state"] == "complete", SECONDS, "the replay")
        proof = httpx2.post(f"{api}/jobs", json={"kind": "prove", "job": topic_name}, timeout=SECONDS).json()["id"]
        wait_until(lambda: httpx2.get(f"{api}/jobs/{proof}").json()["state"] == "complete", SECONDS, "the proof")
        result = httpx2.get(f"{api}/jobs/{proof}").json()["result"]
        assert (result["verdict"], result["records"], result["sent_twice"]) == ("OK", RECORDS, 0)
    values = [record.value for record in read(site.bootstrap, copy, 0)]
    assert values == [b"%d" % number for number in range(RECORDS)]
