"""Jars from Maven Central, fetched once and kept in the cache."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from system_test.support.environment import cache_folder, filled_once, run_tool, tool

_DOWNLOAD_SECONDS = 900.0
_QUIET = ("--quiet", "--batch-mode", "--no-transfer-progress", "-Dstyle.color=never")


def jars_with_dependencies(name: str, artifacts: Iterable[str]) -> Path:
    """The folder with these artifacts (`group:artifact:version`) and all that they need, as Maven resolves it.

    `name` is the cache's for them. PartMissingError without Maven or when the download fails.
    """
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *artifact.split(":")
        )
        for artifact in artifacts
    )
    project = (
        "<project><modelVersion>4.0.0</modelVersion><groupId>blockgz</groupId><artifactId>system-test</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )

    def download(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            pom = Path(scratch) / "pom.xml"
            pom.write_text(project)
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
            run_tool([tool("mvn"), *_QUIET, "--file", str(pom), *goal], seconds=_DOWNLOAD_SECONDS)

    return filled_once(cache_folder() / name / "libs", download)


def single_jars(name: str, artifacts: Iterable[str]) -> Path:
    """The folder with these artifacts and nothing that they need, where the rest comes from elsewhere."""

    def download(folder: Path) -> None:
        for artifact in artifacts:
            options = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}", "-Dtransitive=false"]
            run_tool([tool("mvn"), *_QUIET, "dependency:copy", *options], seconds=_DOWNLOAD_SECONDS)

    return filled_once(cache_folder() / name / "jars", download)
