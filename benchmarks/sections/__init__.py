"""What can be measured, by name; each section is a module of its own."""

from collections.abc import Sequence
from typing import Protocol

from benchmarks.figures import Json
from benchmarks.sections import archive, growth, lookups, peers, quick, replay, small_batches, spark, startup, verify
from benchmarks.site import Site
from benchmarks.tables import Table


class Section(Protocol):
    """A module of this package."""

    def measure(self, site: Site) -> Json:
        """Everything in one go. `rows` are the figures; `ratios`, by name, are larger the better we are."""

    def tables(self, result: Json) -> Sequence[Table]:
        """What `measure` gave, for people."""


SECTIONS: dict[str, Section] = {
    "archive": archive,
    "replay": replay,
    "lookups": lookups,
    "verify": verify,
    "spark": spark,
    "startup": startup,
    "growth": growth,
    "small_batches": small_batches,
    "peers": peers,
}
QUICK: dict[str, Section] = {"quick": quick}
