"""A running `replayer broker`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from system_test.support.archiving import Site
from system_test.support.programs import Running, start

_START_SECONDS = 60


class Endpoint(NamedTuple):
    """A running `replayer broker`, and the cluster whose archive it serves."""

    bootstrap: str
    site: Site
    running: Running


@contextmanager
def serving(site: Site, *arguments: object, topics: tuple[str, ...] = ()) -> Iterator[Endpoint]:
    """Serve an archive on a free port within the block."""
    where = ("--listen", "127.0.0.1:0", *arguments, *site.archive)
    with start("replayer", "broker", *topics, *where, env=site.env) as running:
        found = running.wait_for(
            lambda: re.search(r"serving \S+ on (\S+);", running.stderr), _START_SECONDS, "the broker to listen"
        )
        yield Endpoint(found[1], site, running)
