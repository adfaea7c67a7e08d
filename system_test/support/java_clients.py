"""Java's word: Kafka Connect's own transforms, and where Java's producer puts keys. Jars come from Maven Central."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from system_test.support.environment import tool
from system_test.support.kafka_broker import KAFKA_VERSION, kafka_jars
from system_test.support.maven import jars_with_dependencies

TRANSFORMS = Path(__file__).with_name("ConnectTransforms.java")
PARTITIONS = Path(__file__).with_name("ProducedPartitions.java")
_RUN_SECONDS = 120.0


def connect_jars() -> Path:
    """The folder with Connect's transforms; PartMissingError where they cannot be had."""
    connect = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in ("connect-transforms", "connect-json")]
    return jars_with_dependencies(f"connect-{KAFKA_VERSION}", [*connect, "org.slf4j:slf4j-nop:1.7.36"])


def tools_jars() -> Path:
    """The folder with Kafka's command line tools; PartMissingError where they cannot be had."""
    tools = [f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36"]
    return jars_with_dependencies(f"tools-{KAFKA_VERSION}", tools)


def _run_java(program: Path, jars: Path, arguments: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines that a Java program of one file answers to these lines."""
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    done = subprocess.run(
        [tool("java"), *flags, "-cp", f"{jars}/*", str(program), *arguments],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return done.stdout.decode().splitlines()


def ask_connect(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Connect makes of each request; see the Java program for both forms."""
    answers = _run_java(TRANSFORMS, connect_jars(), (), [json.dumps(request) for request in requests])
    assert len(answers) == len(requests), answers
    return [json.loads(answer) for answer in answers]


def produced_partitions(bootstrap: str, topic: str, keys: Sequence[bytes]) -> list[int]:
    """Produces a record for each key with Java's producer; the partitions that they went to."""
    answers = _run_java(PARTITIONS, kafka_jars(), (bootstrap, topic), [key.hex() for key in keys])
    assert len(answers) == len(keys), answers
    return [int(answer) for answer in answers]
