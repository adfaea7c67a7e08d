"""What there is to find out of this machine."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from archiver.config.model import RunConfig
from archiver.doctor.findings import Finding, Verdict
from archiver.doctor.judging import judge_space
from archiver.doctor.kafka_access import library_version
from blockgz_runtime.store.opening import default_buffer_root

PACKAGES = ("confluent-kafka", "pyarrow", "isal", "boto3")


def check_versions() -> Iterator[Finding]:
    """What is installed, and what is missing."""
    known = [f"Python {python_version()}", f"librdkafka {library_version()}"]
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding("versions", Verdict.FAIL, f"{package} is not installed", f"pip install {package}")
    yield Finding("versions", Verdict.OK, ", ".join(known))


def check_buffer(config: RunConfig) -> Iterator[Finding]:
    """Whether the buffer's folder can be written, and has room for its budget."""
    folder = (config.buffer_dir or default_buffer_root(config.archive)).absolute()
    there = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        detail = f"{folder} cannot be written: {error.strerror or error}"
        yield Finding("buffer", Verdict.FAIL, detail, "mend it, or give another --buffer-dir")
        return
    yield judge_space(folder, free, config.buffer_bytes)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())
