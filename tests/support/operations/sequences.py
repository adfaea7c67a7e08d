"""Random operations on an archive against a plain model.

An archive that lives for years is written, pruned, compacted, converted, erased in, collected and repaired, in any
order. After each operation what readers are told is compared with the model, at the end everything is, and `verify`
runs. Readers that read the marker before are asked as well.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from index_format.errors import BlockgzError
from tests.support.lifecycle.schedule import fan_out
from tests.support.operations.world import Tools, World, tools
from tests.support.simulator import Violation

SEED_LAYOUT_SHARE = 10
"""One of so many archives is in layout seed, which nobody rewrites."""
OPERATIONS: dict[Callable[[World], None], float] = {
    World.append: 6,
    World.lose: 1,
    World.die: 1,
    World.read: 2,
    World.prune: 1.5,
    World.compact: 2.5,
    World.erase: 2,
    World.collect: 3,
    World.salvage: 1,
    World.repair_marker: 0.7,
    World.truncate_log: 0.5,
    World.lose_data: 1,
}


def run(seed: int, _: bool, at_hand: Tools) -> Counter[str]:
    """One sequence; what happened in it. Raises Violation."""
    rng = random.Random(seed)
    world = World(rng, "seed" if seed % SEED_LAYOUT_SHARE == 0 else "topic", at_hand)
    operations, weights = list(OPERATIONS), list(OPERATIONS.values())
    with fan_out(rng.choice([2, 3, 3, 4])):
        try:
            world.append()
            for operation in rng.choices(operations, weights, k=rng.randint(3, 10)):
                operation(world)
                world.check()
            world.finish()
        except (AssertionError, BlockgzError, ValueError, KeyError) as error:
            raise Violation(seed, f"{type(error).__name__}: {error}", world.trace) from error
    return world.counts


@contextmanager
def tools_at_hand() -> Iterator[Tools]:
    with tempfile.TemporaryDirectory(prefix="blockgz-") as folder, tools(Path(folder)) as found:
        yield found
