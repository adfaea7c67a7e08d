"""`archiver demo`, alone and on a given cluster: the first thing that a newcomer runs."""

from __future__ import annotations

import re
from pathlib import Path

from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Completed, run
from system_test.support.topics import topic_names

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
