"""`archiver doctor` at a real cluster: what it tells, and what it finds."""

import json
import time
from typing import Any

from system_test.support.archiving import Site
from system_test.support.programs import run
from system_test.support.topics import NewRecord, create_topic, produce


def findings(site: Site, *arguments: str, exit_code: int) -> dict[str, list[dict[str, Any]]]:
    done = run("archiver", "doctor", *arguments, *site.kafka, *site.archive, "--json", env=site.env, check=exit_code)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def is_claimed(site: Site, topic: str) -> bool:
    try:
        return bool(site.marker(topic))
    except OSError:
        return False


def test_a_real_broker_tells_everything(site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name, 3)
    with site.start(topic_name) as archiver:
        archiver.wait_for(lambda: is_claimed(site, topic_name), 60, "a claim, and with it the group")
        archiver.terminate()
    found = findings(site, topic_name, "--buffer-bytes", "1MiB", "--group-protocol", "consumer", exit_code=0)
    told = {"broker", "broker api", "group protocol", "topics", "topic ACL", "group ACL", "retention", "timestamp type"}
    assert {check: found[check][0]["verdict"] for check in told} == dict.fromkeys(told, "ok")
    assert found["topics"][0]["detail"] == "1 topics, 3 partitions"


def test_records_that_live_too_short_and_clocks_that_run_ahead_are_found(site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name, config={"retention.ms": "60000"})
    in_half_an_hour = round(time.time() * 1000) + 1_800_000
    produce(site.bootstrap, topic_name, [NewRecord(b"from the future", timestamp=in_half_an_hour)])
    found = findings(site, topic_name, "--buffer-bytes", "1MiB", exit_code=1)
    assert (found["retention"][0]["verdict"], found["broker clock"][0]["verdict"]) == ("fail", "warn")
    assert f"raise retention.ms of {topic_name}" in found["retention"][0]["remedy"]
