"""What stands between a configuration and a run of it: checks of broker, store and machine, each with its remedy.

What is found is judged by pure functions over values. A check that cannot be made is a warning that says why; nothing
is changed but scratch objects, which are removed.
"""

import time
from collections.abc import Callable, Iterator

from archiver.config.model import RunConfig
from archiver.doctor.cluster_checks import ClusterChecks
from archiver.doctor.findings import Finding, carefully
from archiver.doctor.machine_checks import check_buffer, check_store, check_versions


def examine(config: RunConfig, wall: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All checks, as they are made; `wall` is this machine's clock in seconds since 1970."""
    kafka = ClusterChecks(config)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", check_versions),
        ("broker", kafka.broker),
        ("topics", kafka.topics),
        ("permissions", kafka.permissions),
        ("retention", kafka.retention),
        ("timestamps", lambda: kafka.timestamps(wall())),
        ("open files", kafka.open_files),
        ("buffer", lambda: check_buffer(config)),
        ("store", lambda: check_store(config, wall, kafka.cluster_id)),
    ]
    for name, check in checks:
        yield from carefully(name, check)
