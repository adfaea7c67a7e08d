"""Java's word: Kafka Connect's own transforms, and where Java's producer puts keys. Jars come from Maven Central."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from system_test.support.environment import cache_folder, filled_once, run_tool, tool
from system_test.support.kafka_broker import KAFKA_VERSION, kafka_jars

TRANSFORMS = Path(__file__).with_name("ConnectTransforms.java")
PARTITIONS = Path(__file__).with_name("ProducedPartitions.java")
_DOWNLOAD_SECONDS = 900.0
_RUN_SECONDS = 120.0
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>blockgz</groupId><artifactId>system-test-connect</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-transforms</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def connect_jars() -> Path:
    """The folder with the jars, resolved by Maven once and kept in the cache.

    PartMissingError without Maven or when the download fails.
    """

    def download(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            pom = Path(scratch) / "pom.xml"
            pom.write_text(_POM)
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
            quiet = ["--quiet", "--batch-mode", "--no-transfer-progress", "-Dstyle.color=never"]
            run_tool([tool("mvn"), *quiet, "--file", str(pom), *goal], seconds=_DOWNLOAD_SECONDS)

    return filled_once(cache_folder() / f"connect-{KAFKA_VERSION}" / "libs", download)


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
