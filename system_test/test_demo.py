"""`archiver demo`, alone and on a given cluster: the first thing that a newcomer runs."""

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from replayer.serve.replays import OVER
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Completed, run, start
from system_test.support.topics import topic_names
from system_test.support.waiting import wait_until

SECONDS = 60
STEPS = ["produce", "archive the topic", "look at", "fetch", "seek", "replay", "verify the copy", "verify the archive"]


def ends_with_the_table(done: Completed) -> None:
    table = done.stdout[done.stdout.rindex("step  ") :].splitlines()
    rows = [line for line in table[1:] if re.search(r"[0-9]\.[0-9]$", line)]
    assert [row.startswith(step) for row, step in zip(rows, [*STEPS, "all"], strict=True)] == [True] * 9, (
        done.transcript
    )
    assert len(table) == 1 + len(rows), "a cell is wrapped"
    assert max(map(len, table)) <= 80
    assert "everything matches" in rows[-1]
    assert "Traceback" not in done.stdout + done.stderr


def test_the_demo_needs_nothing(tmp_path: Path) -> None:
    """Broker and archive are its own; its home and the working folder stay as they are."""
    done = run("archiver", "demo", env={"HOME": str(tmp_path)}, cwd=tmp_path, timeout=SECONDS)
    ends_with_the_table(done)
    for command in ("archiver run", "zcat", "replayer get", "replayer cat", "replayer replay", "replayer verify"):
        assert f"$ {command}" in done.stdout, f"{command} is not shown"
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_the_demo_on_a_given_cluster(broker: KafkaBroker, tmp_path: Path) -> None:
    before = topic_names(broker.bootstrap)
    kept = tmp_path / "kept"
    done = run("archiver", "demo", "-b", broker.bootstrap, "--keep", kept, timeout=SECONDS)
    ends_with_the_table(done)
    assert topic_names(broker.bootstrap) == before, "its topics are deleted"
    (topic,) = (path.name.removeprefix("topic=") for path in kept.glob("topic=*"))
    assert run("replayer", "verify", topic, "--deep", "-a", kept).stdout.rstrip().endswith("OK")


def test_the_demo_ends_with_a_broker_of_its_archive(tmp_path: Path, kcat: str) -> None:
    with start("archiver", "demo", "--broker", env={"HOME": str(tmp_path)}, cwd=tmp_path) as demo:
        demo.wait_for(lambda: re.search(r"^serving \S+ on ", demo.stderr, re.M), SECONDS, "the broker")
        hint = re.search(r"try: kcat (.*)", demo.stdout)
        assert hint, demo.stdout
        done = subprocess.run([kcat, *hint[1].split()], capture_output=True, text=True, timeout=SECONDS, check=True)
        assert done.stdout.count("\n") == 1
        demo.signal(signal.SIGINT)
        assert demo.wait(SECONDS).exit_code in (0, 130)


def test_the_demo_ends_with_the_page_of_its_archive(tmp_path: Path) -> None:
    """On which the replay that it proposes can be made, until it is ended; then the page ends as well."""
    with start("archiver", "demo", "--serve", env={"HOME": str(tmp_path)}, cwd=tmp_path) as demo:
        address = demo.wait_for(lambda: re.search(r"^serving \S+ on (http://\S+)$", demo.stderr, re.M), SECONDS, "page")
        told = re.search(r"send (\S+) to (\S+), which is empty", demo.stdout)
        assert told, demo.stdout
        api = f"{address[1]}/api/v1"
        (topic,) = httpx2.get(f"{api}/topics").json()["topics"]
        assert (topic["topic"], topic["records"]) == (told[1], 20_000)
        body = {"kind": "replay", "replay": {"topic": told[1], "to_topic": told[2]}, "confirm": told[2]}
        job = httpx2.post(f"{api}/jobs", json=body).json()
        state = wait_until(lambda: ended(f"{api}/jobs/{job['id']}"), SECONDS, "the replay")
        assert (state["state"], state["progress"]["done"]) == ("complete", 20_000), state
        done = demo.terminate()
    assert done.exit_code == 0, done.transcript
    assert "Traceback" not in done.stdout + done.stderr
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(address[1])
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def ended(job: str) -> dict[str, Any] | None:
    found: dict[str, Any] = httpx2.get(job).json()
    return found if found["state"] in OVER else None
