"""What stands between a configuration and a run of it: checks of broker, store and machine, each with its remedy.

What is found is judged by pure functions over values. A check that cannot be made is a warning that says why; nothing
is changed but scratch objects, which are removed.
"""

import time
from collections.abc import Callable, Iterator

from archiver.doctor.cluster_checks import ClusterChecks
from archiver.doctor.findings import Finding, Verdict, carefully
from archiver.doctor.machine_checks import (
    check_buffer,
    check_kernels,
    check_keys,
    check_store,
    check_versions,
    found_archive,
)
from blockgz.config.model import RunConfig
from index_format.errors import BlockgzError


def examine(config: RunConfig, wall: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All checks, as they are made; `wall` is this machine's clock in seconds since 1970."""
    kafka = ClusterChecks(config)
    yield from carefully("versions", check_versions)
    yield from carefully("C extensions", check_kernels)
    yield from carefully("broker", kafka.broker)
    for name, check in (
        ("topics", kafka.topics),
        ("permissions", kafka.permissions),
        ("group", lambda: _group(config, kafka)),
        ("retention", kafka.retention),
        ("timestamps", lambda: kafka.timestamps(wall())),
    ):
        if kafka.is_reached:
            yield from carefully(name, check)
        else:
            yield Finding(name, Verdict.WARN, "could not be checked: no broker answered")
    yield from carefully("open files", kafka.open_files)
    yield from carefully("buffer", lambda: check_buffer(config))
    yield from carefully("keys", lambda: check_keys(config))
    yield from carefully("store", lambda: check_store(config, wall, kafka.cluster_id))


def _group(config: RunConfig, kafka: ClusterChecks) -> Iterator[Finding]:
    try:
        archive = found_archive(config)
    except BlockgzError as error:
        yield Finding("group", Verdict.WARN, f"could not be checked, as the archive names it: {error.what}")
        return
    yield from kafka.group(archive)
