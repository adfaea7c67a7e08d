"""Run one of the storms."""

import argparse
import random
import tempfile
from pathlib import Path

from system_test.storms.restarts import AUTHORIZER, storm_of_restarts
from system_test.storms.takeovers import storm_of_takeovers
from system_test.support.kafka_broker import KafkaBroker


def main() -> None:
    """Print what happened; exit with 1 if a process ended otherwise than it was made to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("storm", choices=("takeovers", "restarts"))
    parser.add_argument("--ends", type=int, default=500, help="of archivers, in a storm of takeovers")
    parser.add_argument("--restarts", type=int, default=20, help="of the broker, in a storm of restarts")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    settings = AUTHORIZER if asked.storm == "restarts" else {}
    with KafkaBroker(settings) as broker, tempfile.TemporaryDirectory(prefix="blockgz-storm-") as folder:
        if asked.storm == "takeovers":
            outcome = storm_of_takeovers(broker, Path(folder), asked.ends, asked.seed)
        else:
            outcome = storm_of_restarts(broker, asked.restarts, asked.seed)
    print(outcome, flush=True)
    if outcome.unexpected:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
