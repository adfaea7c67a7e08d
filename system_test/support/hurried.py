"""`archiver` as it is, but with small catalogs, short leases, rounds and looks, and no least grace: `python -m … gc …`.

What asks whether to go on, and for a name to be typed, is agreed to.
"""

import runpy

from archiver.cli import planned
from archiver.ingest import assignment
from archiver.maintain import garbage
from archiver.maintain.prune import prune
from archiver.maintain.repair import losses
from archiver.maintain.rewrite.replace import rewrite
from index_format import marker

FAN_OUT = 2
"""A format's constant that readers need not know: they accept up to 64."""
LEASE_MS = 4000
OWNERS_SECONDS = 2.0
SECOND_LOOK_SECONDS = 2.0


def hurry() -> None:
    """Make it so in this process."""
    marker.FAN_OUT = FAN_OUT
    for protocol in (prune, rewrite):
        assert protocol.__kwdefaults__ is not None
        protocol.__kwdefaults__["lease_ms"] = LEASE_MS
    vars(garbage)["SHORTEST_GRACE_SECONDS"] = 0.0
    losses.SECOND_LOOK_SECONDS = SECOND_LOOK_SECONDS
    assignment.OWNERS_SECONDS = OWNERS_SECONDS


if __name__ == "__main__":
    hurry()
    vars(planned)["confirm"] = lambda *_, **__: None
    runpy.run_module("archiver", run_name="__main__", alter_sys=True)
