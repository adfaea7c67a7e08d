"""One archive of one cluster, as its operator handles it, and a back door to what is stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from system_test.checker import CheckedPartition, Fetch, check_against, check_partition, folder_fetch, partition_home
from system_test.support.object_store import ObjectStore
from system_test.support.programs import Completed, Running, run, start
from system_test.support.topics import read


@dataclass(frozen=True)
class Site:
    """Where a cluster and an archive are, and how to reach both."""

    bootstrap: str
    address: str
    fetch: Fetch
    store_options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def kafka(self) -> tuple[str, str]:
        return ("-b", self.bootstrap)

    @property
    def archive(self) -> tuple[str, ...]:
        return ("-a", self.address, *self.store_options)

    def run(self, *arguments: object, check: int | None = 0, timeout: float = 60) -> Completed:
        """`archiver run` with these arguments, to its end."""
        return run(
            "archiver", "run", *arguments, *self.kafka, *self.archive, env=self.env, timeout=timeout, check=check
        )

    def once(self, *arguments: object) -> dict[str, Any]:
        """`archiver run --once`; what it did, as it says so itself."""
        result: dict[str, Any] = json.loads(self.run(*arguments, "--once", "--json").stdout)
        return result

    def start(self, *arguments: object) -> Running:
        """`archiver run` in the background."""
        return start("archiver", "run", *arguments, *self.kafka, *self.archive, env=self.env)

    def replayer(self, *arguments: object, check: int | None = 0, timeout: float = 60) -> Completed:
        """A command of `replayer` on this archive, to its end; one that needs the cluster is given `*site.kafka`."""
        return run("replayer", *arguments, *self.archive, env=self.env, timeout=timeout, check=check)

    def replayer_json(self, *arguments: object, check: int | None = 0) -> dict[str, Any]:
        """The same with `--json`, for commands that print one object."""
        result: dict[str, Any] = json.loads(self.replayer(*arguments, "--json", check=check).stdout)
        return result

    def checked(self, topic: str, partition: int = 0) -> CheckedPartition:
        """What is archived of a partition, the format's rules checked by foreign code."""
        return check_partition(self.fetch, topic, partition)

    def exact(self, topic: str, partition: int = 0, *, committed: bool = True) -> CheckedPartition:
        """The same, and it is what a foreign client reads from the topic up to the marker's next_offset."""
        checked = self.checked(topic, partition)
        check_against(checked, read(self.bootstrap, topic, partition, committed=committed))
        return checked

    def marker(self, topic: str, partition: int = 0) -> dict[str, Any]:
        marker: dict[str, Any] = json.loads(self.fetch(partition_home(topic, partition) + "last_chunk_index.json"))
        return marker


def folder_site(bootstrap: str, folder: Path) -> Site:
    """An archive in a folder, which need not exist yet; jobs are kept in a home beside it."""
    return Site(bootstrap, str(folder), folder_fetch(folder), env=state_beside(folder))


def store_site(bootstrap: str, store: ObjectStore, prefix: str, home: Path | None = None) -> Site:
    """An archive under a prefix of the store's bucket; jobs are kept below `home`."""
    options = ("--endpoint-url", store.endpoint_url)
    env = {**store.env, **(state_beside(home / "archive") if home else {})}
    return Site(bootstrap, store.url(prefix), lambda key: store.read(f"{prefix}/{key}"), options, env)


def state_beside(folder: Path) -> dict[str, str]:
    """The environment of programs that keep their jobs beside a folder."""
    return {"XDG_STATE_HOME": str(folder.parent / "state")}
